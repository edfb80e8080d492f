"""A folder with its own graph becomes an artifact with the vectors of sentence-transformers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from s2sent.model.export.from_onnx.conversion import export_given_graph
from s2sent.model.export.from_onnx.folder import GivenGraphError
from s2sent.model.export.parity import ParityError
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.given_graphs import Exporter, given_graph, static_encoder
from tests.test_imports import BLOCK

TEXTS = ["the dog runs", "a cat", "the man eats the food and the dog sleeps in the house"]
FAMILIES = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert"]
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "tiny"
    given_graph(folder)
    return folder


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def copied(folder: Path, target: Path) -> Path:
    for path in folder.rglob("*"):
        if path.is_file():
            new = target / path.relative_to(folder)
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("exporter", ["optimum", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_vectors(tmp_path: Path, family: str, exporter: Exporter) -> None:
    encoder = given_graph(tmp_path / "given", family, exporter=exporter)
    artifact = export_given_graph(tmp_path / "given", tmp_path / "made")
    expected = encoder.encode(TEXTS)
    assert np.abs(OnnxEncoder(artifact).encode(TEXTS) - expected).max() <= 1e-5
    manifest = artifact.manifest
    assert manifest.parity["max_abs_diff"] <= 1e-5
    assert (manifest.name, manifest.max_seq_length) == ("given", 64)
    if family == "bert":
        assert manifest.packed
        assert manifest.fused["Attention"] == manifest.backbone["num_blocks"] == 2


def test_the_first_token_and_vectors_with_their_length_are_served(tmp_path: Path) -> None:
    encoder = given_graph(tmp_path / "given", pooling="cls", normalize=False)
    artifact = export_given_graph(tmp_path / "given", tmp_path / "made")
    assert (artifact.manifest.pooling, artifact.manifest.normalize) == ("cls", False)
    vectors = OnnxEncoder(artifact).encode(TEXTS, normalize=False)
    assert np.abs(vectors - encoder.encode(TEXTS)).max() <= 1e-4


def test_prompts_are_taken_over(given: Path, tmp_path: Path) -> None:
    folder = copied(given, tmp_path / "given")
    prompts = {"query": "the man ", "document": ""}
    edit(folder / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    artifact = export_given_graph(folder, tmp_path / "made")
    assert artifact.manifest.prompts == prompts
    plain = OnnxEncoder(export_given_graph(given, tmp_path / "plain"))
    prompted = OnnxEncoder(artifact).encode(TEXTS)
    assert np.abs(prompted - plain.encode([f"the man {text}" for text in TEXTS])).max() <= 1e-5


def test_it_needs_nothing_of_training(given: Path, tmp_path: Path) -> None:
    """In a process in which torch, transformers and our training cannot be imported."""
    blocked = ("torch", "transformers", "sentence_transformers", "optimum", "training", "service")
    code = BLOCK.format(blocked=blocked, modules=())
    code += "from s2sent.model.export.from_onnx.conversion import main\nmain(*sys.argv[1:])\n"
    command = [sys.executable, "-c", code, str(given), str(tmp_path / "made"), "mine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "made/manifest.json").read_text())["name"] == "mine"


def test_a_graph_that_the_passes_change_is_refused(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s2sent.model.export.parity.MAX_ABS_DIFF", 0.0)
    with pytest.raises(ParityError):
        export_given_graph(given, tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("file", "values", "sentence"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by max"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "lower-cases texts"),
    ],
)
def test_what_needs_torch_is_refused_with_the_command_that_helps(
    given: Path, tmp_path: Path, file: str, values: dict[str, Any], sentence: str
) -> None:
    folder = copied(given, tmp_path / "given")
    edit(folder / file, **values)
    with pytest.raises(GivenGraphError, match=f"{sentence}.*s2sent-train export"):
        export_given_graph(folder, tmp_path / "made")


def test_weights_above_the_limit_of_a_protocol_buffer_are_not_converted_with_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in two files, and go into two."""
    encoder = given_graph(tmp_path / "given", exporter="torch")
    path = tmp_path / "given/onnx/model.onnx"
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data")
    limit = path.stat().st_size + 20_000
    assert (path.with_name("model.onnx_data")).stat().st_size > limit
    convert = onnx.version_converter.convert_version

    def limited(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
        if model.ByteSize() > limit:
            raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size")
        return convert(model, version)

    monkeypatch.setattr(onnx.version_converter, "convert_version", limited)
    monkeypatch.setattr("s2sent.model.export.graph.LARGEST_GRAPH", limit)
    artifact = export_given_graph(tmp_path / "given", tmp_path / "made")
    assert artifact.manifest.files["onnx/model.onnx_data"].bytes > limit
    assert np.abs(OnnxEncoder(artifact).encode(TEXTS) - encoder.encode(TEXTS)).max() <= 1e-5


def test_modules_that_are_not_read_are_named(given: Path, tmp_path: Path) -> None:
    folder = copied(given, tmp_path / "given")
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(GivenGraphError, match="holds Transformer, Pooling, Normalize, Dense"):
        export_given_graph(folder, tmp_path / "made")
    (folder / "modules.json").unlink()
    with pytest.raises(GivenGraphError, match=r"has no modules\.json"):
        export_given_graph(folder, tmp_path / "made")


def test_a_graph_that_may_do_more_than_compute_is_refused_before_it_runs(
    given: Path, tmp_path: Path
) -> None:
    folder = copied(given, tmp_path / "given")
    model = onnx.load(folder / "onnx/model.onnx")
    model.graph.node[0].domain = "evil"
    (folder / "onnx/model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(GivenGraphError, match="cannot be served"):
        export_given_graph(folder, tmp_path / "made")


@pytest.mark.parametrize("cut", ["onnx/model.onnx", "tokenizer.json", "config.json"])
def test_a_damaged_file_is_a_sentence(given: Path, tmp_path: Path, cut: str) -> None:
    folder = copied(given, tmp_path / "given")
    (folder / cut).write_bytes((folder / cut).read_bytes()[:100])
    with pytest.raises(GivenGraphError, match=r"cannot be (read|served)"):
        export_given_graph(folder, tmp_path / "made")


@pytest.mark.parametrize("normalize", [True, False])
def test_static_embeddings_keep_their_vectors(tmp_path: Path, normalize: bool) -> None:
    """A table and a mean: no special tokens, no attention, and nothing to pack."""
    encoder = static_encoder(tmp_path / "given", normalize=normalize)
    artifact = export_given_graph(tmp_path / "given", tmp_path / "made")
    vectors = OnnxEncoder(artifact).encode(TEXTS, normalize=normalize)
    assert np.abs(vectors - encoder.encode(TEXTS)).max() <= 1e-5
    assert (artifact.manifest.dim, artifact.manifest.fused) == (24, {})


def test_static_embeddings_of_model2vec_are_read(tmp_path: Path) -> None:
    """Its file calls the table otherwise and may hold halves."""
    encoder = static_encoder(tmp_path / "given")
    weights = next((tmp_path / "given").rglob("model.safetensors"))
    table = load_file(weights)["embedding.weight"]
    save_file({"embeddings": table.astype(np.float16)}, weights)
    artifact = export_given_graph(tmp_path / "given", tmp_path / "made")
    vectors = OnnxEncoder(artifact).encode(TEXTS)
    assert np.abs(vectors - encoder.encode(TEXTS)).max() <= 1e-3


@pytest.mark.parametrize("content", [b"", b"half", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"])
def test_a_damaged_table_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    static_encoder(tmp_path / "given")
    next((tmp_path / "given").rglob("model.safetensors")).write_bytes(content)
    with pytest.raises(GivenGraphError, match=r"model\.safetensors cannot be read"):
        export_given_graph(tmp_path / "given", tmp_path / "made")


def test_a_table_beside_other_tensors_is_refused(tmp_path: Path) -> None:
    """Such as the weights and the mapping of a vocabulary that was quantized."""
    static_encoder(tmp_path / "given")
    weights = next((tmp_path / "given").rglob("model.safetensors"))
    save_file(load_file(weights) | {"mapping": np.zeros(3, np.int64)}, weights)
    with pytest.raises(GivenGraphError, match="mapping.* instead of one table"):
        export_given_graph(tmp_path / "given", tmp_path / "made")


@pytest.mark.parametrize("lost", ["model_type", "num_attention_heads", "hidden_size"])
def test_a_configuration_that_lacks_a_size_is_a_sentence(
    given: Path, tmp_path: Path, lost: str
) -> None:
    folder = copied(given, tmp_path / "given")
    config = json.loads((folder / "config.json").read_text())
    del config[lost]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(GivenGraphError, match=f"does not say {lost}"):
        export_given_graph(folder, tmp_path / "made")


@pytest.mark.parametrize(
    ("file", "values", "sentence"),
    [
        ("config.json", {"num_attention_heads": "two"}, "num_attention_heads: .*valid integer"),
        ("config.json", {"max_position_embeddings": -1}, "max_position_embeddings: .*greater than"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length: .*greater than 0"),
        ("tokenizer_config.json", {"model_max_length": float("nan")}, "model_max_length: .*finite"),
        ("config_sentence_transformers.json", {"prompts": ["query: "]}, "prompts: .*an object"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "prompts.a: .*valid string"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "the "}, "default_prompt_name": "passage"},
            "default_prompt_name 'passage', and its prompts are 'query': correct it",
        ),
    ],
)
def test_a_setting_of_another_kind_is_a_sentence(
    given: Path, tmp_path: Path, file: str, values: dict[str, Any], sentence: str
) -> None:
    folder = copied(given, tmp_path / "given")
    edit(folder / file, **values)
    with pytest.raises(GivenGraphError, match=f"{file}.*{sentence}"):
        export_given_graph(folder, tmp_path / "made")


@pytest.mark.parametrize("path", [None, 1, "..", "/etc", "1_Pooling/../.."])
def test_a_module_outside_of_the_folder_is_refused(
    given: Path, tmp_path: Path, path: object
) -> None:
    folder = copied(given, tmp_path / "given")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(GivenGraphError, match=r"modules\.json cannot be read \(1\.path: "):
        export_given_graph(folder, tmp_path / "made")
