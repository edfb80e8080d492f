"""Rows of many megabytes: their first characters count, the same way here and by a service."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.model.runtime.tokenizer import MAX_CHARACTERS_PER_TOKEN
from s2sent.service.__main__ import app
from s2sent.service.bulk import runner
from s2sent.service.bulk.input import formats
from s2sent.service.bulk.input.files import scan
from s2sent.service.bulk.job import InputError, Options
from tests.support.bulk_files import ROOT
from tests.support.fake_embedder import FAKE_MODEL, FakeEmbedder, embed_files
from tests.support.server_process import running_server

KINDS = ("txt", "csv", "jsonl", "parquet")


def write(path: Path, texts: list[str]) -> Path:
    """Texts in the format of the file's name."""
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.table({"text": texts}), path)  # all rows of a group are a page
        case ".jsonl":
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        case kind:
            path.write_text("\n".join(["text"] * (kind == ".csv") + texts) + "\n")
    return path


@pytest.mark.parametrize("where", ["here", "by a service"])
def test_a_row_of_nine_megabytes_is_cut(
    tiny_artifact: Artifact, tmp_path: Path, where: str
) -> None:
    texts = ["short", "word " * 1_920_000, "a"]
    write(tmp_path / "a.txt", texts)
    command = ["embed", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out"), "--format", "npy"]
    if where == "here":
        result = CliRunner().invoke(app, [*command, "--artifact", str(tiny_artifact.path)])
    else:
        with running_server(tiny_artifact.path) as server:
            result = CliRunner().invoke(app, [*command, "--server", server.url])
    assert result.exit_code == 0, result.output
    vectors = np.load(tmp_path / "out" / "embeddings.npy")
    expected = OnnxEncoder(tiny_artifact).encode(texts)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    rest = pq.read_table(tmp_path / "out" / "rows-000000.parquet")
    assert rest["truncated"].to_pylist() == [False, True, False]


def test_a_text_above_the_limit_of_a_body_is_embedded_as_far_as_it_is_read(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """The service sees less of it than is sent at first, and cuts it at the same token."""
    texts = ["short", "word " * 4_000, "\x01" * 3_000, "a"]
    write(tmp_path / "a.jsonl", texts)
    with running_server(tiny_artifact.path, "--max-body-bytes", "4096") as server:
        command = ["embed", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "out")]
        command += ["--format", "npy", "--server", server.url, "--on-error", "null"]
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    vectors = np.load(tmp_path / "out" / "embeddings.npy")
    expected = OnnxEncoder(tiny_artifact).encode(texts)
    assert np.isnan(vectors[2]).all()  # few tokens, of which the service may not see the last
    np.testing.assert_allclose(vectors[[0, 1, 3]], expected[[0, 1, 3]], atol=1e-5)
    rest = pq.read_table(tmp_path / "out" / "rows-000000.parquet").to_pydict()
    assert rest["truncated"] == [False, True, None, False]
    assert rest["error"][:2] + rest["error"][3:] == [None] * 3
    assert "refused the text: The body is above the limit of 4096 bytes" in rest["error"][2]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_text_only_what_the_model_reads_is_kept(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", ["x" * 100_000, "y" * 99, "z" * 100])
    embedder = FakeEmbedder(replace(FAKE_MODEL, max_characters=99))
    embed_files([path], tmp_path / "out", embedder=embedder)
    assert embedder.texts == ["x" * 99 + ".", "y" * 99, "z" * 99 + "."]


def test_what_is_put_in_place_of_the_rest_is_never_read(tiny_artifact: Artifact) -> None:
    """Also where the characters before it are few tokens, as white space is."""
    encoder = OnnxEncoder(tiny_artifact)
    most = MAX_CHARACTERS_PER_TOKEN * encoder.max_seq_length
    text = "a cat" + " " * most + "a dog"
    whole, cut = encoder.tokenizer.tokenize([text, f"{text[:most]}."])
    assert whole == cut
    assert cut.truncated


def test_windows_of_long_rows_are_small_and_the_bytes_do_not_depend_on_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "WINDOW_CHARACTERS", 1_000)
    path = write(tmp_path / "a.jsonl", [f"{at} " + "x" * (at * 37 % 700) for at in range(100)])

    class Watching(FakeEmbedder):
        def start(self, texts: list[str]) -> object:  # type: ignore[override]  # what it returns
            assert sum(map(len, texts[:-1])) < 1_000
            return super().start(texts)

    options = Options(rows_per_shard=40)
    embed_files([path], tmp_path / "out", options, embedder=Watching())
    table = pq.read_table(sorted((tmp_path / "out").glob("part-*")))
    assert table["row"].to_pylist() == list(range(100))
    (tmp_path / "out" / "_parts" / "000001.json").unlink()
    before = (tmp_path / "out" / "part-000001.parquet").read_bytes()
    embed_files([path], tmp_path / "out", options, resume=True)
    assert (tmp_path / "out" / "part-000001.parquet").read_bytes() == before


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_a_line_without_an_end_is_a_sentence(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MAX_LINE_BYTES", 1_000)
    content = b"short\n" + b"x" * 2_000
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(InputError, match="line 2 has more than 1000 bytes, the limit .*Divide it"):
        scan([str(tmp_path / name)], Options())


MEASURE = """
import re, sys
from dataclasses import replace
from pathlib import Path
from tests.support.fake_embedder import FAKE_MODEL, FakeEmbedder, embed_files

class Forgetful(FakeEmbedder):
    def start(self, texts):
        pending = super().start(texts)
        self.texts.clear()
        return pending

model = replace(FAKE_MODEL, max_characters=64_000)
for file in map(Path, sys.argv[1:]):
    embed_files([file], file.with_suffix(".out"), embedder=Forgetful(model))
    # Not ru_maxrss: that begins at what the process that started this one holds.
    print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_the_bytes_of_rows(tmp_path: Path, kind: str) -> None:
    """150 rows of 0.8 MB are 120 MB, and 64,000 characters of each are 10 MB."""
    texts = [f"{at} " + "word " * 160_000 for at in range(150)]
    small, large = write(tmp_path / f"a.{kind}", ["a"]), write(tmp_path / f"b.{kind}", texts)
    command = [sys.executable, "-c", MEASURE, str(small), str(large)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, peak = map(int, out.stdout.split())
    assert peak - before < 100
