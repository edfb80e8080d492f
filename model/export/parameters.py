"""Where the graph of an artifact holds each parameter of its checkpoint, as parameters.json says.

    {"0.auto_model.pooler.dense.weight": {"tensor": "pooler", "transposed": true, "start": 0}, ...}

An export renames, transposes and joins weights, and stores some as int8. The values of a parameter
still follow one another in a tensor of the graph or in its transpose, row by row, where they are
found by comparison.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper
from torch import nn

from s2sent.model.artifact.manifest import MODEL, PARAMETERS
from s2sent.model.export.int8.storage import fold_int8

Weights = dict[str, NDArray[np.float32]]
ROUNDED_TWICE = 1e-6  # relative: by how much int8 times its scale may differ from the parameter


def write_parameters(encoder: nn.Module, folder: Path) -> None:
    """Write the file of the artifact in ``folder``, whose graph was exported from ``encoder``.

    It lacks a parameter that the graph does not hold, or only in another form.
    """
    weights = weights_of(onnx.load(str(folder / MODEL)))
    wanted = {
        name: each.detach().float().numpy().ravel()
        for name, each in encoder.named_parameters()
        if each.numel()
    }
    places: dict[str, dict[str, Any]] = {}
    for tensor, values in sorted(weights.items(), key=lambda item: item[1].size):
        is_matrix = values.ndim == 2
        for transposed in (False, True)[: 1 + is_matrix]:
            line = (values.T if transposed else values).ravel()
            for name in [name for name in wanted if name not in places]:
                start = _find(wanted[name], line, ROUNDED_TWICE if is_matrix else 0)
                if start is not None:
                    places[name] = {"tensor": tensor, "transposed": transposed, "start": start}
    (folder / PARAMETERS).write_text(json.dumps(places, indent=1) + "\n", encoding="utf-8")


def weights_of(model: ModelProto) -> Weights:
    """The float32 weights of a graph by name, also those that it stores as int8 with a scale.

    The matrices among the latter are folded in place.
    """
    fold_int8(model)
    tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for name in [name.removesuffix("_scale") for name in tensors if name.endswith("_scale")]:
        if f"{name}_int8" in tensors:
            tensors[name] = tensors[f"{name}_int8"] * tensors[f"{name}_scale"]
    return {name: values for name, values in tensors.items() if values.dtype == np.float32}


def _find(values: NDArray[np.float32], line: NDArray[np.float32], rtol: float) -> int | None:
    """Where ``line`` has ``values`` at a multiple of their number, as joined weights have them."""
    size = values.size
    rows = line[: line.size // size * size].reshape(-1, size)
    for row in np.flatnonzero(np.isclose(rows[:, 0], values[0], rtol, 0)):
        if np.allclose(rows[row], values, rtol, 0):
            return int(row) * size
    return None
