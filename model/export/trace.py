"""Tracing: a torch encoder as an ONNX graph whose block states are outputs too."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import onnx
import torch
from optimum.exporters.onnx import export as export_onnx
from optimum.exporters.onnx.config import TextEncoderOnnxConfig
from optimum.utils import NormalizedTextConfig
from sentence_transformers import SentenceTransformer
from torch.jit import TracerWarning  # type: ignore[attr-defined]  # torch does not list it

from s2sent.model.export.graph import OPSET
from s2sent.model.export.packed.pooled import PooledPacked
from s2sent.model.network.pooled import PooledEncoder
from s2sent.model.runtime.encoder import BLOCK_WEIGHTS_OUTPUT, POOLED_OUTPUT

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_TRACED_TOKENS = 8  # of the longest row of a packed trace, behind a decoder's prefix
NORMALIZED_OUTPUT = "sentence_embedding"


@dataclass(frozen=True)
class TracedEncoder:
    """A traced `PooledEncoder`: its graph, its inputs, and the block states pooled at each depth.

    ``model`` has the output ``NORMALIZED_OUTPUT``, the ``results`` at full depth, those of
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
        return cls(onnx.ModelProto(), inputs, results, exits, gated, states, is_packed)

    @property
    def outputs(self) -> list[str]:
        """The outputs that are no block states, in their order."""
        return [NORMALIZED_OUTPUT, *self.results, *chain.from_iterable(self.gated.values())]

    @property
    def pooled_blocks(self) -> list[str]:
        """The block states that are pooled at full depth, oldest first."""
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
    network.config = config = backbone_config(encoder)  # optimum asks for it
    inputs = tuple(name for name in INPUTS if name in encoder.tokenizer.model_input_names)
    traced = TracedEncoder.named(network, inputs)
    blocks = [*map(_block, network.blocks)]
    onnx_config = _PooledEncoderConfig(config, inputs, traced.outputs, blocks)
    export_onnx(network, onnx_config, path, opset=OPSET)
    return traced


def _trace_packed(network: PooledPacked, path: Path) -> TracedEncoder:
    traced = TracedEncoder.named(network, INPUTS[:2])
    vectors = [*traced.outputs, *map(_block, network.blocks)]
    rows = torch.zeros(2, network.packed.num_prefix + _TRACED_TOKENS, dtype=torch.int64)
    mask = torch.ones_like(rows)
    mask[1, -1] = 0
    # The tracer knows no shapes of ONNX Runtime's operators, and computes no padding ahead.
    warnings.filterwarnings("ignore", "The shape inference of|Constant folding", UserWarning)
    torch.onnx.export(
        network,
        (rows, mask),
        path,
        input_names=[*traced.inputs],
        output_names=[*vectors, *traced.states.values()],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in traced.inputs}
        | {name: {0: "batch"} for name in vectors}
        | {name: {1: "tokens"} for name in traced.states.values()},
        opset_version=OPSET,
        dynamo=False,
    )
    return traced


def backbone_config(encoder: SentenceTransformer) -> Any:
    """The configuration of the encoder's backbone, as transformers has it."""
    backbone: Any = encoder[0]
    return backbone.auto_model.config


def _block(number: int) -> str:
    return f"block_{number}"


class _PooledEncoderConfig(TextEncoderOnnxConfig):  # type: ignore[misc]  # optimum is untyped
    """Names and dynamic axes of the traced graph, in optimum's form."""

    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig

    def __init__(
        self, config: Any, inputs: Sequence[str], vectors: Sequence[str], blocks: Sequence[str]
    ) -> None:
        super().__init__(config)
        self._names = inputs
        self._vectors = vectors
        self._blocks = blocks

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        return {name: {0: "batch", 1: "length"} for name in self._names}

    def generate_dummy_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As optimum makes them, but all tokens are of the type 0, which may be the only one."""
        made: dict[str, Any] = super().generate_dummy_inputs(*args, **kwargs)
        if "token_type_ids" in made:
            made["token_type_ids"][...] = 0  # of torch, or of numpy
        return made

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        vectors = {name: {0: "batch"} for name in self._vectors}
        return vectors | {name: {0: "batch", 1: "length"} for name in self._blocks}
