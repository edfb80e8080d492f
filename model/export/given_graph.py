"""An artifact of a folder that holds its own ONNX graph, without torch.

    onnx/model.onnx -> pooling behind its states -> fuse, pack -> attention -> compared with the
        graph as it came, pooled by numpy -> sealed folder

Such folders are what optimum and the hub's export tools write beside a sentence-transformers
checkpoint. `model.export.checkpoint` exports the others.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.utils import Extractor

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.graph_policy import GraphRefused, check_graph
from s2sent.model.artifact.manifest import CANARY, CONFIG, MODEL, TOKENIZER, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export import graph
from s2sent.model.export.cpu.long_attention import spare_scores
from s2sent.model.export.cpu.masked_attention import attend_by_standard_operator
from s2sent.model.export.cpu.packing import add_biases_in_products, pack
from s2sent.model.export.parity import ParityError, check_parity, parity_sentences
from s2sent.model.runtime.encoder import (
    LEAST_NORM,
    LONG_TEXT,
    POOLED_OUTPUT,
    OnnxEncoder,
    padded_inputs,
)
from s2sent.model.runtime.tokenizer import Tokenizer

STATES = "block_states"  # [batch, length, width], what the pooling reads
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATE_OUTPUTS = ("last_hidden_state", "token_embeddings")  # as optimum names them
CANARY_TEXT = "A canary sings while the air is good."
Embed = Callable[[Sequence[str], str], NDArray[np.float32]]  # texts behind a prompt -> [n, dim]
LONGEST = 4096  # tokens that are read where only the positions bound them
EXPORT = "install torch with `make train` and export the checkpoint with s2sent-train export"
_COPIED = ("tokenizer_config.json", "special_tokens_map.json")
_TRANSFORMER, _POOLING, _NORMALIZE = "Transformer", "Pooling", "Normalize"
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class GivenGraphError(Exception):
    """A folder whose graph cannot be served as it is; the message says why and what to do."""


@dataclass(frozen=True)
class GivenEncoder:
    """What a folder's settings say of its encoder."""

    folder: Path
    config: dict[str, Any]
    pooling: str
    normalize: bool
    max_seq_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    tokenizer: bytes

    @property
    def width(self) -> int:
        """Numbers of a token's state."""
        return int(self.config.get("hidden_size") or self.config["dim"])


def export_given_graph(folder: Path, target: Path, *, name: str = "") -> Artifact:
    """Write the graph of ``folder`` as an artifact at ``target``, for a CPU, in float32.

    It has to reproduce the vectors of the graph as it came within 1e-5, alone and in mixed batches.
    Raises `GivenGraphError`, `model.export.graph.GraphError`, `model.export.parity.ParityError` or
    `model.artifact.errors.ArtifactError`, and then leaves ``target`` as it was.
    """
    encoder = read_encoder(folder)
    model = _read_graph(folder)
    inputs = tuple(value.name for value in model.graph.input)
    reference = _reference(encoder, model, inputs)
    with staged(target) as staging:
        (staging / MODEL).parent.mkdir(parents=True)
        fused, packed = _write_graph(encoder, model, inputs, staging / MODEL)
        _write_companions(encoder, staging, reference)
        manifest = Manifest(
            name=name or folder.name,
            dim=encoder.width,
            max_seq_length=encoder.max_seq_length,
            pooling=encoder.pooling,
            normalize=encoder.normalize,
            precision="fp32",
            inputs=inputs,
            selector=None,
            backbone={"architecture": encoder.config["model_type"], "num_blocks": _blocks(encoder)},
            prompts=encoder.prompts,
            training={},
            scores={},
            parity={},
            fused=fused,
            packed=packed,
            versions={each: version(each) for each in ("onnx", "onnxruntime")},
            files={},
            default_prompt_name=encoder.default_prompt_name,
        )
        served = OnnxEncoder(Artifact(staging, manifest))
        sentences = [*parity_sentences(), " ".join(parity_sentences())]
        expected = reference(sentences, manifest.prompt())
        report = check_parity(
            "fp32", sentences, onnx=served.encode, torch=expected, unrounded=expected
        )
        seal(staging, replace(manifest, parity=asdict(report)))
    return Artifact.open(target)


