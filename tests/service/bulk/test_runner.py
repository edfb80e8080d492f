"""The command over the real encoder: vectors, progress, signals, kill -9, a service."""

import json
import pkgutil
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import Future
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.__main__ import app
from s2sent.service.bulk.embedders.local import (
    BATCH_TEXTS,
    BATCH_TOKENS,
    LocalEmbedder,
    make_batches,
)
from s2sent.service.bulk.job import Options, Pending, Stopped
from s2sent.service.bulk.signals import StopSignals
from tests.support.bulk_files import contents, make_texts, start_embed, write_texts
from tests.support.fake_embedder import FakeEmbedder, embed_files
from tests.support.server_process import running_server

run = CliRunner().invoke


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """300 texts of 1 to 30 words."""
    return write_texts(tmp_path / "texts.txt", 300, Random(0))


def test_vectors_are_those_of_the_encoder_in_input_order(
    tiny_artifact: Artifact, texts: Path, tmp_path: Path
) -> None:
    arguments = ["--artifact", str(tiny_artifact.path), "--rows-per-shard", "70", "--progress"]
    result = run(app, ["embed", str(texts), "-o", str(tmp_path / "out"), *arguments, "json"])
    assert result.exit_code == 0, result.output
    table = pl.read_parquet(tmp_path / "out" / "part-*.parquet")
    lines = texts.read_text().splitlines()
    encoder = OnnxEncoder(tiny_artifact)
    found = table["embedding"].to_numpy()
    np.testing.assert_allclose(found, encoder.encode(lines), atol=1e-5)
    tokenized = encoder.tokenizer.tokenize(lines)
    assert table["tokens"].to_list() == [len(row) for row in tokenized]
    assert table["truncated"].to_list() == [row.truncated for row in tokenized]
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["rows"], last["rows_total"], last["parts"], last["failed"]) == (300, 300, 5, 0)
    assert last["tokens"] == table["tokens"].sum()
    assert last["truncated"] == table["truncated"].sum()
    assert "is complete: 300 rows in 5 parts" in result.stderr


