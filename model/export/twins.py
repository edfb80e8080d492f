"""Export of twins to one artifact: each tower by itself, then both graphs side by side, and summed.

    tower_a -> export_checkpoint -> its parity, its graph -+
                                                           +-> h_a + h_b -> parity -> sealed folder
    tower_b -> export_checkpoint -> its parity, its graph -+

Both towers read the same inputs, so one run gives the sum, and an engine needs nothing new.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.compose import add_prefix_graph
from sentence_transformers.sentence_transformer.modules import Normalize

from s2sent.model.artifact.manifest import CANARY, MODEL, PARAMETERS, WEIGHTS, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export import graph
from s2sent.model.export.checkpoint import (
    compare_with_torch,
    encode,
    export_checkpoint,
    training_of,
)
from s2sent.model.export.companions import CANARY_TEXT, copy_files, write_canary
from s2sent.model.export.int8.rounding import round_weights
from s2sent.model.export.lengths import checked_texts, cut_at
from s2sent.model.export.nodes import constant, drop_unread, make_op, makers_of, pick, refill
from s2sent.model.export.options import ExportError, ExportOptions
from s2sent.model.network.twin_encoder import TOWERS
from s2sent.model.network.twins import get_twins, join_towers, load_twin_encoder
from s2sent.model.runtime.encoder import LEAST_NORM, POOLED_OUTPUT, OnnxEncoder


def export_twins(checkpoint: Path, target: Path, options: ExportOptions) -> Artifact:
    """Export a checkpoint of twins as an artifact at ``target``, whose embedding is their sum.

    Each tower has to pass the parity check of an export of its own, and then their sum. Raises what
    `model.export.checkpoint.export_checkpoint` raises, and then leaves ``target`` as it was.
    """
    if options.depths:
        raise ExportError(
            f"twins run to their last block, and depths are {', '.join(map(str, options.depths))}:"
            " leave them out, or distil the twins into one encoder."
        )
    twins = load_twin_encoder(checkpoint).to("cpu")
    for tower in get_twins(twins).towers:
        cut_at(tower, options.max_seq_length)
    with (
        TemporaryDirectory() as scratch,
        staged(target, overwrite=options.overwrite) as folder,
    ):
        towers = [export_checkpoint(checkpoint / n, Path(scratch, n), options) for n in TOWERS]
        copy_files(towers[0], folder, but=(MODEL, WEIGHTS, PARAMETERS, CANARY))
        normalize = isinstance(twins[-1], Normalize)
        whole = sum_towers([onnx.load(tower.path / MODEL) for tower in towers], normalize=normalize)
        graph.save(whole, str(folder / MODEL))
        rounded = [round_weights(t, options.precision) for t in get_twins(twins).towers]
        exported = join_towers(*rounded, normalize=normalize)
        write_canary(folder, encode(exported, [CANARY_TEXT], prompt="")[0])
        manifest = _describe([tower.manifest for tower in towers], checkpoint, normalize=normalize)
        served = OnnxEncoder(Artifact(folder, manifest))
        sentences = checked_texts(get_twins(twins).towers[0], options.sentences)
        report = compare_with_torch(served, sentences, exported, twins)
        seal(folder, replace(manifest, parity=asdict(report)))
    return Artifact.open(target)


def sum_towers(towers: Sequence[ModelProto], *, normalize: bool) -> ModelProto:
    """One graph of the towers' graphs, which it changes: the sum of their pooled embeddings.

    It has the towers' inputs and the outputs `OUTPUTS`. Everything of a tower but the inputs has
    its name in front of its own.
    """
    pooled = []
    for name, tower in zip(TOWERS, towers, strict=True):
        add_prefix_graph(tower.graph, f"{name}/", rename_inputs=False, inplace=True)
        pooled.append(f"{name}/{POOLED_OUTPUT}")
    whole = towers[0].graph
    whole.node.extend(towers[1].graph.node)
    whole.initializer.extend(towers[1].graph.initializer)
    whole.node.extend(_sum(whole, pooled, normalize=normalize))
    *_, last = whole.output[0].type.tensor_type.shape.dim
    shape = ["batch", last.dim_value or last.dim_param]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in graph.OUTPUTS]
    refill(whole.output, outputs)
    del whole.value_info[:]
    # Without what only the towers' own outputs need.
    refill(whole.node, pick(whole, makers_of(whole, graph.OUTPUTS)))
    drop_unread(whole)
    return towers[0]


def _sum(whole: GraphProto, pooled: Sequence[str], *, normalize: bool) -> list[NodeProto]:
    """Nodes that add the vectors and give both `OUTPUTS`; adds the constants that they read."""
    sentence, total = graph.OUTPUTS
    added = make_op("Add", pooled, total)
    if not normalize:
        return [added, make_op("Identity", [total], sentence)]
    axis = constant(whole, "sum/axis", [-1])
    least = constant(whole, "sum/least", LEAST_NORM, np.float32)
    return [
        added,
        make_op("ReduceL2", [total, axis], "sum/norm", keepdims=1),
        make_op("Max", ["sum/norm", least], "sum/divisor"),
        make_op("Div", [total, "sum/divisor"], sentence),
    ]


def _describe(towers: Sequence[Manifest], checkpoint: Path, *, normalize: bool) -> Manifest:
    """The manifest without the sum's parity and the files."""
    first, second = towers
    return replace(
        first,
        normalize=normalize,
        training=training_of(checkpoint),
        parity={},
        fused={name: count + second.fused[name] for name, count in first.fused.items()},
        files={},
        towers=tuple({"name": n, "parity": t.parity} for n, t in zip(TOWERS, towers, strict=True)),
    )