def read_encoder(folder: Path) -> GivenEncoder:
    """The settings of a sentence-transformers folder; raises `GivenGraphError` for other encoders.

    Transformer, Pooling by mean or the first token, and Normalize are served; other modules, and a
    prompt that is left out of the pooling, need torch's export.
    """
    config, modules = _read(folder / CONFIG), _read(folder / "modules.json", missing=None)
    if modules is None:
        raise GivenGraphError(
            f"{folder} has no modules.json, so it does not say how tokens are pooled: add one, or"
            " choose a sentence-transformers model."
        )
    kinds = {each["type"].rpartition(".")[2]: each["path"] for each in modules}
    if [*kinds] not in ([_TRANSFORMER, _POOLING], [_TRANSFORMER, _POOLING, _NORMALIZE]):
        raise GivenGraphError(
            f"{folder} holds {', '.join(kinds)}, and without torch only Transformer, Pooling and"
            f" Normalize are read: {EXPORT}."
        )
    settings = _read(folder / "config_sentence_transformers.json", missing={})
    prompts = {key: text or "" for key, text in (settings.get("prompts") or {}).items()}
    tokenizer = _tokenizer(folder)
    return GivenEncoder(
        folder=folder,
        config=config,
        pooling=_pooling(folder / kinds[_POOLING]),
        normalize=_NORMALIZE in kinds,
        max_seq_length=_max_seq_length(folder, config),
        prompts=prompts if any(prompts.values()) else {},
        default_prompt_name=settings.get("default_prompt_name") if any(prompts.values()) else None,
        tokenizer=tokenizer,
    )


def _pooling(folder: Path) -> str:
    settings = _read(folder / "config.json")
    if "pooling_mode" in settings:
        modes = [str(settings["pooling_mode"])]
    else:
        flags = (key for key, value in settings.items() if value is True and "mode" in key)
        modes = [_POOLINGS.get(flag, flag) for flag in flags]
    if len(modes) != 1 or modes[0] not in _POOLINGS.values():
        raise GivenGraphError(
            f"{folder} pools by {', '.join(modes) or 'nothing'}, and without torch only by mean and"
            f" cls can be served: {EXPORT}."
        )
    if settings.get("include_prompt") is False:
        raise GivenGraphError(f"{folder} leaves the prompt out of the pooling: {EXPORT}.")
    return modes[0]


def _max_seq_length(folder: Path, config: dict[str, Any]) -> int:
    """Tokens that are read: of the settings, the tokenizer and the rows of the position table."""
    settings = _read(folder / "sentence_bert_config.json", missing={})
    if settings.get("do_lower_case"):
        raise GivenGraphError(f"{folder} lower-cases texts before its tokenizer: {EXPORT}.")
    tokenizer = _read(folder / "tokenizer_config.json", missing={})
    positions = config.get("max_position_embeddings") or LONGEST
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= int(config.get("pad_token_id") or 0) + 1  # positions begin behind its row
    said = (settings.get("max_seq_length"), tokenizer.get("model_max_length"), positions)
    return min(int(number) for number in said if isinstance(number, int | float) and number > 0)


def _tokenizer(folder: Path) -> bytes:
    path = folder / TOKENIZER
    if not path.is_file():
        raise GivenGraphError(f"{folder} has no {TOKENIZER}, which serving needs: {EXPORT}.")
    return path.read_bytes()


def _read(path: Path, **default: Any) -> Any:
    """The content of a JSON file; ``missing`` is that of a file that is not there."""
    if "missing" in default and not path.is_file():
        return default["missing"]
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GivenGraphError(f"{path} cannot be read ({error}): fetch the model again.") from error


