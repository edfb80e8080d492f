"""The training corpus: pairs of texts that mean the same or nearly so, from three files.

    wikisplit.tsv.gz        complex, simple1, simple2          -> (complex, simple1 + simple2)
    captions.tsv.gz         five captions of one picture       -> (1, 2), (3, 4)
    pan-paraphrase.tsv.gz   label, sentence1, sentence2        -> the pairs labelled 1

A line is taken as it is but for its white space, which becomes single spaces. A line that cannot
be used stops the reading with its number: a corpus that is silently smaller than thought makes
results that nobody can repeat.
"""

import gzip
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.errors import DataError

MAX_CHARACTERS = 10_000  # per text; a longer one is a broken line, not a sentence

Pair = tuple[str, str]


@dataclass(frozen=True)
class Source:
    """One file of the corpus: its name, its header, and the pairs that a row of it gives."""

    file: str
    columns: tuple[str, ...]
    pairs: Callable[[Sequence[str]], list[Pair]]


SOURCES = {
    "wikisplit": Source(
        "wikisplit.tsv.gz",
        ("complex", "simple1", "simple2"),
        lambda row: [(row[0], f"{row[1]} {row[2]}")],
    ),
    "captions": Source(
        "captions.tsv.gz",
        tuple(f"caption{number}" for number in range(1, 6)),
        lambda row: [(row[0], row[1]), (row[2], row[3])],
    ),
    "pan_paraphrase": Source(
        "pan-paraphrase.tsv.gz",
        ("label", "sentence1", "sentence2"),
        lambda row: [(row[1], row[2])] if row[0] == "1" else [],
    ),
}


@dataclass(frozen=True)
class Corpus:
    """Pairs of texts, how many each source gave, and the sha256 of them all in order."""

    pairs: tuple[Pair, ...]
    counts: dict[str, int]
    sha256: str

    def texts(self) -> list[str]:
        """Every text once, in the order of its first appearance."""
        return list(dict.fromkeys(text for pair in self.pairs for text in pair))


def read_corpus(folder: Path, limits: dict[str, int]) -> Corpus:
    """Read at most ``limits[source]`` pairs of each source named in ``limits``.

    When a file gives more than its limit, pairs are taken at equal steps through it (the files
    are sorted, so its head is no sample). Pairs seen before, and pairs of equal texts, are left
    out. Raises `DataError` naming the file and line of anything that cannot be used.
    """
    pairs: dict[Pair, None] = {}  # a set that keeps the order
    counts = {}
    for name, limit in limits.items():
        source = SOURCES[name]
        rows = read_table(folder / source.file, source.columns)
        found = dict.fromkeys(pair for row in rows for pair in source.pairs(row))
        taken = _spread([pair for pair in found if pair[0] != pair[1] and pair not in pairs], limit)
        pairs.update(dict.fromkeys(taken))
        counts[name] = len(taken)
    if not pairs:
        raise DataError(f"{folder} gave no pairs of {', '.join(limits)}: name another folder.")
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update("\t".join(pair).encode() + b"\n")
    return Corpus(tuple(pairs), counts, digest.hexdigest())


def _spread(pairs: list[Pair], limit: int) -> list[Pair]:
    """At most ``limit`` of the pairs, at equal steps."""
    count = min(limit, len(pairs))
    return [pairs[index * len(pairs) // count] for index in range(count)]


def read_table(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a tab-separated file, plain or gzip, whose first line is its header.

    Cells keep their quotes and have their white space folded. Raises `DataError` when the file is
    missing or not gzip, the header differs, or a line is not UTF-8, has another number of
    cells, or an empty or overlong one.
    """
    number = 0
    for number, row in enumerate(_lines(path), start=1):
        if number == 1:
            if row != list(columns):
                raise DataError(f"{path} starts with {row}, not with the header {list(columns)}.")
            continue
        where = f"{path}, line {number}"
        if len(row) != len(columns):
            raise DataError(
                f"{where} has {len(row)} cells where the header has {len(columns)}: mend the line."
            )
        for column, cell in zip(columns, row, strict=True):
            if not cell or len(cell) > MAX_CHARACTERS:
                raise DataError(
                    f"{where} has {len(cell)} characters in {column}, "
                    f"outside 1 to {MAX_CHARACTERS}: mend or delete the line."
                )
        yield row
    if number == 0:
        raise DataError(f"{path} is empty: fetch it again.")


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield each line of a file as its cells."""
    if not path.is_file():
        raise DataError(f"{path} is not a file: name the folder that holds it.")
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007 - read by the handler below
                cells = line.decode().rstrip("\r\n").split("\t")
                yield [" ".join(cell.split()) for cell in cells]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number} is not UTF-8 ({error.reason}): mend it.") from None
    except (gzip.BadGzipFile, EOFError):
        raise DataError(f"{path} is not a whole gzip file: fetch it again.") from None
