"""Exported twins: one graph whose embedding is the sum of both towers, served like any other."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from sentence_transformers import SentenceTransformer

from s2sent.model.artifact.manifest import MANIFEST, MODEL, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.int8.conversion import convert_to_int8
from s2sent.model.export.options import ExportError, ExportOptions, Precision
from s2sent.model.export.twins import export_twins
from s2sent.model.network.twins import get_twins, load_twin_encoder
from s2sent.model.runtime.encoder import LONG_TEXT, OnnxEncoder
from s2sent.model.runtime.lookup_tables import read_lookup_tables
from s2sent.training.files.record import write_record
from tests.support.few import FEW, FEW_SENTENCES
from tests.support.tiny_twins import WIDTH, tiny_twins

TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twins with a selector in each tower, and a record."""
    folder = tmp_path_factory.mktemp("twins")
    tiny_twins(folder).save(str(folder / "twins"), create_model_card=False)
    write_record(folder / "twins", {"seed": 7})
    return folder / "twins"


@pytest.fixture(scope="module")
def artifact(checkpoint: Path) -> Artifact:
    return export_twins(checkpoint, checkpoint.parent / "artifact", replace(FEW, name="twins"))


def torch_embeddings(encoder: SentenceTransformer) -> np.ndarray:
    return np.asarray(encoder.encode(TEXTS, normalize_embeddings=True))