def _read_graph(folder: Path) -> onnx.ModelProto:
    """The graph with its weights; one that does more than compute is refused before it is run."""
    path = folder / MODEL
    try:
        check_graph(path.read_bytes(), weights_apart=True)
        model = onnx.load(path)
    except (OSError, ValueError, GraphRefused, onnx.checker.ValidationError) as error:
        raise GivenGraphError(f"{path} cannot be served ({error}): {EXPORT}.") from error
    names = {value.name for value in model.graph.input}
    weights = {tensor.name for tensor in model.graph.initializer}
    if not {*INPUTS[:2]} <= names <= {*INPUTS, *weights}:
        raise GivenGraphError(
            f"{path} reads {', '.join(sorted(names - weights))}, and a graph here reads"
            f" {', '.join(INPUTS[:2])} and perhaps {INPUTS[2]}: {EXPORT}."
        )
    kept = [value for value in model.graph.input if value.name not in weights]
    for value in kept:
        fixed = [axis.dim_value for axis in value.type.tensor_type.shape.dim if axis.dim_value]
        if value.type.tensor_type.elem_type != TensorProto.INT64 or fixed:
            raise GivenGraphError(f"{path} has an input of fixed size or not int64: {EXPORT}.")
    del model.graph.input[:]
    model.graph.input.extend(sorted(kept, key=lambda value: INPUTS.index(value.name)))
    return model


def _states_of(model: onnx.ModelProto) -> str:
    """The output that has the states of all tokens."""
    outputs = {value.name: value for value in model.graph.output}
    named = [name for name in STATE_OUTPUTS if name in outputs]
    ranks = [name for name, each in outputs.items() if len(each.type.tensor_type.shape.dim) == 3]
    if not named and len(ranks) != 1:
        raise GivenGraphError(
            f"the graph gives {', '.join(outputs)}, none of which is last_hidden_state: {EXPORT}."
        )
    return (named or ranks)[0]


def _reference(encoder: GivenEncoder, model: onnx.ModelProto, inputs: Sequence[str]) -> Embed:
    """Texts to unit vectors [n, dim] by the graph as it came, one text at a time."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    path = encoder.folder / MODEL  # from the file: its weights may be in another
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    try:
        tokenizer = Tokenizer(encoder.tokenizer, encoder.max_seq_length)
    except ValueError as error:
        raise GivenGraphError(
            f"{encoder.folder / TOKENIZER} cannot be read ({error}): fetch the model again."
        ) from error
    output, pad_id = _states_of(model), int(encoder.config.get("pad_token_id") or 0)

    def embed(texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        rows = []
        for row in tokenizer.tokenize(texts, prompt=prompt):
            states = session.run([output], padded_inputs([row.input_ids], inputs, pad_id))[0][0]
            rows.append(states.mean(axis=0) if encoder.pooling == "mean" else states[0])
        vectors = np.stack(rows).astype(np.float64)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: NDArray[np.float32] = (vectors / np.maximum(norms, LEAST_NORM)).astype(np.float32)
        return unit

    return embed


def _write_graph(
    encoder: GivenEncoder, model: onnx.ModelProto, inputs: Sequence[str], path: Path
) -> tuple[dict[str, int], bool]:
    """Fuse, pack and pool the graph, and save it; returns its fused operators, and if packed."""
    front = Extractor(_at_opset(model)).extract_model([*inputs], [_states_of(model)])
    _rename_output(front.graph, STATES)
    heads = int(encoder.config.get("num_attention_heads") or encoder.config["n_heads"])
    front, fused = graph.fuse(front, num_heads=heads, width=encoder.width)
    packed = pack(front.graph)
    if packed:
        fused["MultiHeadAttention"] = fused.pop("Attention")
        if add_biases_in_products(front.graph):
            fused["Gelu"] = fused.pop("BiasGelu")
    whole = graph.join(front, _pooling_graph(encoder, front.ir_version))
    if encoder.max_seq_length > LONG_TEXT:
        spare_scores(whole.graph)
    if packed and attend_by_standard_operator(whole):
        fused["Attention"] = fused.pop("MultiHeadAttention")
    graph.save(whole, str(path))
    return fused, packed


def _at_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in the operators of the artifact's opset."""
    if next((e.version for e in model.opset_import if not e.domain), 0) >= graph.OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, graph.OPSET)
    except RuntimeError as error:
        raise GivenGraphError(
            f"its operators cannot be brought to opset {graph.OPSET} ({error}): {EXPORT}."
        ) from error


