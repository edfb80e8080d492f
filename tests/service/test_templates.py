"""A served model with a template: the text is cut, and never the template, whose tokens count."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.template import Template
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.service.__main__ import app
from tests.support.server_process import ServerProcess, running_server

TEXTS = ["no", "A man plays the guitar", 'is it "red"? ']
LONG = "the dog eats " * 40


@pytest.fixture(scope="module")
def server(decoder_artifact: Artifact) -> Iterator[ServerProcess]:
    with running_server(decoder_artifact.path, "--no-log-requests") as server:
        yield server


@pytest.fixture
def template(decoder_artifact: Artifact) -> Template:
    template = decoder_artifact.manifest.template
    assert template is not None
    return template


def embedded(server: ServerProcess, inputs: Any, **body: Any) -> np.ndarray:
    answer = server.client.post("/embed", json={"inputs": inputs, **body})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json(), dtype=np.float32)


@pytest.mark.parametrize("depth", [None, 3])
def test_texts_have_the_encoders_vectors_alone_and_together(
    server: ServerProcess, decoder_artifact: Artifact, depth: int | None
) -> None:
    expected = OnnxEncoder(decoder_artifact).encode([*TEXTS, LONG], depth=depth)
    together = embedded(server, [*TEXTS, LONG], depth=depth)
    np.testing.assert_allclose(together, expected, atol=1e-6)
    alone = [embedded(server, text, depth=depth)[0] for text in [*TEXTS, LONG]]
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_info_says_what_is_left_for_a_text(server: ServerProcess, template: Template) -> None:
    info = server.client.get("/info").json()
    assert info["max_input_length"] == 32
    answer = server.client.post("/embed", json={"inputs": LONG, "truncate": False})
    assert answer.status_code == 422
    limit = 32 + template.length
    assert f"{template.length} of them the template's; the limit is {limit}" in answer.text


def test_the_template_counts_as_tokens(server: ServerProcess, template: Template) -> None:
    usage = server.client.post("/v1/embeddings", json={"input": "no", "model": "x"}).json()["usage"]
    assert usage["prompt_tokens"] > template.length


def test_tokenize_shows_the_template_and_its_ids_embed_as_the_text(
    server: ServerProcess, template: Template
) -> None:
    answer = server.client.post("/tokenize", json={"inputs": TEXTS}).json()
    rows = [[token["id"] for token in tokens] for tokens in answer]
    for tokens, ids in zip(answer, rows, strict=True):
        assert ids[: len(template.prefix)] == [*template.prefix]
        assert ids[-len(template.suffix) :] == [*template.suffix]
        around = [*tokens[: len(template.prefix)], *tokens[-len(template.suffix) :]]
        assert all(token["special"] and token["start"] is None for token in around)
    np.testing.assert_array_equal(embedded(server, rows), embedded(server, TEXTS))


def test_ids_without_the_template_are_refused_with_the_cure(server: ServerProcess) -> None:
    answer = server.client.post("/embed", json={"inputs": [5, 6]})
    assert answer.status_code == 422
    assert "does not begin and end with the tokens of this model's template" in answer.text
    assert "/tokenize" in answer.text


def test_the_bulk_command_gives_the_same_vectors(
    decoder_artifact: Artifact, tmp_path: Path
) -> None:
    lines = [*(text.strip() for text in TEXTS), LONG.strip()]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    arguments = ["-o", str(tmp_path / "out"), "--artifact", str(decoder_artifact.path)]
    result = CliRunner().invoke(app, ["embed", str(tmp_path / "texts.txt"), *arguments])
    assert result.exit_code == 0, result.output
    found = pl.read_parquet(tmp_path / "out" / "part-*.parquet")["embedding"].to_numpy()
    np.testing.assert_allclose(found, OnnxEncoder(decoder_artifact).encode(lines), atol=1e-6)
