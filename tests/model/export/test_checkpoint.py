"""An export that finished serves torch's vectors; one that cannot leaves nothing behind."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import CONFIG, MANIFEST, MODEL, TOKENIZER, WEIGHTS
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export import graph as graphs
from s2sent.model.export.checkpoint import TRAINING_RECORD, export_checkpoint
from s2sent.model.export.conversion import ConversionError
from s2sent.model.export.graph import GraphError
from s2sent.model.export.int8.conversion import convert_to_int8
from s2sent.model.export.options import ExportError, ExportOptions, Precision
from s2sent.model.export.parity import ParityError, parity_sentences
from s2sent.model.network.encoder import build_encoder, load_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.few import FEW
from tests.support.tiny import tiny_backbone

WIDTH, LAYERS = 32, 3
TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3]


def a_checkpoint(folder: Path, family: str = "bert", **options: Any) -> Path:
    backbone = tiny_backbone(folder / "backbone", family, width=WIDTH, num_layers=LAYERS)
    config = SelectorConfig.preset("default", width=WIDTH, reduction=4, **options)
    encoder = build_encoder(backbone, config, max_seq_length=64)
    encoder.save(str(folder / "checkpoint"))
    return folder / "checkpoint"


def a_plain_checkpoint(folder: Path, pooling: str = "mean", *, normalize: bool = True) -> Path:
    transformer = Transformer(
        str(tiny_backbone(folder / "backbone", width=WIDTH, num_layers=LAYERS))
    )
    transformer.max_seq_length = 64
    modules = [transformer, Pooling(WIDTH, pooling), *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules).save(str(folder / "plain"))
    return folder / "plain"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = a_checkpoint(tmp_path_factory.mktemp("export"))
    (folder / TRAINING_RECORD).write_text(json.dumps({"seed": 7, "corpus": "abc"}))
    return folder


@pytest.fixture(scope="module")
def artifact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    target = tmp_path_factory.mktemp("artifact") / "tiny"
    return export_checkpoint(checkpoint, target, ExportOptions(name="tiny"))


def torch_embeddings(encoder: SentenceTransformer, texts: list[str]) -> np.ndarray:
    return np.asarray(encoder.encode(texts, normalize_embeddings=True, convert_to_numpy=True))


def test_the_artifact_gives_the_checkpoints_vectors(checkpoint: Path, artifact: Artifact) -> None:
    """Alone and together, within 1e-5 of torch."""
    expected = torch_embeddings(load_encoder(checkpoint), TEXTS)
    served = OnnxEncoder(artifact)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=1e-5)
    alone = np.concatenate([served.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, expected, atol=1e-5)


def test_the_graph_keeps_the_contract_of_other_engines(artifact: Artifact) -> None:
    """int64 inputs and a first output sentence_embedding [batch, dim], normalised, any shape."""
    session = ort.InferenceSession(str(artifact.onnx_path), providers=["CPUExecutionProvider"])
    assert [(i.name, i.type) for i in session.get_inputs()] == [
        ("input_ids", "tensor(int64)"),
        ("attention_mask", "tensor(int64)"),
        ("token_type_ids", "tensor(int64)"),
    ]
    assert [output.name for output in session.get_outputs()] == [
        "sentence_embedding",
        "pooled_embedding",
        "block_weights",
    ]
    for shape in [(1, 1), (2, 16), (7, 64)]:
        ones = np.ones(shape, dtype=np.int64)
        inputs = {"input_ids": ones, "attention_mask": ones, "token_type_ids": 0 * ones}
        embedding = session.run(["sentence_embedding"], inputs)[0]
        assert embedding.shape == (shape[0], WIDTH)
        np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, atol=1e-6)


def test_padding_on_the_left_gives_the_selector_the_same_tokens(artifact: Artifact) -> None:
    """Engines that pad on the left get a vector too, and it is finite."""
    session = ort.InferenceSession(str(artifact.onnx_path), providers=["CPUExecutionProvider"])
    ids = np.array([[0, 0, 2, 9, 3]], dtype=np.int64)
    mask = (ids > 0).astype(np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    assert np.isfinite(session.run(None, inputs)[0]).all()


def test_the_manifest_says_what_was_built(checkpoint: Path, artifact: Artifact) -> None:
    """Selector, training record, parity and fusion counts are those of this export."""
    manifest = artifact.manifest
    assert (manifest.name, manifest.dim, manifest.max_seq_length) == ("tiny", WIDTH, 64)
    assert manifest.selector is not None
    assert manifest.selector["num_blocks"] == 3
    assert manifest.selector["reduction"] == 4
    assert manifest.training == {"seed": 7, "corpus": "abc"}
    assert manifest.fused["Attention"] == LAYERS
    assert manifest.fused["LayerNormalization"] == 2 * LAYERS
    assert manifest.parity["sentences"] == len(parity_sentences()) + 1
    assert 0 <= manifest.parity["max_abs_diff"] <= 1e-5
    assert {MODEL, TOKENIZER, CONFIG, "tokenizer_config.json"} <= set(manifest.files)


def test_the_canary_is_torchs_vector(checkpoint: Path, artifact: Artifact) -> None:
    """A loaded session can be proved right without torch."""
    canary = artifact.canary
    expected = torch_embeddings(load_encoder(checkpoint), [canary.text])[0]
    np.testing.assert_allclose(canary.embedding, expected, atol=1e-7)
    np.testing.assert_allclose(OnnxEncoder(artifact).encode([canary.text])[0], expected, atol=1e-5)


def test_unfused_attention_is_refused_unless_allowed(tmp_path: Path) -> None:
    """For a GPU MPNet is exported as transformers has it, with a bias that no kernel knows."""
    checkpoint = a_checkpoint(tmp_path, "mpnet")
    with pytest.raises(GraphError, match="0 of 3 attention blocks were fused"):
        export_checkpoint(checkpoint, tmp_path / "artifact", ExportOptions(precision="fp16"))
    assert not (tmp_path / "artifact").exists()
    options = replace(FEW, precision="fp16", allow_unfused_attention=True)
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    cosines = OnnxEncoder(exported).encode(TEXTS) * torch_embeddings(
        load_encoder(checkpoint), TEXTS
    )
    assert cosines.sum(axis=1).min() > 0.9995


def test_a_graph_too_large_for_one_file_is_two(
    checkpoint: Path, artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same vectors; it is no int8, nor becomes it."""
    monkeypatch.setattr(graphs, "LARGEST_GRAPH", 10_000)
    large = export_checkpoint(checkpoint, tmp_path / "large", FEW)
    assert large.manifest.files[WEIGHTS].bytes > 10_000
    np.testing.assert_array_equal(
        OnnxEncoder(large).encode(TEXTS), OnnxEncoder(artifact).encode(TEXTS)
    )
    with pytest.raises(ConversionError, match="is fp32, in two files: int8 needs"):
        convert_to_int8(large, tmp_path / "int8")
    with pytest.raises(ExportError, match=r"up to 10,000\. Choose weight-int8"):
        export_checkpoint(checkpoint, tmp_path / "int8", ExportOptions(precision="int8"))
    assert {path.name for path in tmp_path.iterdir()} == {"large"}


