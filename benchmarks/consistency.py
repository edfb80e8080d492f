"""The same texts over HTTP in every grouping, against each other and against torch.

    python -m benchmarks.consistency --checkpoint FOLDER --texts FILE [--artifact FOLDER]

Prints the largest absolute difference of any component: one text a request, seven, all at once, all
at once in another order, and torch on the checkpoint (its weights rounded as the artifact's are).
"""

import argparse
import json
import random
import urllib.request

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving import URL, add_common_arguments, read_texts, running_service

Rows = NDArray[np.float32]  # [n, dim], L2-normalised


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_common_arguments(parser)
    parser.add_argument("--checkpoint", help="what the artifact was exported from")
    parser.add_argument("--count", type=int, default=200, help="texts to compare")
    arguments = parser.parse_args()
    texts = read_texts(arguments)[: arguments.count]
    order = random.Random(0).sample(range(len(texts)), len(texts))  # noqa: S311  a reproducible order
    with running_service(arguments):
        alone = embed_in_groups(texts, 1)
        others = {
            "seven a request": embed_in_groups(texts, 7),
            f"{len(texts)} in one request": embed_in_groups(texts, len(texts)),
            "in another order": embed_in_groups([texts[i] for i in order], len(texts)),
        }
    others["in another order"] = others["in another order"][np.argsort(order)]
    if arguments.checkpoint:
        others["torch"] = embed_by_torch(arguments, texts)
    print(f"| {len(texts)} texts, one a request, against | largest difference |\n|---|---|")
    for name, rows in others.items():
        print(f"| {name} | {np.abs(rows - alone).max():.1e} |")


def embed_in_groups(texts: list[str], size: int) -> Rows:
    """The texts' embeddings over HTTP, ``size`` texts a request."""
    rows: list[list[float]] = []
    for start in range(0, len(texts), size):
        body = json.dumps({"inputs": texts[start : start + size]}).encode()
        request = urllib.request.Request(
            f"{URL}/embed", body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            rows += json.load(answer)
    return np.array(rows, dtype=np.float32)


def embed_by_torch(arguments: argparse.Namespace, texts: list[str]) -> Rows:
    """The texts' embeddings by torch, with the artifact's rounding of the weights."""
    from model.artifact import Artifact
    from model.encoder import load_encoder
    from model.export import round_weights

    encoder = load_encoder(arguments.checkpoint)
    if Artifact.open(arguments.artifact).manifest.precision == "weight-int8":
        encoder = round_weights(encoder)
    return np.asarray(encoder.encode(texts, normalize_embeddings=True), dtype=np.float32)


if __name__ == "__main__":
    main()
