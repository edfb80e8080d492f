"""Reads the training corpus: single texts, or tuples of related texts, from files in one folder.

    file                    texts              pairs (of one meaning)         related
    wikisplit.tsv.gz        simple1; simple2   (complex, simple1 + simple2)   (complex, simple1),
                                                                              (simple1, simple2)
    captions.tsv.gz         each caption       (1, 2), (3, 4)                 (1, 2), (3, 4)
    pan-paraphrase.tsv.gz   both sentences     the pairs labelled 1           every pair
    another .txt            each line          -                              -
    another .tsv or .csv    -                  its two columns, or three:     its two columns
                                               the last is a hard negative
                                               (the first line is a header)

`training.sources.by_name` has others. Any file may end in .gz. Runs of white space become single
spaces. Empty lines are left out and texts of more than `MAX_CHARACTERS` cut or left out, as the
part says; both are counted. Any other line that cannot be used raises an error with its number, so
that no run trains on a corpus that is silently smaller than intended.
"""

import csv
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from s2sent.training.errors import DataError
from s2sent.training.files.sentences import not_a_file
from s2sent.training.recipe.objectives import ExampleKind
from s2sent.training.recipe.recipe import CorpusPart, TooLong

MAX_CHARACTERS = 10_000  # per text

Example = tuple[str, ...]  # a text, a pair, or a pair and its hard negative


@dataclass(frozen=True)
class Source:
    """One known file: its name, its header, and the examples of each kind in one of its rows."""

    file: str
    columns: tuple[str, ...]
    examples: Mapping[ExampleKind, Callable[[Sequence[str]], list[Example]]]


SOURCES = {
    "wikisplit": Source(
        "wikisplit.tsv.gz",
        ("complex", "simple1", "simple2"),
        {
            "texts": lambda row: [(text,) for text in row[1:]],
            "pairs": lambda row: [(row[0], f"{row[1]} {row[2]}")],
            "related": lambda row: [(row[0], row[1]), (row[1], row[2])],
        },
    ),
    "captions": Source(
        "captions.tsv.gz",
        tuple(f"caption{number}" for number in range(1, 6)),
        {
            "texts": lambda row: [(text,) for text in row],
            "pairs": lambda row: [(row[0], row[1]), (row[2], row[3])],
            "related": lambda row: [(row[0], row[1]), (row[2], row[3])],
        },
    ),
    "pan_paraphrase": Source(
        "pan-paraphrase.tsv.gz",
        ("label", "sentence1", "sentence2"),
        {
            "texts": lambda row: [(text,) for text in row[1:]],
            "pairs": lambda row: [(row[1], row[2])] if row[0] == "1" else [],
            "related": lambda row: [(row[1], row[2])],
        },
    ),
}


