"""The trace of a `PooledEncoder` by optimum's exporter, where optimum-onnx is installed."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def is_installed() -> bool:
    """Whether optimum-onnx is; 0.1.0 needs transformers 4.57."""
    try:
        return bool(version("optimum-onnx"))
    except PackageNotFoundError:
        return False


def write_trace(
    network: Any,
    config: Any,
    path: Path,
    *,
    inputs: Sequence[str],
    vectors: Sequence[str],
    blocks: Sequence[str],
    opset: int,
) -> None:
    """Write the graph of ``network`` on a backbone with ``config``.

    Its outputs are ``vectors`` [B, ...] and then ``blocks`` [B, L, D].
    """
    from optimum.exporters.onnx import export
    from optimum.exporters.onnx.config import TextEncoderOnnxConfig
    from optimum.utils import NormalizedTextConfig

    class Names(TextEncoderOnnxConfig):  # type: ignore[misc]  # optimum is untyped
        """Names and dynamic axes of the graph, in optimum's form."""

        NORMALIZED_CONFIG_CLASS = NormalizedTextConfig

        @property
        def inputs(self) -> dict[str, dict[int, str]]:
            return {name: {0: "batch", 1: "length"} for name in inputs}

        @property
        def outputs(self) -> dict[str, dict[int, str]]:
            axes = {name: {0: "batch"} for name in vectors}
            return axes | {name: {0: "batch", 1: "length"} for name in blocks}

        def generate_dummy_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            """As optimum makes them, but all tokens are of the type 0, which may be the only."""
            made: dict[str, Any] = super().generate_dummy_inputs(*args, **kwargs)
            if "token_type_ids" in made:
                made["token_type_ids"][...] = 0  # of torch, or of numpy
            return made

    network.config = config  # optimum asks for it
    export(network, Names(config), path, opset=opset)
