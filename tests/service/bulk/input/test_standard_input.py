"""The format of standard input is guessed from its first line, and it is copied or refused."""

import errno
import io
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from s2sent.service.bulk.input.files import RowReader, scan
from s2sent.service.bulk.job import InputError, Options

MARK = b"\xef\xbb\xbf"


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let standard input have this content."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("content", "kind", "first"),
    [
        (b'{"text": "one"}\n', "jsonl", "one"),
        (MARK + b'{"text": "one"}\n', "jsonl", "one"),
        (b'"one"\n"two"\n', "jsonl", "one"),
        (MARK + b'"one"\r\n', "jsonl", "one"),
        (b'"%s"\n' % (b"x" * 100_000), "jsonl", "x" * 100_000),
        (b'"One," he said.\n', "txt", '"One," he said.'),
        (b'"one\n', "txt", '"one'),
        (MARK + b"one\n", "txt", "one"),
        (b"", "txt", None),
        (b"text,id\none,1\n", "txt", "text,id"),
    ],
)
def test_the_first_line_tells_the_format(
    content: bytes, kind: str, first: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, content)
    (file,) = scan(["-"], Options())
    assert file.format == kind
    with RowReader(file, Options()) as rows:
        assert [row.text for row in rows.take(1)] == ([] if first is None else [first])


@pytest.mark.parametrize("options", [Options(text_column="body"), Options(id_column="id")])
def test_a_table_is_not_taken_for_text_where_a_column_is_named(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, b"body,id\none,1\n")
    with pytest.raises(InputError, match=r"- is lines of text and .*give --input-format\."):
        scan(["-"], options)
    give(monkeypatch, b"body,text,id\none,two,1\n")
    assert scan(["-"], options, given="csv")[0].rows == 1


def test_standard_input_that_is_closed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="Standard input is closed. Pipe texts"):
        scan(["-"], Options())


@pytest.mark.parametrize("name", ["-", "a.parquet.gz"])
def test_a_full_folder_of_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    give(monkeypatch, b"one\n")
    monkeypatch.setattr(shutil, "copyfileobj", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("a.parquet.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError, match=rf"for which {tmp_path} has no room.*set TMPDIR"):
        scan([name], Options())
