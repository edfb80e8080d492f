"""What an exit should pool where a matrix follows: a checkpoint's frozen blocks, by least squares.

    python -m benchmarks.studies.exit_projections CHECKPOINT --data DATA --retrieval FILE

At each depth of a checkpoint whose selector has exits: the last block, the mean of the blocks that
its exit fuses, what its exit's gate makes of them, and all of them side by side. Each as it is
pooled, and times the matrix that brings its vectors of corpus texts closest to those of full depth.
Prints Spearman x 100 on STS-B dev without STS12 to 16 and R@1 of FILE.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from s2sent.model.network.encoder import get_selector, load_encoder
from s2sent.model.network.selector_states import pool_tokens
from s2sent.training.corpus import read_corpus
from s2sent.training.evaluation.development import read_development_pairs
from s2sent.training.evaluation.retrieval import read_retrieval, retrieval_scores
from s2sent.training.evaluation.sts import spearman
from s2sent.training.loop.projections import least_squares
from s2sent.training.recipe.recipe import CorpusPart

SOURCES = ("wikisplit", "captions", "pan_paraphrase")
SIDE_BY_SIDE = "all side by side"
Rows = NDArray[np.float32]
Pooled = dict[tuple[int, str], Rows]  # by depth and what is pooled; full depth under (0, "")


def main(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint with exits.")],
    data: Annotated[Path, typer.Option(help="Folder of the development data.")],
    retrieval: Annotated[Path, typer.Option(help="Table of queries and documents.")],
    texts: Annotated[int, typer.Option(help="Texts of each source of the corpus.")] = 2_000,
) -> None:
    """Print the table."""
    encoder = load_encoder(checkpoint).eval()
    parts = [CorpusPart(source=source, limit=texts) for source in SOURCES]
    parts += [CorpusPart(source=source, limit=texts // 2, join=3) for source in SOURCES]
    fitted = pool(encoder, read_corpus(data / "corpus", parts, kind="texts").texts())
    pairs = read_development_pairs(data / "sts").without_overlap
    columns = [*map(list, (pairs.first, pairs.second)), *map(list, read_retrieval(retrieval))]
    first, second, queries, documents = (pool(encoder, column) for column in columns)
    typer.echo("| depth | what is pooled | dev | R@1 | dev, projected | R@1, projected |")
    typer.echo("|---|---|---:|---:|---:|---:|")
    for key in sorted(fitted.keys() - {(0, "")}):
        matrix = least_squares(unit(fitted[key]), unit(fitted[0, ""]))
        cells = []
        for change in (np.eye(len(matrix), dtype=np.float32), matrix):
            one, two, asked, found = (
                unit(each[key]) @ change for each in (first, second, queries, documents)
            )
            cells += [spearman(one, two, pairs.gold), retrieval_scores(asked, found)["R@1"]]
        shown = " | ".join(f"{cell:.2f}" for cell in cells)
        typer.echo(f"| {key[0]} | {key[1]} | {shown} |")


def pool(encoder: SentenceTransformer, texts: list[str]) -> Pooled:
    """The vectors [n, D] of n texts by depth and by what is pooled there."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    parts: dict[tuple[int, str], list[Rows]] = {}
    for start in range(0, len(order), 64):
        batch = [texts[place] for place in order[start : start + 64]]
        with torch.inference_mode():
            features = encoder(encoder.preprocess([*batch]))
            for key, rows in _pool_batch(encoder, features).items():
                parts.setdefault(key, []).append(rows.float().numpy())
    back = np.argsort(order)
    return {key: np.concatenate(rows)[back] for key, rows in parts.items()}


def _pool_batch(
    encoder: SentenceTransformer, features: dict[str, torch.Tensor]
) -> dict[tuple[int, str], torch.Tensor]:
    selector, mask = get_selector(encoder), features["attention_mask"]
    states = features["all_layer_embeddings"]
    means = [pool_tokens(state, mask, selector.config.pooling) for state in states]
    found = {(0, ""): features["sentence_embedding"]}
    for depth in selector.config.exits:
        own = [means[number] for number in selector.block_numbers(len(states) - 1, depth)]
        blocks = selector.select_blocks(states, depth)  # type: ignore[arg-type]  # a tuple of tensors
        found[depth, "last block"] = means[depth]
        found[depth, f"mean of {len(own)}"] = torch.stack(own).mean(0)
        found[depth, "S2Sent"] = selector.at(depth).pool(blocks, mask)
        found[depth, SIDE_BY_SIDE] = torch.cat(own, dim=1)
    return found


def unit(rows: Rows) -> Rows:
    """Rows of length 1."""
    lengths: Rows = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


if __name__ == "__main__":
    typer.run(main)
