"""Tracing: a torch encoder as an ONNX graph whose block states are outputs too."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
from optimum.exporters.onnx import export as export_onnx
from optimum.exporters.onnx.config import TextEncoderOnnxConfig
from optimum.utils import NormalizedTextConfig
from sentence_transformers import SentenceTransformer
from torch.jit import TracerWarning  # type: ignore[attr-defined]  # torch does not list it

from model.export.graph import OPSET
from model.network.pooled import PooledEncoder
from model.runtime.encoder import BLOCK_WEIGHTS_OUTPUT, POOLED_OUTPUT

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
NORMALIZED_OUTPUT = "sentence_embedding"


@dataclass(frozen=True)
class TracedEncoder:
    """A traced `PooledEncoder`: its graph, its inputs, and the block states pooled at each depth.

    ``model`` has the output ``NORMALIZED_OUTPUT``, the ``results`` at full depth, those of
    ``gated`` (by depth, what an exit with a gate of its own gives) and all block states in
    ``exits``. The results are the pooled vectors and, where there are any, the block weights.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    exits: dict[int, list[str]]
    gated: dict[int, tuple[str, ...]]

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
    encoder: SentenceTransformer, path: Path, depths: Sequence[int] = ()
) -> TracedEncoder:
    """Trace the encoder's `PooledEncoder` form; ``path`` is where optimum writes its file."""
    network: Any = PooledEncoder(copy.deepcopy(encoder), depths).eval()
    network.config = config = backbone_config(encoder)  # optimum asks for it
    inputs = tuple(name for name in INPUTS if name in encoder.tokenizer.model_input_names)
    exits = {depth: [*map(_block, numbers)] for depth, numbers in network.exits.items()}
    results = (POOLED_OUTPUT, BLOCK_WEIGHTS_OUTPUT) if network.weighs else (POOLED_OUTPUT,)
    gated = {depth: tuple(f"{result}_at_{depth}" for result in results) for depth in network.gated}
    traced = TracedEncoder(onnx.ModelProto(), inputs, results, exits, gated)
    onnx_config = _PooledEncoderConfig(
        config, inputs, traced.outputs, [*map(_block, network.blocks)]
    )
    with warnings.catch_warnings():
        # The trace holds a part of the mask's arithmetic constant; the parity check covers it.
        warnings.simplefilter("ignore", TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # optimum traces with TorchScript
        export_onnx(network, onnx_config, path, opset=OPSET)
    return replace(traced, model=onnx.load(path))


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

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        vectors = {name: {0: "batch"} for name in self._vectors}
        return vectors | {name: {0: "batch", 1: "length"} for name in self._blocks}
