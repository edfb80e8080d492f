"""The same texts over HTTP in every grouping, against each other and against torch.

    python -m benchmarks.studies.consistency --texts FILE [--checkpoint FOLDER] [--artifact FOLDER]

Prints the largest absolute difference of any component: one text a request, seven, all at once, all
at once in another order, and torch on the checkpoint (its weights rounded as the artifact's are).
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.load.texts import read_texts
from benchmarks.systems.ours import our_service
from benchmarks.systems.running import running
from benchmarks.systems.system import DEFAULT_ARTIFACT, Rows


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--checkpoint", type=Path, help="what the artifact was exported from")
    parser.add_argument("--texts", type=Path, help="one text a line")
    parser.add_argument("--count", type=int, default=200, help="texts to compare")
    arguments = parser.parse_args()
    texts = read_texts(arguments.texts)[: arguments.count]
    order = random.Random(0).sample(range(len(texts)), len(texts))  # noqa: S311  a reproducible order
    with (
        tempfile.NamedTemporaryFile() as log,
        running(our_service(arguments.artifact), Path(log.name)) as service,
    ):
        alone = service.embed(texts)
        others = {
            "seven a request": service.embed(texts, together=7),
            f"{len(texts)} in one request": service.embed(texts, together=len(texts)),
            "in another order": service.embed([texts[i] for i in order], together=len(texts)),
        }
    others["in another order"] = others["in another order"][np.argsort(order)]
    if arguments.checkpoint:
        others["torch"] = embed_by_torch(arguments.checkpoint, arguments.artifact, texts)
    print(f"| {len(texts)} texts, one a request, against | largest difference |\n|---|---|")
    for name, rows in others.items():
        print(f"| {name} | {np.abs(rows - alone).max():.1e} |")


def embed_by_torch(checkpoint: Path, artifact: Path, texts: list[str]) -> Rows:
    """The texts' embeddings by torch, with the artifact's rounding of the weights."""
    from s2sent.model.artifact.reader import Artifact
    from s2sent.model.export.int8.rounding import round_weights
    from s2sent.model.network.encoder import load_encoder

    encoder = load_encoder(checkpoint)
    if Artifact.open(artifact).manifest.precision == "weight-int8":
        encoder = round_weights(encoder)
    return np.asarray(encoder.encode(texts, normalize_embeddings=True), dtype=np.float32)


if __name__ == "__main__":
    main()
