"""Options that cannot be followed, and models that cannot be loaded, are one sentence each."""

import dataclasses
import shutil
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.service.__main__ import app
from s2sent.service.bulk.embedders import local
from s2sent.service.bulk.embedders.local import LocalEmbedder
from s2sent.service.bulk.input import files
from s2sent.service.bulk.job import BulkError, Options
from tests.support.small_artifact import write_artifact

run = CliRunner().invoke


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command over one text."""
    (tmp_path / "a.txt").write_text("one\n")
    return ["embed", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out")]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--server-key-file", "key"], "--server-key-file is for --server. Add --server"),
        (["--server", "http://h", "--artifact", "a"], "Leave out --artifact and --threads"),
        (["--server", "http://h", "--threads", "2"], "Leave out --artifact and --threads"),
        (["--server", "http://h", "--ray", ""], "Leave out --server, --shard and -."),
        (["--server", ""], "--server is ''; write a URL as in"),
        (["--ray", ""], "--ray is ''; write the address of a cluster, auto or local."),
        (["--text-column", "text"], "has no column 'text'. Leave out --text-column, or give"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    command: list[str], flags: list[str], sentence: str
) -> None:
    result = run(app, [*command, *flags])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_artifact_in_the_environment_does_not_exclude_a_service(command: list[str]) -> None:
    flags = ["--server", "localhost:8080"]
    result = run(app, [*command, *flags], env={"S2SENT_ARTIFACT": "/artifact"})
    assert "write a URL as in" in result.stderr


@pytest.mark.parametrize(
    ("module", "package"),
    [("pyarrow", "pyarrow"), ("pyarrow.parquet", "pyarrow"), ("ray", "'ray[data]'")],
)
def test_a_library_that_is_missing_is_named_with_a_command_that_installs_it(
    command: list[str], module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(files, "find_inputs", missing)
    result = run(app, command)
    assert result.exit_code == 1
    assert result.stderr == (
        f"{module} is not installed. Run: {sys.executable} -m pip install {package}\n"
    )


def test_a_file_that_is_named_twice_is_told(command: list[str], tiny_artifact: Artifact) -> None:
    flags = ["--artifact", str(tiny_artifact.path), "--progress", "none"]
    result = run(app, [*command, command[1].replace("a.txt", "*.txt"), *flags])
    assert result.exit_code == 0
    told, done = result.stderr.splitlines()
    assert told == f"{command[1]} is named more than once, and is embedded once."
    assert done.endswith("is complete: 1 rows in 1 parts.")


@pytest.mark.parametrize("rows", ["0", "1000000001", "1" + 29 * "0"])
def test_rows_of_a_part_are_bounded(command: list[str], rows: str) -> None:
    result = run(app, [*command, "--rows-per-shard", rows])
    assert result.exit_code == 2
    assert "--rows-per-shard" in result.stderr


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--rows-per-shard", "0", "it may be 1 to 1000000000. Give a number in that range."),
        ("--threads", "-1", "it may be 0 to 512. Give a number in that range."),
        ("--threads", "513", "it may be 0 to 512. Give a number in that range."),
    ],
)
def test_a_number_out_of_range_is_named_with_the_limits(
    command: list[str], flag: str, value: str, sentence: str
) -> None:
    result = run(app, [*command, flag, value])
    assert result.exit_code == 2
    assert result.stderr == f"{flag} is {value}; {sentence}\n"


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--dimensions", "has 32. Ask for 1 to 32 of them, or leave it out for all."),
        ("--depth", "Leave it out for full depth."),
    ],
)
def test_a_number_below_those_of_the_model_is_a_sentence(
    command: list[str], tiny_artifact: Artifact, flag: str, sentence: str
) -> None:
    result = run(app, [*command, "--artifact", str(tiny_artifact.path), flag, "0"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{flag} is 0; ")
    assert result.stderr.endswith(f"{sentence}\n")


@pytest.mark.parametrize("content", [b"\x80\xff", b"one\ntwo\n", b"", b" \n", b"a\x00b"], ids=repr)
def test_a_key_file_without_a_key_is_a_sentence(
    command: list[str], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "key").write_bytes(content)
    flags = ["--server", "http://127.0.0.1:1", "--server-key-file", str(tmp_path / "key")]
    result = run(app, [*command, *flags])
    assert result.exit_code == 1
    assert "key does not hold a key, which is one line of UTF-8." in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_tokenizer_that_is_broken_is_a_sentence(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "artifact")
    with pytest.raises(BulkError, match=r"artifact cannot be loaded: .*Export the checkpoint"):
        LocalEmbedder(artifact.path, Options(), threads=1)


def test_a_manifest_without_an_input_of_the_graph_is_a_sentence(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_artifact.path, tmp_path / "artifact")
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    manifest["inputs"].remove("token_type_ids")
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
    with pytest.raises(BulkError, match=r"artifact: the first run of .* failed: .*export the che"):
        LocalEmbedder(folder, Options(), threads=1)


@pytest.mark.parametrize(
    ("name", "prompts", "expected"),
    [
        (None, {"query": "query: "}, "query: "),
        ("query", {"query": "query: "}, "query: "),
        ("", {"query": "query: "}, ""),
        ("", {"query": "query: ", "": "nameless: "}, "nameless: "),
    ],
)
def test_an_empty_name_is_no_prompt_unless_the_model_has_one_of_that_name(
    tiny_artifact: Artifact,
    name: str | None,
    prompts: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Artifact.open(tiny_artifact.path, keep_graph=True)
    manifest = dataclasses.replace(opened.manifest, prompts=prompts, default_prompt_name="query")
    artifact = dataclasses.replace(opened, manifest=manifest)
    monkeypatch.setattr(local, "_open", lambda _path: artifact)
    embedder = LocalEmbedder(tiny_artifact.path, Options(prompt_name=name), threads=1)
    embedder.close()
    assert embedder._prompt == expected
