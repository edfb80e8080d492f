"""Tracing: a torch encoder as an ONNX graph whose block states are outputs too."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import onnx
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]  # torch does not list it

from s2sent.model.export.graph import OPSET, OUTPUTS
from s2sent.model.export.packed.pooled import PooledPacked
from s2sent.model.export.tracing import by_optimum
from s2sent.model.network.pooled import PooledEncoder
from s2sent.model.runtime.encoder import BLOCK_WEIGHTS_OUTPUT, POOLED_OUTPUT

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_TRACED_TOKENS = 8  # of the longest row of a packed trace, behind a decoder's prefix
_ROWS = {0: "batch"}


@dataclass(frozen=True)
class TracedEncoder:
    """A traced `PooledEncoder`: its graph, its inputs, and the block states pooled at each depth.

    ``model`` has the output "sentence_embedding", the ``results`` at full depth, those of
    ``gated`` (by depth, what an exit with a gate of its own gives) and all block states in
    ``exits``. The results are the pooled vectors and, where there are any, the block weights.

    states: of a packed one, what the next block reads at each depth but the last; outputs too.
    is_packed: whether it is a `PooledPacked`, whose tokens are packed already.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    exits: dict[int, list[str]]
    gated: dict[int, tuple[str, ...]]
    states: dict[int, str] = field(default_factory=dict)
    is_packed: bool = False

    @classmethod
    def named(cls, network: PooledEncoder, inputs: tuple[str, ...]) -> Self:
        """The names in the graph of ``network``, which is still to be traced."""
        exits = {depth: [*map(_block, numbers)] for depth, numbers in network.exits.items()}
        results = (POOLED_OUTPUT, BLOCK_WEIGHTS_OUTPUT) if network.weighs else (POOLED_OUTPUT,)
        gated = {
            depth: tuple(f"{result}_at_{depth}" for result in results) for depth in network.gated
        }
        is_packed = isinstance(network, PooledPacked)
        states = {depth: f"state_{depth}" for depth in sorted(exits)[:-1] if is_packed}
        inputs = (*inputs, *network.more_inputs)
        return cls(onnx.ModelProto(), inputs, results, exits, gated, states, is_packed)

    @property
    def outputs(self) -> list[str]:
        """The outputs that are no block states, in their order."""
        return [OUTPUTS[0], *self.results, *chain.from_iterable(self.gated.values())]

    @property
    def pooled_blocks(self) -> list[str]:
        """The block states that are pooled at full depth, shallowest first."""
        return self.exits[max(self.exits)]

    @property
    def other_blocks(self) -> list[str]:
        """The block states that are pooled at smaller depths only."""
        blocks = dict.fromkeys(block for depth in sorted(self.exits) for block in self.exits[depth])
        return [block for block in blocks if block not in self.pooled_blocks]


def trace_encoder(
    encoder: SentenceTransformer,
    depths: Sequence[int] = (),
    *,
    packed: bool = False,
    fused: bool = True,
) -> TracedEncoder:
    """Trace the encoder's `PooledEncoder` form.

    With ``packed`` its backbone has a form on packed tokens, which is traced, and with ``fused``
    the attention of that is ONNX Runtime's own operator.
    """
    encoder = copy.deepcopy(encoder)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        path = Path(folder, "traced.onnx")  # a large one has files of weights beside it
        # The trace holds a part of the mask's arithmetic constant; the parity check covers it.
        warnings.simplefilter("ignore", TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # of tracing with TorchScript
        if packed:
            traced = _trace_packed(PooledPacked(encoder, depths, fused=fused).eval(), path)
        else:
            traced = _trace_encoder(encoder, depths, path)
        model = onnx.load(path)
        read = {each.name for each in model.graph.input}  # a backbone may ignore token types
        return replace(traced, model=model, inputs=tuple(i for i in traced.inputs if i in read))


def _trace_encoder(
    encoder: SentenceTransformer, depths: Sequence[int], path: Path
) -> TracedEncoder:
    network: Any = PooledEncoder(encoder, depths).eval()
    inputs = tuple(name for name in INPUTS if name in encoder.tokenizer.model_input_names)
    traced = TracedEncoder.named(network, inputs)
    blocks = [*map(_block, network.blocks)]
    if by_optimum.is_installed() and not network.more_inputs:  # which optimum does not know
        names: Any = {"inputs": inputs, "vectors": traced.outputs, "blocks": blocks}
        by_optimum.write_trace(network, backbone_config(encoder), path, **names, opset=OPSET)
    else:
        network.backbone.set_attn_implementation("eager")  # which ONNX Runtime's optimiser knows
        rows = torch.ones(2, 2 * _TRACED_TOKENS, dtype=torch.int64)
        given = dict.fromkeys(traced.inputs, rows)
        if "token_type_ids" in given:
            given["token_type_ids"] = torch.zeros_like(rows)  # the only type there may be
        axes = dict.fromkeys(blocks, {0: "batch", 1: "length"})
        _write_trace(network, given, path, dict.fromkeys(traced.outputs, _ROWS) | axes)
    return traced


def _trace_packed(network: PooledPacked, path: Path) -> TracedEncoder:
    traced = TracedEncoder.named(network, INPUTS[:2])
    vectors = [*traced.outputs, *map(_block, network.blocks)]
    rows = torch.zeros(2, network.packed.num_prefix + _TRACED_TOKENS, dtype=torch.int64)
    mask = torch.ones_like(rows)
    mask[1, -1] = 0
    states = dict.fromkeys(traced.states.values(), {1: "tokens"})
    outputs = dict.fromkeys(vectors, _ROWS) | states
    given = {"input_ids": rows, **dict.fromkeys(traced.inputs[1:], mask)}
    _write_trace(network, given, path, outputs)
    return traced


def _write_trace(
    network: nn.Module,
    given: Mapping[str, Tensor],
    path: Path,
    outputs: Mapping[str, dict[int, str]],
) -> None:
    """Write the graph by torch's exporter, of inputs ``given``; ``outputs`` have dynamic axes."""
    # It knows no shapes of ONNX Runtime's operators, computes no padding ahead, and warns of
    # negative places, which no row here has.
    ours = "The shape inference of|Constant folding|Exporting aten::index"
    warnings.filterwarnings("ignore", ours, UserWarning)
    torch.onnx.export(
        network,
        kwargs=dict(given),
        f=path,
        input_names=[*given],
        output_names=[*outputs],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in given} | dict(outputs),
        opset_version=OPSET,
        dynamo=False,
    )


def backbone_config(encoder: SentenceTransformer) -> Any:
    """The configuration of the encoder's backbone, as transformers has it."""
    backbone: Any = encoder[0]
    return backbone.auto_model.config


def _block(number: int) -> str:
    return f"block_{number}"