def test_int8_weights_are_small_and_their_rounding_is_reported(
    checkpoint: Path, artifact: Artifact, tmp_path: Path
) -> None:
    """Fewer bytes, equal to torch with the same rounded weights, close to the checkpoint."""
    options = ExportOptions(precision="weight-int8", sentences=parity_sentences()[:20])
    rounded = export_checkpoint(checkpoint, tmp_path / "int8", options)
    size = rounded.manifest.files[MODEL].bytes
    assert size < 0.6 * artifact.manifest.files[MODEL].bytes
    assert rounded.manifest.parity["max_abs_diff"] <= 1e-5
    assert 0.997 <= rounded.manifest.parity["min_cosine"] < 1


@pytest.fixture(scope="module")
def half(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    target = tmp_path_factory.mktemp("half") / "fp16"
    return export_checkpoint(checkpoint, target, replace(FEW, precision="fp16"))


def test_half_precision_keeps_float_inputs_and_outputs(half: Artifact) -> None:
    """fp16 inside, float32 outside, cosine at least 0.9995."""
    graph = onnx.load(half.onnx_path).graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds
    assert {output.type.tensor_type.elem_type for output in graph.output} == {
        onnx.TensorProto.FLOAT
    }
    assert half.manifest.parity["min_cosine"] >= 0.9995


def test_for_a_gpu_sums_are_part_of_their_layer_norms(half: Artifact) -> None:
    """On a CPU ONNX Runtime's operator of both is the slower one; there they stay apart."""
    assert half.manifest.fused["SkipLayerNormalization"] == 2 * LAYERS
    assert "LayerNormalization" not in half.manifest.fused


def test_half_precision_leaves_no_float32_between_the_ids_and_the_pooling(half: Artifact) -> None:
    """Every weight of an encoder operator is fp16, and states become float32 once, at the end."""
    graph = onnx.load(half.onnx_path).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    encoder = [node for node in graph.node if node.op_type in half.manifest.fused]
    encoder += [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in kinds]
    assert len(encoder) == sum(half.manifest.fused.values()) + 3 * LAYERS  # products
    weights = {kinds[name] for node in encoder for name in node.input if name in kinds}
    assert weights == {onnx.TensorProto.FLOAT16}
    sources = {made_by[name].op_type for node in encoder for name in node.input if name in made_by}
    casts = [made_by[name] for node in encoder for name in node.input if name in made_by]
    assert "Cast" in sources  # the ids and the mask, to what the kernels read
    assert {node.input[0] for node in casts if node.op_type == "Cast"} == set(half.manifest.inputs)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_attention_in_half_precision_reads_lengths(tmp_path: Path, family: str) -> None:
    """With a mask of two dimensions ONNX Runtime's CUDA attention is many kernels, not one."""
    checkpoint = a_checkpoint(tmp_path, family)
    exported = export_checkpoint(checkpoint, tmp_path / "half", replace(FEW, precision="fp16"))
    model = onnx.load(exported.onnx_path)
    masks = {node.input[3] for node in model.graph.node if node.op_type == "Attention"}
    assert len(masks) == 1
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(masks.pop()))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0]])
    lengths = session.run(None, dict.fromkeys(exported.manifest.inputs, mask))[-1]
    assert lengths.tolist() == [3, 1]


