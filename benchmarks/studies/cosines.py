"""How far int8 moves embeddings: cosines to the artifact it was made of, and between two machines.

    python -m benchmarks.studies.cosines ARTIFACT --against SOURCE --texts FILE [--count 600]

Prints the mean and least cosine of the texts' embeddings by ARTIFACT to those by SOURCE, of the
words that the texts are made of likewise, and of ARTIFACT to itself with noise: each float32 weight
becomes the next larger or smaller number, as the sums of another processor would.
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from benchmarks.load.texts import read_texts
from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--against", type=Path, required=True, help="an artifact")
    parser.add_argument("--texts", type=Path, help="one text a line")
    parser.add_argument("--count", type=int, default=600, help="texts, and words, to compare")
    arguments = parser.parse_args()
    lines = read_texts(arguments.texts)
    words = [*dict.fromkeys(word for line in lines for word in line.split())]
    texts = {"texts": lines[: arguments.count], "words": words[: arguments.count]}
    encoder, source = (
        OnnxEncoder(Artifact.open(each)) for each in (arguments.artifact, arguments.against)
    )
    print("| | texts | mean cosine | least |\n|---|---:|---:|---:|")
    for name, of in texts.items():
        print(row(f"{name}, to the other artifact", cosines(encoder, source, of)))
    with tempfile.TemporaryDirectory() as folder:
        noisy = OnnxEncoder(with_noise(encoder.artifact, Path(folder, "noisy")))
        for name, of in texts.items():
            print(row(f"{name}, to itself with noise", cosines(encoder, noisy, of)))


def row(name: str, found: NDArray[np.float32]) -> str:
    """A line of the table."""
    return f"| {name} | {len(found)} | {found.mean():.4f} | {found.min():.4f} |"


def cosines(first: OnnxEncoder, second: OnnxEncoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """The cosine [n] of each text's embeddings by two encoders."""
    products: NDArray[np.float32] = (first.encode(texts) * second.encode(texts)).sum(axis=1)
    return products


def with_noise(artifact: Artifact, folder: Path, *, seed: int = 0) -> Artifact:
    """A copy of an artifact in ``folder`` whose float32 weights differ in their last place."""
    choose = np.random.default_rng(seed)
    shutil.copytree(artifact.path, folder)
    model = onnx.load_from_string(artifact.read(MODEL))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            towards = choose.choice([-np.inf, np.inf], values.shape).astype(np.float32)
            next_ones = np.nextafter(values, towards)
            tensor.CopyFrom(numpy_helper.from_array(next_ones, tensor.name))
    onnx.save(model, str(folder / MODEL))
    return Artifact(folder, replace(artifact.manifest, files={}))  # unsealed: its hashes are others


if __name__ == "__main__":
    main()
