"""An artifact of a folder that holds its own ONNX graph or a static table, without torch.

    onnx/model.onnx -> pooling behind its states -> fuse, pack -> attention -> compared with the
        graph as it came, pooled by numpy -> sealed folder

Such folders are what optimum and the hub's export tools write beside a sentence-transformers
checkpoint. `model.export.checkpoint` exports the others.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx.utils import Extractor
from tokenizers import Tokenizer as Vocabulary

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import CONFIG, MODEL, POOLING_MASK, TOKENIZER, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export import graph
from s2sent.model.export.companions import CANARY_TEXT, write_canary, write_pooling
from s2sent.model.export.cpu.masked_attention import finish_attention
from s2sent.model.export.cpu.packing import pack_fused
from s2sent.model.export.from_onnx.folder import (
    EXPORT,
    GivenEncoder,
    GivenGraphError,
    read_encoder,
    read_graph,
    states_of,
)
from s2sent.model.export.from_onnx.pooling import STATES, pooling_graph
from s2sent.model.export.from_onnx.static_table import static_graph, static_tokenizer
from s2sent.model.export.nodes import refill
from s2sent.model.export.parity import (
    ParityError,
    check_parity,
    checked_prompt_name,
    sentences_for,
)
from s2sent.model.runtime.encoder import LEAST_NORM, OnnxEncoder, padded_inputs
from s2sent.model.runtime.tokenizer import Tokenizer

Embed = Callable[[Sequence[str], str], NDArray[np.float32]]  # texts behind a prompt -> [n, dim]
_COPIED = (CONFIG, "tokenizer_config.json", "special_tokens_map.json")


def export_given_graph(folder: Path, target: Path, *, name: str = "") -> Artifact:
    """Write the graph of ``folder`` as an artifact at ``target``, for a CPU, in float32.

    It has to reproduce the vectors of the graph as it came within 1e-5, alone and in mixed batches.
    Raises `GivenGraphError`, `model.export.graph.GraphError`, `model.export.parity.ParityError` or
    `model.artifact.errors.ArtifactError`, and then leaves ``target`` as it was.
    """
    encoder = read_encoder(folder)
    if encoder.backbone is None:
        model = static_graph(encoder.folder)
        encoder = replace(encoder, tokenizer=static_tokenizer(encoder.tokenizer))
    else:
        model = read_graph(folder)
    inputs = tuple(value.name for value in model.graph.input)
    reference = _reference(encoder, model, inputs)
    with staged(target) as staging:
        (staging / MODEL).parent.mkdir(parents=True)
        fused, packed = _write_graph(encoder, model, inputs, staging / MODEL)
        _write_companions(encoder, staging, reference)
        manifest = Manifest(
            name=name or folder.name,
            dim=_width(encoder, model),
            max_seq_length=encoder.max_seq_length,
            pooling=encoder.pooling,
            normalize=encoder.normalize,
            precision="fp32",
            inputs=inputs if encoder.pools_prompts else (*inputs, POOLING_MASK),
            selector=None,
            backbone=_backbone(encoder),
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
        own = sentences_for(Vocabulary.from_buffer(encoder.tokenizer))
        sentences = [*own, " ".join(own)]
        prompt_name = checked_prompt_name(served)
        expected = reference(sentences, manifest.prompt(prompt_name))
        encode = partial(served.encode, prompt_name=prompt_name)
        report = check_parity("fp32", sentences, onnx=encode, torch=expected, unrounded=expected)
        seal(staging, replace(manifest, parity=asdict(report)))
    return Artifact.open(target)


def _reference(encoder: GivenEncoder, model: onnx.ModelProto, inputs: Sequence[str]) -> Embed:
    """Texts to unit vectors [n, dim] by the graph as it came, one text at a time."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    # From the file, whose weights may be in another.
    is_file = encoder.backbone is not None
    source = str(encoder.folder / MODEL) if is_file else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"])
    try:
        tokenizer = Tokenizer(
            encoder.tokenizer, encoder.max_seq_length, pools_prompts=encoder.pools_prompts
        )
    except ValueError as error:
        raise GivenGraphError(
            f"{encoder.folder / TOKENIZER} cannot be read ({error}): fetch the model again."
        ) from error
    output = states_of(model)
    pad_id = (encoder.backbone and encoder.backbone.pad_token_id) or 0

    def embed(texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        rows = []
        for row in tokenizer.tokenize(texts, prompt=prompt):
            given = padded_inputs([row.input_ids], (*inputs, POOLING_MASK), pad_id)
            is_pooled = given.pop(POOLING_MASK)[0] == 1
            states = session.run([output], given)[0][0][is_pooled]
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
    width = _width(encoder, model)
    fused: dict[str, int] = {}
    front = _at_opset(model)
    if encoder.backbone:
        front = Extractor(front).extract_model([*inputs], [states_of(model)])
    _rename_output(front.graph, STATES)
    if encoder.backbone:
        front, fused = graph.fuse(front, num_heads=encoder.backbone.num_heads, width=width)
    packed = pack_fused(front.graph, fused)
    whole = graph.join(front, pooling_graph(encoder, width, front.ir_version))
    finish_attention(whole, fused, packed=packed, longest=encoder.max_seq_length)
    graph.save(whole, str(path))
    return fused, packed


def _at_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in the operators of the artifact's opset."""
    if next((e.version for e in model.opset_import if not e.domain), 0) >= graph.OPSET:
        return model
    light = graph.weights_as_inputs(model)
    try:
        converted = onnx.version_converter.convert_version(light, graph.OPSET)
    except RuntimeError as error:
        raise GivenGraphError(
            f"its operators cannot be brought to opset {graph.OPSET} ({error}): {EXPORT}."
        ) from error
    weights = {each.name: each for each in model.graph.initializer}
    inputs = [*converted.graph.input]
    refill(converted.graph.input, [each for each in inputs if each.name not in weights])
    large = [weights[each.name] for each in inputs if each.name in weights]
    converted.graph.initializer.extend(large)
    return converted


def _rename_output(part: onnx.GraphProto, name: str) -> None:
    """Give the graph's one output another name."""
    old = part.output[0].name
    for node in part.node:
        node.input[:] = [name if each == old else each for each in node.input]
        node.output[:] = [name if each == old else each for each in node.output]
    part.output[0].name = name


def _width(encoder: GivenEncoder, model: onnx.ModelProto) -> int:
    """Numbers of a token's state."""
    if encoder.backbone is None:
        return int(model.graph.initializer[0].dims[1])
    return encoder.backbone.hidden_size


def _backbone(encoder: GivenEncoder) -> dict[str, Any]:
    if encoder.backbone is None:
        return {"architecture": "static"}
    backbone = encoder.backbone
    return {"architecture": backbone.model_type, "num_blocks": backbone.num_blocks}


def _write_companions(encoder: GivenEncoder, folder: Path, reference: Embed) -> None:
    (folder / TOKENIZER).write_bytes(encoder.tokenizer)
    (folder / CONFIG).write_text("{}")  # a static table has none
    for name in _COPIED:
        if (encoder.folder / name).is_file():
            shutil.copy(encoder.folder / name, folder / name)
    canary = reference([CANARY_TEXT], "")[0]
    write_pooling(folder, len(canary), [encoder.pooling])
    write_canary(folder, canary)


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