def test_standard_operators_are_all_there_are_when_asked_for(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Other runtimes know no operators of ONNX Runtime's own."""
    options = replace(FEW, standard_operators=True)
    exported = export_checkpoint(checkpoint, tmp_path / "standard", options)
    assert exported.manifest.fused == {}
    assert {node.domain for node in onnx.load(exported.onnx_path).graph.node} <= {"", "ai.onnx"}
    expected = torch_embeddings(load_encoder(checkpoint), TEXTS)
    np.testing.assert_allclose(OnnxEncoder(exported).encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"num_frequencies": 1},
        {"num_frequencies": 16, "num_blocks": 2},
        {"num_blocks": 1, "weight_norm": "none"},
        {"spatial_selection": "1d", "weight_norm": "none"},
        {"dct_norm": "ortho", "activation": "tanh"},
        {"norm": "layer"},
        {"block_choice": "skip_last"},
        {"input_norm": "length"},
    ],
    ids=str,
)
def test_every_gated_selector_exports(tmp_path: Path, options: dict[str, Any]) -> None:
    """Parity is the export's own condition, so finishing is the assertion."""
    checkpoint = a_checkpoint(tmp_path, **options)
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", FEW)
    selector = exported.manifest.selector or {}
    assert {name: selector[name] for name in options} == options


