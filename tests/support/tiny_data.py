"""A data folder in the real layout with a few dozen made-up sentences."""

import gzip
import itertools
from collections.abc import Sequence
from pathlib import Path

_WHO = ("a man", "a woman", "a child", "a dog", "a cat", "the old bird")
_DOES = ("plays the guitar", "reads a book", "runs in the street", "eats food", "sings")
_WHERE = ("in the city", "at the house", "by the river")

SENTENCES = [" ".join(words) + "." for words in itertools.product(_WHO, _DOES, _WHERE)]


def write_table(path: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    """Write tab-separated rows, the header first; compressed when the name ends in .gz."""
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def tiny_data(folder: Path) -> Path:
    """Write ``corpus/`` with two sources and ``sts/`` with the dev set."""
    header = tuple(f"caption{number}" for number in range(1, 6))
    captions = [tuple(SENTENCES[start : start + 5]) for start in range(0, 60, 5)]
    write_table(folder / "corpus" / "captions.tsv.gz", [header, *captions])
    halves = zip(SENTENCES[60:75], SENTENCES[75:], strict=True)
    split = [(f"{a} and {b}", a, b) for a, b in halves]
    write_table(folder / "corpus" / "wikisplit.tsv.gz", [("complex", "simple1", "simple2"), *split])
    dev = [
        ("tiny", str(len(set(a.split()) & set(b.split()))), a, b)
        for a, b in itertools.pairwise(SENTENCES[::2])
    ]
    write_table(
        folder / "sts" / "stsb-dev.tsv", [("subset", "score", "sentence1", "sentence2"), *dev]
    )
    return folder
