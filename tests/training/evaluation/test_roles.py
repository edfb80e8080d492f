"""Retrieval is scored as a model is used: with its prompts for queries and for documents."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.manifest import MANIFEST
from s2sent.model.artifact.reader import Artifact
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.evaluation.depths.encoders import open_depths
from s2sent.training.evaluation.encoders import load_checkpoint, open_encoder, torch_encode
from s2sent.training.evaluation.retrieval import retrieval_scores, score_retrieval
from s2sent.training.evaluation.sts import CachedEncode, Encode, roles
from tests.support.server_process import running_server
from tests.support.tiny_data import SENTENCES, write_table

QUERY, DOCUMENT = "the two young men in the city: ", "a book: "
SETTINGS = "config_sentence_transformers.json"
QUERIES, DOCUMENTS = SENTENCES[:20], SENTENCES[1:21]


@pytest.fixture
def prompted(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint with prompts, of which that of neither role is the default."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "prompted"))
    settings = json.loads((folder / SETTINGS).read_text())
    settings["prompts"] = {"query": QUERY, "document": DOCUMENT, "other": "green: "}
    settings["default_prompt_name"] = "other"
    (folder / SETTINGS).write_text(json.dumps(settings))
    return folder


@pytest.fixture
def prompted_artifact(prompted: Path, tiny_artifact: Artifact, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_artifact.path, tmp_path / "artifact"))
    manifest = json.loads((folder / MANIFEST).read_text())
    settings = json.loads((prompted / SETTINGS).read_text())
    manifest |= {name: settings[name] for name in ("prompts", "default_prompt_name")}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def assert_reads_as_the_library(encode: Encode, folder: Path) -> None:
    library = load_checkpoint(folder)
    as_query, as_document = roles(encode)
    for ours, theirs in (
        (encode, library.encode),
        (as_query, library.encode_query),
        (as_document, library.encode_document),
    ):
        expected = theirs(SENTENCES[:9], normalize_embeddings=True)
        np.testing.assert_allclose(ours(SENTENCES[:9]), expected, atol=1e-5)
    assert np.abs(as_query(["a dog"]) - as_document(["a dog"])).max() > 1e-3


def test_a_checkpoint_reads_queries_and_documents_as_the_library_does(prompted: Path) -> None:
    assert_reads_as_the_library(open_encoder(str(prompted)), prompted)
    assert_reads_as_the_library(CachedEncode(open_encoder(str(prompted))), prompted)


def test_an_artifact_and_its_service_do_too(prompted: Path, prompted_artifact: Path) -> None:
    assert_reads_as_the_library(open_encoder(str(prompted_artifact)), prompted)
    with running_server(prompted_artifact) as server:
        assert_reads_as_the_library(open_encoder(server.url), prompted)


def test_retrieval_is_scored_with_the_prompts(prompted: Path, tmp_path: Path) -> None:
    rows = [*zip(QUERIES, DOCUMENTS, strict=True)]
    file = write_table(tmp_path / "retrieval.tsv", [("query", "document"), *rows])
    library = load_checkpoint(prompted)
    queries, documents = library.encode_query(QUERIES), library.encode_document(DOCUMENTS)
    expected = retrieval_scores(np.asarray(queries), np.asarray(documents))
    plain = torch_encode(library).encode
    assert expected != retrieval_scores(plain(QUERIES), plain(DOCUMENTS))
    assert score_retrieval(open_encoder(str(prompted)), file) == expected
    assert score_retrieval(CachedEncode(open_encoder(str(prompted))), file) == expected


@pytest.mark.parametrize("kind", ["checkpoint", "artifact"])
def test_every_depth_reads_them_with_the_prompts(
    exits_checkpoint: Path, exits_artifact: Artifact, tmp_path: Path, kind: str
) -> None:
    prompts = {"query": QUERY, "document": DOCUMENT}
    folder = exits_checkpoint if kind == "checkpoint" else exits_artifact.path
    folder = Path(shutil.copytree(folder, tmp_path / kind))
    file = folder / (SETTINGS if kind == "checkpoint" else MANIFEST)
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"prompts": prompts, "default_prompt_name": None})
    )
    library = load_checkpoint(exits_checkpoint)

    def expected(prompt: str) -> Callable[[int], NDArray[np.float32]]:
        rows = encode_exits(library, [prompt + text for text in SENTENCES[:9]], [2, 3, 4])
        return lambda depth: rows[depth] / np.linalg.norm(rows[depth], axis=1, keepdims=True)

    for depth, encode in open_depths(folder).at.items():
        as_query, as_document = roles(encode)
        for ours, of in ((encode, ""), (as_query, QUERY), (as_document, DOCUMENT)):
            found = ours(SENTENCES[:9])
            found = found / np.linalg.norm(found, axis=1, keepdims=True)
            np.testing.assert_allclose(found, expected(of)(depth), atol=1e-4)


def test_exits_have_the_default_prompt_as_full_depth_has(exits_checkpoint: Path) -> None:
    library = load_checkpoint(exits_checkpoint)
    library.prompts, library.default_prompt_name = {"query": QUERY}, "query"
    whole = encode_exits(library, SENTENCES[:9], [2])[6]
    np.testing.assert_allclose(whole, library.encode(SENTENCES[:9]), atol=1e-4)