@dataclass(frozen=True)
class Corpus:
    """The examples of each source, all of one width, and the sha256 of all of them in order.

    ``changed`` says of a source how many lines were not taken as they are, where there were any.
    """

    parts: dict[str, list[Example]]
    sha256: str
    changed: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples of each source."""
        return {name: len(rows) for name, rows in self.parts.items()}

    def texts(self) -> list[str]:
        """Every text once, in the order of its first appearance."""
        rows = (row for part in self.parts.values() for row in part)
        return list(dict.fromkeys(text for row in rows for text in row))


@dataclass
class Lines:
    """Takes lines of a source as they are, but for empty and overlong ones, which it counts."""

    too_long: TooLong
    empty: int = 0
    long: int = 0

    def taken(self, row: list[str]) -> list[str] | None:
        """The row, with overlong cells cut; None for one that is left out."""
        if not any(row):
            self.empty += 1
            return None
        if all(len(cell) <= MAX_CHARACTERS for cell in row):
            return row
        self.long += 1
        return [cell[:MAX_CHARACTERS] for cell in row] if self.too_long == "cut" else None

    def __str__(self) -> str:
        done = "cut" if self.too_long == "cut" else "left out"
        counts = {
            "empty lines left out": self.empty,
            f"lines {done} for more than {MAX_CHARACTERS:,} characters": self.long,
        }
        return ", ".join(f"{what}: {count:,}" for what, count in counts.items() if count)


Make = Callable[[Path, CorpusPart, ExampleKind, Lines], Iterable[Example]]


def read_corpus(
    folder: Path,
    parts: Iterable[CorpusPart],
    *,
    kind: ExampleKind,
    made: Mapping[str, Make] = MappingProxyType({}),
) -> Corpus:
    """Read the examples of ``parts``: single texts, pairs (or triples), or related pairs.

    ``made`` are sources that make their examples. Where a source gives more examples than its
    part's limit, they are taken at equal steps through it, because the files are sorted. Repeated
    examples and pairs of equal texts are left out. Raises `DataError` naming the file and line of
    anything that cannot be used.
    """
    seen: set[Example] = set()
    found: dict[str, list[Example]] = {}
    changed: dict[str, str] = {}
    for part in parts:
        lines = Lines(part.too_long)
        rows = dict.fromkeys(_rows(folder, part, kind, lines, made))
        fresh = [row for row in rows if row not in seen and (len(row) == 1 or row[0] != row[1])]
        taken = _spread(fresh, part.limit * part.join or len(fresh))
        seen.update(taken)
        if (name := part.label) in found:
            raise DataError(f"The corpus names {name} twice: name it once, with one limit.")
        found[name] = _join(taken, part.join, kind)
        if not found[name]:
            raise DataError(f"{folder} gave no rows of {part.source}: name another source.")
        if said := str(lines):
            changed[name] = said
    digest = hashlib.sha256()
    for row in (row for rows_of_part in found.values() for row in rows_of_part):
        digest.update("\t".join(row).encode() + b"\n")
    return Corpus(found, digest.hexdigest(), changed)


def _rows(
    folder: Path, part: CorpusPart, kind: ExampleKind, lines: Lines, made: Mapping[str, Make]
) -> Iterable[Example]:
    name = part.source
    if name in SOURCES:
        return known_rows(folder, SOURCES[name], kind, lines)
    if name in made:
        return made[name](folder, part, kind, lines)
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in (".txt", ".tsv", ".csv"):
        known = ", ".join([*SOURCES, *made])
        raise DataError(f"{name} is no known source: use {known}, or a .txt, .tsv or .csv file.")
    if (suffix == ".txt") != (kind == "texts"):
        needs = "single texts, a .txt file" if kind == "texts" else "pairs, a .tsv or .csv file"
        raise DataError(f"{folder / name} does not fit the objective, which needs {needs}.")
    return _file_rows(folder / name, lines, comma=suffix == ".csv", kind=kind)


def known_rows(folder: Path, source: Source, kind: ExampleKind, lines: Lines) -> Iterator[Example]:
    """The examples of a known file of the folder."""
    for row in read_table(folder / source.file, source.columns, lines=lines):
        yield from source.examples[kind](row)


def _file_rows(path: Path, lines: Lines, *, comma: bool, kind: ExampleKind) -> Iterator[Example]:
    """The lines of a text file, or of a table whose header sets the number of columns."""
    header = 1 if kind == "texts" else 0
    for number, row in _lines(path, comma=comma):
        if kind == "texts":
            row = [" ".join(" ".join(row).split())]
        elif not header and any(row):
            header = len(row)
            if header != 2 and (header, kind) != (3, "pairs"):
                most = "two or three" if kind == "pairs" else "two"
                raise DataError(f"{path} has {header} columns: it must have {most}.")
            continue
        if (taken := lines.taken(row)) is not None:
            columns = [f"column {n}" for n in range(1, header + 1)]
            yield tuple(_checked(path, number, taken, columns))


def _join(rows: list[Example], count: int, kind: ExampleKind) -> list[Example]:
    """Texts of ``count`` of the single texts each; one that stays over is left out."""
    if count == 1:
        return rows
    if kind != "texts":
        raise DataError(f"join = {count} puts single texts together: leave it out for {kind}.")
    groups = zip(*[iter(rows)] * count, strict=False)
    return [(" ".join(text for (text,) in group),) for group in groups]


def _spread(rows: list[Example], limit: int) -> list[Example]:
    """At most ``limit`` of the examples, at equal steps."""
    count = min(limit, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    may_lack_text: bool = False,
    lines: Lines | None = None,
) -> Iterator[list[str]]:
    """Yield the rows of a tab-separated file, plain or gzip, whose first line is its header.

    Cells keep their quotes and have their white space folded. Raises `DataError` when the file is
    missing or not gzip, the header differs, or a line is not UTF-8, has another number of
    cells, or an empty (but for ``may_lack_text``) or overlong one. ``lines`` leaves lines out or
    cuts them before that.
    """
    headed = False
    for number, row in _lines(path):
        taken = lines.taken(row) if lines and (headed or not any(row)) else row
        if taken is None:
            continue
        if headed:
            yield _checked(path, number, taken, columns, shortest=0 if may_lack_text else 1)
        elif row != list(columns):
            raise DataError(f"{path} starts with {row}, not with the header {list(columns)}.")
        headed = True
    if not headed:
        raise DataError(f"{path} is empty and has no rows: fetch it again.")


def _checked(
    path: Path, number: int, row: list[str], columns: Sequence[str], *, shortest: int = 1
) -> list[str]:
    """The row itself, if it has a cell for each column and each cell an allowed length."""
    where = f"{path}, line {number}"
    if len(row) != len(columns):
        raise DataError(
            f"{where} has {len(row)} cells where the header has {len(columns)}: correct the line."
        )
    for column, cell in zip(columns, row, strict=True):
        if not shortest <= len(cell) <= MAX_CHARACTERS:
            raise DataError(
                f"{where} has {len(cell)} characters in {column}, "
                f"outside 1 to {MAX_CHARACTERS}: correct or delete the line."
            )
    return row


def _lines(path: Path, *, comma: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row of a file and the number of the line where it begins.

    Quotes have a meaning in CSV only, where a row may take several lines.
    """
    ended = read = 0  # the last line of the row before, and the last one that was read

    def decoded(file: Iterable[bytes]) -> Iterator[str]:
        nonlocal read
        for line in file:
            read += 1
            yield line.decode("utf-8-sig" if read == 1 else "utf-8")

    try:
        if not path.is_file():
            raise DataError(not_a_file(path))
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            lines = decoded(file)
            cells = (line.rstrip("\r\n").split("\t") for line in lines)
            rows: Iterable[list[str]] = csv.reader(lines, strict=True) if comma else cells
            for row in rows:
                yield ended + 1, [" ".join(cell.split()) for cell in row]
                ended = read
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {read} is not UTF-8 ({error.reason}): correct it.") from None
    except csv.Error as error:
        raise DataError(f"{path}, line {ended + 1} is not CSV ({error}): correct it.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path} is not a whole gzip file: fetch it again.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): look at the file.") from None