def _rename_output(part: onnx.GraphProto, name: str) -> None:
    """Give the graph's one output another name."""
    old = part.output[0].name
    for node in part.node:
        node.input[:] = [name if each == old else each for each in node.input]
        node.output[:] = [name if each == old else each for each in node.output]
    part.output[0].name = name


def _pooling_graph(encoder: GivenEncoder, ir_version: int) -> onnx.ModelProto:
    """States [batch, length, width] and mask to both outputs of an artifact, in float32."""
    prefix, nodes = graph.POOLING, []

    def add(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = output if output in ("sentence_embedding", POOLED_OUTPUT) else prefix + output
        nodes.append(helper.make_node(operator, [*inputs], [name], prefix + output, **attributes))
        return name

    one, least, first = (prefix + name for name in ("one", "least", "first"))
    constants = [
        numpy_helper.from_array(np.array([1], np.int64), one),
        numpy_helper.from_array(np.array(LEAST_NORM, np.float32), least),
        numpy_helper.from_array(np.array(0, np.int64), first),
    ]
    if encoder.pooling == "mean":
        mask = add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        row = add("Unsqueeze", [mask, one], "row")  # [batch, 1, length]
        total = add("MatMul", [row, STATES], "total")  # [batch, 1, width]
        tokens = add("ReduceSum", [mask, one], "tokens", keepdims=1)
        vector = add("Squeeze", [total, one], "vector")
        pooled = add("Div", [vector, tokens], POOLED_OUTPUT)
    else:
        pooled = add("Gather", [STATES, first], POOLED_OUTPUT, axis=1)
    norm = add("ReduceL2", [pooled, one], "norm", keepdims=1)
    bounded = add("Max", [norm, least], "bounded")
    if encoder.normalize:
        add("Div", [pooled, bounded], "sentence_embedding")
    else:
        add("Identity", [pooled], "sentence_embedding")
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        nodes,
        "pooling",
        [value(STATES, TensorProto.FLOAT, ["batch", "length", encoder.width])],
        [
            value(name, TensorProto.FLOAT, ["batch", encoder.width])
            for name in ("sentence_embedding", POOLED_OUTPUT)
        ],
        constants,
    )
    opsets = [helper.make_opsetid("", graph.OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=ir_version)


def _blocks(encoder: GivenEncoder) -> int:
    return int(encoder.config.get("num_hidden_layers") or encoder.config["n_layers"])


def _write_companions(encoder: GivenEncoder, folder: Path, reference: Embed) -> None:
    (folder / TOKENIZER).write_bytes(encoder.tokenizer)
    (folder / CONFIG).write_text(json.dumps(encoder.config), encoding="utf-8")
    for name in _COPIED:
        if (encoder.folder / name).is_file():
            shutil.copy(encoder.folder / name, folder / name)
    (folder / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": encoder.width}
    modes |= {flag: mode == encoder.pooling for flag, mode in _POOLINGS.items()}
    (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    vector = [round(float(number), 8) for number in reference([CANARY_TEXT], "")[0]]
    canary = {"text": CANARY_TEXT, "embedding": vector}
    (folder / CANARY).write_text(json.dumps(canary))


def main(source: str, target: str, name: str) -> None:
    """What ``s2sent serve --model`` runs as a process; exits with a sentence on failure."""
    try:
        export_given_graph(Path(source), Path(target), name=name)
    except OSError as error:
        sys.exit(f"{target} cannot be written: {error.strerror}. Choose another cache folder.")
    except (ArtifactError, GivenGraphError, graph.GraphError, ParityError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
