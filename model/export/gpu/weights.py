"""One file of weights that the graphs of all depths read: each weight stands in it once."""

import hashlib
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.weights_file import WEIGHTS_LOCATION, weights_of

LEAST_BYTES = 1024  # of a tensor that stands in the file; smaller ones stay in the graph
_ALIGNMENT = 64


class SharedWeights:
    """The file of weights in an artifact's folder, to which graphs move theirs."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / WEIGHTS_LOCATION
        self._places: dict[tuple[Any, ...], int] = {}

    def move(self, model: ModelProto) -> None:
        """Replace the model's larger initializers by their places in the file."""
        with self._path.open("ab") as file:
            for tensor in model.graph.initializer:
                content = numpy_helper.to_array(tensor).tobytes()
                if len(content) < LEAST_BYTES:
                    continue
                key = (tensor.data_type, *tensor.dims, hashlib.sha256(content).digest())
                if key not in self._places:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    self._places[key] = file.tell()
                    file.write(content)
                kept = TensorProto(
                    name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=b"-"
                )
                set_external_data(kept, WEIGHTS_LOCATION, self._places[key], len(content))
                kept.ClearField("raw_data")
                tensor.CopyFrom(kept)


def load_model(artifact: Artifact) -> ModelProto:
    """The artifact's graph with its weights, of the bytes that were verified."""
    content = artifact.read(MODEL)
    model = ModelProto()
    model.ParseFromString(content)
    weights = artifact.take_weights()
    if weights is not None:
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for weight in weights_of(content, memoryview(weights)):
            tensor = tensors[weight.name]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = bytes(weight.content)
    return model