def test_a_text_without_tokens_is_an_error_and_never_in_a_batch(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = LocalEmbedder(tiny_artifact.path, Options(), threads=1)
    tokenize = embedder._encoder.tokenizer.tokenize
    rows = tokenize(["a cat", "nothing", "a dog"])
    rows[1] = TokenizedText([], truncated=False)
    monkeypatch.setattr(embedder._encoder.tokenizer, "tokenize", lambda *_, **__: rows)
    pending = embedder.start(["a cat", "nothing", "a dog"])
    assert pending.wait(60)
    embedder.close()
    assert pending.embedded.errors == {1: "the text has no tokens to pool"}
    assert pending.embedded.vectors.any(axis=1).tolist() == [True, False, True]


def test_the_bits_do_not_depend_on_the_threads(
    tiny_artifact: Artifact, texts: Path, tmp_path: Path
) -> None:
    for threads in ("1", "3"):
        out = str(tmp_path / threads)
        options = ["--artifact", str(tiny_artifact.path), "--threads", threads]
        assert run(app, ["embed", str(texts), "-o", out, *options]).exit_code == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_dimensions_and_prompts_change_the_vectors(
    tiny_artifact: Artifact, texts: Path, tmp_path: Path
) -> None:
    options = ["--artifact", str(tiny_artifact.path), "--dimensions", "8", "--format", "npy"]
    run(app, ["embed", str(texts), "-o", str(tmp_path / "out"), *options])
    rows = np.load(tmp_path / "out" / "embeddings.npy")
    assert rows.shape == (300, 8)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_standard_input_is_read_once_and_resumed_by_its_content(
    tiny_artifact: Artifact, texts: Path, tmp_path: Path
) -> None:
    options = ["--artifact", str(tiny_artifact.path), "-o", str(tmp_path / "out"), "--resume"]
    content = texts.read_bytes()
    for _again in range(2):
        result = run(app, ["embed", "-", *options], input=content)
        assert result.exit_code == 0, result.output
    result = run(app, ["embed", "-", *options], input=content[:-2])
    assert result.exit_code == 1
    assert "was begun with the input - (" in result.stderr


def test_the_copy_of_standard_input_is_deleted(
    tiny_artifact: Artifact, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    options = ("--artifact", tiny_artifact.path, "-o", tmp_path / "out")
    process = start_embed("-", *options, stdin=subprocess.PIPE)
    assert process.communicate(texts.read_text(), timeout=120)[1].endswith("300 rows in 1 parts.\n")
    assert not list((tmp_path / "temporary").iterdir())


def test_wrong_options_are_sentences(texts: Path, tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "out")]
    cases: dict[str, list[str]] = {
        "keeps what --overwrite deletes": ["--resume", "--overwrite"],
        "would delete what other shards": ["--overwrite", "--shard", "0/2"],
        "--ray divides the work itself": ["--ray", "local", "--shard", "0/2"],
        "write a URL as in": ["--server", "localhost:8080"],
        "is not an artifact": ["--artifact", str(tmp_path)],
        "--dimensions is 1000": ["--dimensions", "1000"],
    }
    for sentence, options in cases.items():
        result = run(app, ["embed", str(texts), *out, *options])
        assert result.exit_code == 1
        assert sentence in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_row_that_stops_the_run_can_be_left_out_when_it_goes_on(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    lines = make_texts(100, Random(0))
    lines[55] = ""
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    command = ["embed", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out"), "--rows-per-shard"]
    command += ["10", "--artifact", str(tiny_artifact.path)]
    result = run(app, command)
    assert result.exit_code == 1
    assert f"{tmp_path}/a.txt, row 56: the text is empty." in result.stderr
    assert len(list((tmp_path / "out" / "_parts").iterdir())) == 5
    result = run(app, [*command, "--on-error", "null", "--resume"])
    assert result.exit_code == 0, result.output
    table = pl.read_parquet(tmp_path / "out" / "part-*.parquet")
    assert table.filter(pl.col("error").is_not_null())["row"].to_list() == [55]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_cleanly_and_says_how_to_go_on(
    tiny_artifact: Artifact, tmp_path: Path, number: int
) -> None:
    texts = write_texts(tmp_path / "texts.txt", 20_000, Random(0))
    out = tmp_path / "out"
    command = (texts, "-o", out, "--rows-per-shard", 500, "--artifact", tiny_artifact.path)
    process = start_embed(*command)
    wait_for_parts(out, 2)
    process.send_signal(number)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    kept = re.search(
        r"Stopped\. (\d+) of 40 parts with ([\d,]+) rows are kept; (\d+) rows", message
    )
    assert kept
    assert int(kept[2].replace(",", "")) == 500 * int(kept[1])
    assert int(kept[3]) < 500
    assert " part will be embedded again. Go on with: s2sent embed" in message
    assert message.rstrip().endswith("--resume")
    assert not list(out.rglob(".*.tmp"))
    committed = len(list((out / "_parts").iterdir()))
    assert 2 <= committed < 40
    assert not (out / "_SUCCESS").exists()


@pytest.mark.parametrize(
    "place", ["s2sent.service.bulk.runner.open_writer", "s2sent.service.bulk.output.folder.os.link"]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_a_part_leaves_no_half_of_it(
    place: str,
    number: signal.Signals,
    tiny_artifact: Artifact,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, out = pkgutil.resolve_name(place), tmp_path / "out"

    def call_and_stop(*arguments: Any) -> Any:
        result = call(*arguments)
        signal.raise_signal(number)
        return result

    command = ["embed", str(texts), "--artifact", str(tiny_artifact.path), "-o", str(out)]
    command += ["--rows-per-shard", "10"]
    with monkeypatch.context() as patched:
        patched.setattr(place, call_and_stop)
        result = run(app, command)
    assert result.exit_code == 128 + number, result.output
    whole = {path.name for path in out.glob("part-*")}
    assert len(whole) <= 1  # the part at hand may be finished, the next one is not begun
    assert len(list((out / "_parts").iterdir())) == len(whole)
    assert {path.name for path in out.iterdir()} - whole == {".lock", "_parts", "_manifest.json"}
    assert run(app, [*command, "--resume"]).exit_code == 0
    assert (out / "_SUCCESS").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_waits_for_its_encoder(
    number: signal.Signals, texts: Path, tmp_path: Path
) -> None:
    class Endless(FakeEmbedder):
        def start(self, texts: list[str]) -> Pending:
            return Pending(super().start(texts).embedded, [Future()])

    signals = StopSignals()

    def run_until_stopped() -> None:
        with signals, signals.deferred():
            Timer(0.3, signal.raise_signal, [number]).start()
            embed_files([texts], tmp_path / "out", embedder=Endless(), check=signals.check)

    with pytest.raises(Stopped) as stopped:
        run_until_stopped()
    assert stopped.value.number == number
    assert not list((tmp_path / "out").glob("*part-*"))


def test_a_signal_ends_a_run_whose_service_does_not_answer(texts: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(60)
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
        process = start_embed(texts, "-o", tmp_path / "out", "--server", url)
        for _ in range(2):  # it tries again
            service.accept()[0].close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_runs_that_are_killed_end_in_the_bytes_of_one_that_is_not(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """tests/support/kill_embed.py does this thirty times over the default model."""
    texts = write_texts(tmp_path / "texts.txt", 12_000, Random(0))
    options = ("--rows-per-shard", 400, "--artifact", tiny_artifact.path, "--resume")
    process = start_embed(texts, "-o", tmp_path / "whole", *options)
    assert process.communicate(timeout=120)[1].endswith("12000 rows in 30 parts.\n")
    out = tmp_path / "killed"
    for kills in range(1, 4):
        process = start_embed(texts, "-o", out, *options)
        wait_for_parts(out, 7 * kills)
        process.kill()
        process.communicate()
        assert not (out / "_SUCCESS").exists()
    start_embed(texts, "-o", out, *options).communicate(timeout=120)
    assert contents(out) == contents(tmp_path / "whole")


def wait_for_parts(out: Path, count: int) -> None:
    """Block until so many parts are committed."""
    until = time.monotonic() + 120
    while not (out / "_parts").exists() or len(list((out / "_parts").glob("0*"))) < count:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_service_gives_the_same_vectors(
    tiny_artifact: Artifact, texts: Path, tmp_path: Path
) -> None:
    """With room for one request at a time: the other connections are told to come again."""
    with running_server(tiny_artifact.path, "--max-concurrent-requests", "1") as server:
        for name, where in (
            ("remote", ["--server", server.url]),
            ("local", ["--artifact", str(tiny_artifact.path)]),
        ):
            out = ["-o", str(tmp_path / name), "--format", "npy", "--rows-per-shard", "50"]
            result = run(app, ["embed", str(texts), *out, *where])
            assert result.exit_code == 0, result.output
    local, remote = (np.load(tmp_path / n / "embeddings.npy") for n in ("local", "remote"))
    np.testing.assert_allclose(remote, local, atol=1e-5)
    manifests = [
        json.loads((tmp_path / name / "_manifest.json").read_text()) for name in ("local", "remote")
    ]
    assert manifests[0]["model"] == manifests[1]["model"]
    rows = [pl.read_parquet(tmp_path / name / "rows-*.parquet") for name in ("local", "remote")]
    assert rows[0].equals(rows[1])  # tokens and cuts too


@pytest.mark.parametrize("longest", [4, 40, 256])
def test_batches_hold_each_text_once_within_their_budget(longest: int) -> None:
    lengths = np.random.default_rng(0).integers(1, longest + 1, 3_000).astype(np.int32)
    batches = make_batches(lengths)
    assert sorted(np.concatenate(batches).tolist()) == list(range(3_000))
    for batch in batches:
        assert len(batch) <= BATCH_TEXTS
        assert len(batch) * lengths[batch].max() <= BATCH_TOKENS