def test_the_artifact_gives_the_sum_of_the_towers(checkpoint: Path, artifact: Artifact) -> None:
    """Normalised and not, alone and in a batch with padding, within 1e-5 of torch."""
    twins = load_twin_encoder(checkpoint)
    served = OnnxEncoder(artifact)
    expected = torch_embeddings(twins)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=1e-5)
    alone = np.concatenate([served.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, expected, atol=1e-5)
    total = sum(tower.encode(TEXTS) for tower in get_twins(twins).towers)
    np.testing.assert_allclose(served.encode(TEXTS, normalize=False), total, atol=2e-5)


def test_long_texts_keep_their_attention_without_scores(tmp_path: Path) -> None:
    """Its choice between two forms stands in branches, which read the towers' values."""
    twins = tiny_twins(tmp_path, num_layers=3, max_seq_length=LONG_TEXT + 8)
    twins.save(str(tmp_path / "twins"), create_model_card=False)
    made = export_twins(tmp_path / "twins", tmp_path / "artifact", FEW)
    graph = onnx.load(made.path / MODEL).graph
    assert sum(node.op_type == "If" for node in graph.node) == 2 * (3 + 1)  # and the mask's
    texts = [*TEXTS, "a cat " * LONG_TEXT]
    expected = np.asarray(twins.encode(texts, normalize_embeddings=True))
    np.testing.assert_allclose(OnnxEncoder(made).encode(texts), expected, atol=1e-5)


def test_the_manifest_says_that_it_is_a_sum_and_how_near_each_tower_is(artifact: Artifact) -> None:
    manifest = artifact.manifest
    assert [tower["name"] for tower in manifest.towers] == ["tower_a", "tower_b"]
    reports = [manifest.parity, *(tower["parity"] for tower in manifest.towers)]
    assert all(0 < report["max_abs_diff"] <= 1e-5 for report in reports)
    assert all(report["batch_max_abs_diff"] <= 1e-5 for report in reports)
    assert all(report["sentences"] == len(FEW_SENTENCES) + 1 for report in reports)
    assert manifest.fused["Attention"] == 8  # four blocks each
    assert manifest.packed
    assert manifest.normalize
    assert manifest.training["seed"] == 7
    assert (manifest.dim, manifest.max_seq_length) == (WIDTH, 64)


def test_the_canary_has_no_prompt(tmp_path: Path) -> None:
    """A service computes it so, whatever prompt stands before other texts."""
    twins = tiny_twins(tmp_path, selector=False, num_layers=2)
    twins.prompts, twins.default_prompt_name = {"query": "the cat sings to "}, "query"
    twins.save(str(tmp_path / "twins"), create_model_card=False)
    canary = export_twins(tmp_path / "twins", tmp_path / "artifact", FEW).canary
    expected = twins.encode(canary.text, prompt="", normalize_embeddings=True)
    np.testing.assert_allclose(canary.embedding, expected, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_prompts_are_attended_to_and_left_out_of_both_poolings(
    tmp_path: Path, precision: Precision
) -> None:
    """As the folder's own code does it in sentence-transformers."""
    prompts = {"query": "what is in the house: ", "document": "the book reads: "}
    twins = tiny_twins(tmp_path, selector=False, num_layers=2)
    for encoder in (twins, *get_twins(twins).towers):
        encoder.prompts = {**prompts}
    for tower in get_twins(twins).towers:
        tower.set_pooling_include_prompt(False)
    folder = tmp_path / "twins"
    twins.save(str(folder), create_model_card=False)
    made = export_twins(folder, tmp_path / "artifact", replace(FEW, precision=precision))
    served, least = OnnxEncoder(made), 0.99 if precision == "int8" else 1 - 1e-6
    library: SentenceTransformer = SentenceTransformer(
        str(folder), trust_remote_code=True, device="cpu"
    )
    for name, prompt in prompts.items():
        expected = library.encode(TEXTS, prompt_name=name)
        for size in (1, len(TEXTS)):
            rows = served.encode(TEXTS, prompt_name=name, batch_size=size)
            assert (rows * expected).sum(1).min() >= least
        pooled = served.encode([prompt + text for text in TEXTS])
        assert (pooled * expected).sum(1).min() < 0.99


def test_a_manifest_from_before_towers_loads(artifact: Artifact) -> None:
    content = json.loads((artifact.path / MANIFEST).read_text())
    assert Manifest.from_json(json.dumps(content)) == artifact.manifest
    del content["towers"]
    assert Manifest.from_json(json.dumps(content)).towers == ()


def test_the_graph_has_the_contract_of_every_other(artifact: Artifact) -> None:
    """The same inputs once, the two outputs, and no node whose result nobody reads."""
    graph = onnx.load(artifact.path / MODEL).graph
    assert [value.name for value in graph.input] == [*artifact.manifest.inputs]
    assert [value.name for value in graph.output] == ["sentence_embedding", "pooled_embedding"]
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in graph.output}
    assert all(read.intersection(node.output) for node in graph.node)
    tables = read_lookup_tables((artifact.path / MODEL).read_bytes())
    words = [name for name, table in tables.items() if len(table) > 128]
    assert {name.split("/")[0] for name in words} == {"tower_a", "tower_b"}


@pytest.mark.parametrize("precision", ["weight-int8", "int8"])
def test_twins_are_exported_in_int8(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    """Each tower and the sum pass the check that an export in this precision has to pass."""
    options = replace(FEW, precision=precision)  # type: ignore[arg-type]  # parametrized
    rounded = export_twins(checkpoint, tmp_path / "rounded", options)
    reports = [rounded.manifest.parity, *(t["parity"] for t in rounded.manifest.towers)]
    assert all(report["batch_max_abs_diff"] <= 1e-5 for report in reports)
    assert all(0.99 <= report["min_cosine"] < 0.99999 for report in reports)
    assert rounded.manifest.precision == precision


def test_an_artifact_of_twins_can_be_converted_to_int8(artifact: Artifact, tmp_path: Path) -> None:
    """Both towers' products are rounded, and the gates of both poolings are not."""
    converted = convert_to_int8(artifact, tmp_path / "int8", sentences=FEW_SENTENCES)
    assert converted.manifest.towers == artifact.manifest.towers
    nodes = onnx.load(converted.path / MODEL).graph.node
    names = [node.input[1] for node in nodes if node.op_type == "MatMulIntegerToFloat"]
    counts = [sum(f"{tower}/" in name for name in names) for tower in ("tower_a", "tower_b")]
    assert counts[0] == counts[1] > 0
    assert not any("pooling/" in name for name in names)


def test_twins_without_normalize_give_the_sum_itself(checkpoint: Path, tmp_path: Path) -> None:
    twins = load_twin_encoder(checkpoint)
    del twins[1]
    twins.save(str(tmp_path / "plain"), create_model_card=False)
    made = export_twins(tmp_path / "plain", tmp_path / "artifact", FEW)
    assert not made.manifest.normalize
    assert not any(node.op_type == "ReduceL2" for node in onnx.load(made.path / MODEL).graph.node)


def test_what_cannot_be_exported_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "artifact"
    with pytest.raises(ExportError, match=r"depths are 2: leave them out, or distil"):
        export_twins(checkpoint, target, ExportOptions(depths=(2,)))
    with pytest.raises(ValueError, match="TwinEncoder"):  # for a caller that knows no twins
        export_checkpoint(checkpoint, target, ExportOptions())
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_that_is_there_is_kept(checkpoint: Path, artifact: Artifact) -> None:
    with pytest.raises(Exception, match="exists"):
        export_twins(checkpoint, artifact.path, replace(ExportOptions(), name="other"))
    assert Artifact.open(artifact.path).manifest.name == "twins"