@pytest.mark.parametrize("precision", ["fp32", "fp16", "weight-int8", "int8"])
def test_a_checkpoint_without_selector_exports_in_every_precision(
    tmp_path: Path, precision: Precision
) -> None:
    """Parity is the export's own condition; the manifest says that there is no selector."""
    plain = a_plain_checkpoint(tmp_path)
    exported = export_checkpoint(plain, tmp_path / "artifact", replace(FEW, precision=precision))
    assert exported.manifest.selector is None
    assert exported.manifest.packed == (precision != "fp16")
    assert exported.manifest.exact_without_vnni == (precision == "int8")
    assert exported.manifest.fused["Attention"] == LAYERS
    assert Artifact.open(exported.path).manifest == exported.manifest


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", False), ("cls", True)])
def test_a_plain_artifact_gives_sentence_transformers_vectors(
    tmp_path: Path, pooling: str, normalize: bool
) -> None:
    """Of the untouched library, with its own lengths where the checkpoint does not normalise."""
    plain = a_plain_checkpoint(tmp_path, pooling, normalize=normalize)
    exported = export_checkpoint(plain, tmp_path / "artifact", FEW)
    assert (exported.manifest.pooling, exported.manifest.normalize) == (pooling, normalize)
    modes = json.loads((exported.path / "1_Pooling/config.json").read_text())
    assert [mode for mode, is_on in modes.items() if is_on is True] == [
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[pooling]
    ]
    expected = SentenceTransformer(str(plain), device="cpu").encode(TEXTS)
    served = OnnxEncoder(exported).encode(TEXTS, normalize=normalize)
    np.testing.assert_allclose(served, expected, atol=1e-5)


@pytest.mark.parametrize("options", [{"mask": "none"}, {"weight_norm": "global"}], ids=str)
def test_a_selector_that_depends_on_its_batch_is_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The promise of an artifact cannot be kept by the published code's normaliser or squeeze."""
    checkpoint = a_checkpoint(tmp_path, **options)
    with pytest.raises(ExportError, match="depend on its batch"):
        export_checkpoint(checkpoint, tmp_path / "artifact", ExportOptions())


def test_states_by_their_root_mean_square_are_refused_where_tokens_are_padded(
    tmp_path: Path,
) -> None:
    """As the graph of a BERT is traced; ONNX Runtime's optimiser fails on it."""
    checkpoint = a_checkpoint(tmp_path, input_norm="rms")
    with pytest.raises(ExportError, match="input_norm is 'rms'.*of a bert cannot be fused"):
        export_checkpoint(checkpoint, tmp_path / "artifact", ExportOptions())
    options = replace(FEW, standard_operators=True)  # nothing is optimised
    exported = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    assert exported.manifest.parity["max_abs_diff"] < 1e-5


def test_a_graph_that_differs_from_torch_never_becomes_an_artifact(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound that nothing can meet, the export fails and leaves no folder."""
    monkeypatch.setattr(
        "s2sent.model.export.parity.MAX_ABS_DIFF", 0.0
    )  # nothing is equal to the last bit
    with pytest.raises(ParityError, match="ONNX differs from torch by"):
        export_checkpoint(checkpoint, tmp_path / "artifact", FEW)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_artifact_is_kept_unless_overwriting_is_allowed(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The message says so; the old files stay."""
    target = tmp_path / "artifact"
    target.mkdir()
    (target / MANIFEST).write_text("precious")
    with pytest.raises(ArtifactError, match="exists"):
        export_checkpoint(checkpoint, target, ExportOptions())
    assert (target / MANIFEST).read_text() == "precious"


def test_an_unknown_precision_is_refused_by_name() -> None:
    """Before anything is loaded."""
    wrong: Precision = "int4"  # type: ignore[assignment]  # what a caller without types may pass
    with pytest.raises(ExportError, match="'int4' is not one of fp32, fp16, weight-int8, int8"):
        ExportOptions(precision=wrong)
