"""Restores the checkpoint of an artifact, so that training can go on from it.

    the artifact's configuration -> an encoder of known weights -> exported as the artifact was
        -> where each parameter is in the graph -> the artifact's values from there -> compared

An export renames, transposes and joins weights. Where they go is read from the graph of known
weights, so that no family of encoders needs rules of its own.
"""

import json
from collections import ChainMap
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from s2sent.model.artifact.manifest import MODEL, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import staged
from s2sent.model.export.checkpoint import TRAINING_RECORD, encode
from s2sent.model.export.int8.rounding import round_weights
from s2sent.model.export.int8.storage import fold_int8
from s2sent.model.export.options import ExportOptions
from s2sent.model.export.parity import MAX_ABS_DIFF, SAME_AS_TORCH, parity_sentences
from s2sent.model.export.written_graph import write_graph
from s2sent.model.network.backbone_settings import read_config
from s2sent.model.network.bare import MODULES_FILE
from s2sent.model.network.checkpoint import CheckpointError
from s2sent.model.network.encoder import build_encoder, build_plain_encoder, load_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder

Array = NDArray[Any]
Weights = dict[str, Array]


class RestoreError(Exception):
    """The artifact's checkpoint cannot be restored; the message says why and what to do."""


def restore_checkpoint(artifact: Artifact, target: Path, *, overwrite: bool = False) -> float:
    """Save the sentence-transformers checkpoint of ``artifact`` to the folder ``target``.

    Its weights are those that the artifact computes with, in `weight-int8` the rounded ones; what
    the graph does not hold, such as BERT's pooler, is new. Returns the largest difference of a
    component between embeddings of both, at every depth. Raises `RestoreError`, or
    `model.artifact.errors.ArtifactError` where ``target`` exists and may not be replaced, and
    then leaves it as it was.
    """
    _require_restorable(artifact)
    with staged(target, overwrite=overwrite, marker=MODULES_FILE) as folder:
        encoder = _new_encoder(artifact)
        _take_weights(encoder, artifact)
        encoder.save(str(folder), create_model_card=False)
        if training := artifact.manifest.training:
            text = json.dumps(training, indent=2, ensure_ascii=False) + "\n"
            (folder / TRAINING_RECORD).write_text(text, encoding="utf-8")
        return _compare(load_encoder(folder), artifact)


def _require_restorable(artifact: Artifact) -> None:
    manifest = artifact.manifest
    reasons = {
        f"{manifest.precision}, whose weights are not those that were trained": (
            manifest.precision not in SAME_AS_TORCH
        ),
        "in two files": manifest.in_two_files,
        "of twins": bool(manifest.towers),
        "of several poolings side by side": "+" in manifest.pooling,
        "of an encoder with a template": manifest.template is not None,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise RestoreError(
            f"{artifact.path} is {reason}: a checkpoint can be restored from an fp32 or weight-int8"
            " artifact in one file, of one encoder with one pooling and without a template."
        )


def _new_encoder(artifact: Artifact) -> SentenceTransformer:
    """A new encoder that is built as the artifact's was."""
    manifest = artifact.manifest
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in {*manifest.files} - {MODEL}:
            if "/" not in name:  # the tokenizer's files and the configuration
                (folder / name).write_bytes(artifact.read(name))
        try:
            config = read_config(folder)
        except CheckpointError as error:
            said = str(error).replace(str(folder), str(artifact.path))
            raise RestoreError(said) from error
        AutoModel.from_config(config, trust_remote_code=False).save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers is partly typed
        limits: dict[str, Any] = {
            "max_seq_length": manifest.max_seq_length,
            "normalize": manifest.normalize,
        }
        if manifest.selector is None:
            encoder = build_plain_encoder(folder, pooling=manifest.pooling, **limits)
        else:
            options = {**manifest.selector, "exits": tuple(manifest.selector.get("exits", ()))}
            encoder = build_encoder(folder, SelectorConfig(**options), **limits)
    encoder.prompts = {**manifest.prompts}
    encoder.default_prompt_name = manifest.default_prompt_name
    return encoder


def _take_weights(encoder: SentenceTransformer, artifact: Artifact) -> None:
    """Set each parameter that the artifact's graph reads to its values there, in place."""
    initial = {name: value.detach().clone() for name, value in encoder.named_parameters()}
    _make_distinct(encoder)
    known = round_weights(encoder) if artifact.manifest.precision == "weight-int8" else encoder
    found = _Found({name: value.detach().numpy() for name, value in known.named_parameters()})
    for here, there in _weight_pairs(artifact, _export_alike(known, artifact.manifest)):
        is_constant = np.array_equal(here, there)
        if not (here.shape == there.shape and found.take(here, there)) and not is_constant:
            raise RestoreError(_not_alike(artifact))
    for name, parameter in encoder.named_parameters():
        taken = found.taken[name]
        if taken.any() and not taken.all():
            raise RestoreError(_not_alike(artifact))
        parameter.data = torch.from_numpy(found.values[name]) if taken.all() else initial[name]


def _make_distinct(encoder: SentenceTransformer) -> None:
    """Give every weight another value, so that a vector of them is found again by its values."""
    choose = np.random.default_rng(0)
    vectors = [each for each in encoder.parameters() if each.ndim < 2]
    numbers = iter(choose.permutation(sum(each.numel() for each in vectors)) + np.float32(0.3))
    for parameter in encoder.parameters():
        if parameter.ndim < 2:
            values = np.fromiter(numbers, np.float32, parameter.numel()).reshape(parameter.shape)
        else:
            values = choose.standard_normal(parameter.shape, np.float32)
        parameter.data = torch.from_numpy(values)


def _export_alike(encoder: SentenceTransformer, manifest: Manifest) -> ModelProto:
    """The graph of ``encoder``, exported with the options of an artifact."""
    options = ExportOptions(
        precision="weight-int8" if manifest.precision == "weight-int8" else "fp32",
        depths=manifest.depths,
        allow_unfused_attention=True,
        standard_operators=not (manifest.fused or manifest.packed),
    )
    with TemporaryDirectory() as scratch:
        path = Path(scratch, MODEL)
        write_graph(encoder, path, options)
        return onnx.load(str(path))


def _weight_pairs(artifact: Artifact, like: ModelProto) -> Iterator[tuple[Array, Array]]:
    """The weights that the same node of both graphs reads at the same place: ``like``'s first."""
    graph = onnx.load_from_string(artifact.read(MODEL))
    fold_int8(graph)
    known, stored = _weights(like), _weights(graph)
    try:
        for node, other in zip(_nodes(like), _nodes(graph), strict=True):
            for name, other_name in zip(node.input, other.input, strict=True):
                if name in known:
                    yield known[name], stored[other_name]
    except (ValueError, KeyError):  # they have other nodes, or other inputs
        raise RestoreError(_not_alike(artifact)) from None


_Scope = ChainMap[str, tuple[NodeProto, "_Scope"]]  # by the name of a value: what makes it


def _nodes(graph: ModelProto) -> list[NodeProto]:
    """The nodes that the outputs of a graph need, in the order of a walk back from them.

    It does not depend on the order in which a graph lists its nodes, which exports of different
    versions choose differently. Identity, where two weights are the same, is left out.
    """
    scope = _scope(graph.graph, ChainMap())
    waiting = _makers(scope, [out.name for out in graph.graph.output])
    nodes: dict[int, NodeProto] = {}
    while waiting:
        node, scope = waiting.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)] = node
        waiting += _makers(scope, node.input)
        for branch in (each.g for each in node.attribute if each.type == AttributeProto.GRAPH):
            waiting += _makers(_scope(branch, scope), [out.name for out in branch.output])
    return [node for node in nodes.values() if node.op_type != "Identity"]


def _scope(graph: GraphProto, outer: _Scope) -> _Scope:
    """The makers of the values that a graph's nodes can read: branches share names."""
    scope = outer.new_child()
    scope.update({output: (node, scope) for node in graph.node for output in node.output})
    return scope


def _makers(scope: _Scope, names: Iterable[str]) -> list[tuple[NodeProto, _Scope]]:
    return [scope[name] for name in names if name in scope]


def _weights(graph: ModelProto) -> Weights:
    """The float32 weights of a graph by name; both names of one stored as int8 mean the whole."""
    fold_int8(graph)
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.graph.initializer}
    for name in [name for name in tensors if name.endswith("_int8")]:
        scale = name.removesuffix("_int8") + "_scale"
        tensors[name] = tensors[scale] = tensors[name] * tensors[scale]
    for node in graph.graph.node:
        if node.op_type == "Identity" and node.input[0] in tensors:
            tensors[node.output[0]] = tensors[node.input[0]]
    return {name: values for name, values in tensors.items() if values.dtype == np.float32}


class _Found:
    """Where the rows, columns and single numbers of known parameters are, and what was there.

    ``values`` and ``taken`` have the shape of each parameter; ``taken`` is true where ``values``
    is set.
    """

    def __init__(self, parameters: Weights) -> None:
        self.values = {name: np.zeros_like(of) for name, of in parameters.items()}
        self.taken = {name: np.zeros(of.shape, bool) for name, of in parameters.items()}
        self._places: dict[bytes, tuple[str, int, int]] = {}  # parameter, axis, number of the line
        for name, values in parameters.items():
            for axis in range(values.ndim):
                for position, line in enumerate(_lines(values, axis)):
                    self._places[_key(line)] = name, axis, position

    def take(self, known: Array, stored: Array) -> bool:
        """Take what ``stored`` has in the place of ``known``; False where that is no parameter."""
        for axis in range(known.ndim):
            places = [self._places.get(_key(line)) for line in _lines(known, axis)]
            if None in places:
                continue
            for place, line in zip(filter(None, places), _lines(stored, axis), strict=True):
                name, own_axis, position = place
                to = np.moveaxis(self.values[name], own_axis, 0)
                to[position, ...] = line.reshape(to.shape[1:])
                np.moveaxis(self.taken[name], own_axis, 0)[position, ...] = True
            return True
        return False


def _lines(values: Array, axis: int) -> Array:
    """The lines of a tensor at right angles to ``axis``, as [n, length]."""
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def _key(line: Array) -> bytes:
    """What tells a line from others, whether it was rounded to the int8 grid again or not."""
    if len(line) > 1:
        line = np.rint(line / (np.abs(line).max() / np.float32(127))).astype(np.int8)
    return bytes(line.data)


def _compare(encoder: SentenceTransformer, artifact: Artifact) -> float:
    """The largest difference between embeddings of both; raises `RestoreError` for too large."""
    served, sentences = OnnxEncoder(artifact), parity_sentences()
    depths = [*artifact.manifest.depths, None]
    differences = [
        np.abs(served.encode(sentences, depth=depth) - encode(encoder, sentences, depth)).max()
        for depth in depths
    ]
    largest = float(np.max(differences))
    if not largest <= MAX_ABS_DIFF:  # NaN, too
        raise RestoreError(
            f"{artifact.path} gives other embeddings than the checkpoint restored from it: they"
            f" differ by {largest:.1e}, and the bound is {MAX_ABS_DIFF:.0e}. Train from the"
            " checkpoint that it was exported from."
        )
    return largest


def _not_alike(artifact: Artifact) -> str:
    return (
        f"{artifact.path} is not the graph that this version exports of its configuration, or one"
        " that holds weights in another form: train from the checkpoint that it was exported from."
    )
