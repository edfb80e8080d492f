"""Collects pairs of a summary and the description below it from the docstrings of Python packages.

Such pairs are technical texts of two lengths about one thing, as a query and the document that
answers it; the description is what stands before the first section, list of fields or example.
"""

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from s2sent.training.errors import DataError
from s2sent.training.files.tables import require_new_table, write_table

HEADER = ("summary", "description")
SUMMARY_WORDS = range(4, 26)
LEAST_DESCRIPTION_WORDS = 12
MOST_DESCRIPTION_WORDS = 75  # further words are cut off
LEAST_SHARE_OF_LETTERS = 0.9  # of a description's characters, spaces counted as letters
LEFT_OUT = {"test", "tests", "site-packages", "dist-packages"}  # folders below the one named
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

SECTION = re.compile(
    r"\s*((args?|arguments|keyword arguments|parameters?|params|attributes|inputs?|outputs?|shape"
    r"|returns?|yields?|raises?|warnings?|notes?|usage|examples?|see also|references)\s*:{0,2}\s*$"
    r"|>>>|\.\.|---|===|:param|:type|:return|@|\$ )",
    re.IGNORECASE,
)
FIRST_SENTENCE = re.compile(r"(.+?[.!?])\s+(?=[A-Z`\"'(])(.*)")


def write_docstrings(output: Path, folders: Sequence[Path] = ()) -> int:
    """Write the pairs of ``folders`` to a table for ``[[corpus]]``; returns their number.

    Without folders, those of the standard library and of the packages beside this one. Raises
    `ConfigError` when ``output`` exists or is no .tsv file, `DataError` when a folder is missing
    or no pair was found.
    """
    require_new_table(output)
    folders = folders or [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    pairs = list(read_docstrings(folders))
    if not pairs:
        raise DataError(
            f"No docstring of {', '.join(map(str, folders))} has a description: name the folder of "
            "a package whose source has longer docstrings."
        )
    write_table(output, HEADER, pairs)
    return len(pairs)


def read_docstrings(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Each summary with its description, in the order of the files' names.

    A pair whose summary, or whose description's beginning, was seen before is left out, and so are
    files that this Python cannot parse. Raises `DataError` for a folder that is missing.
    """
    seen: set[str] = set()
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder: name one that holds Python packages.")
        for path in sorted(folder.rglob("*.py")):
            if LEFT_OUT & set(path.relative_to(folder).parts):
                continue
            for docstring in _docstrings(path):
                pair = split_docstring(docstring)
                if pair is None:
                    continue
                keys = {_letters(text)[:80] for text in pair}
                if not keys & seen:
                    yield pair
                seen |= keys


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """The summary and the description of a docstring; None where it lacks one of them.

    Also None where one of them is no plain English prose by its length or characters.
    """
    prose: list[str] = []
    for line in docstring.splitlines():
        if SECTION.match(line):
            break
        prose.extend(line.split())
    text = " ".join(prose)
    sentence = FIRST_SENTENCE.match(text)
    if sentence is None or not text.isascii() or not text.isprintable():
        return None
    summary, words = sentence[1], sentence[2].split()
    if len(summary.split()) not in SUMMARY_WORDS or len(words) < LEAST_DESCRIPTION_WORDS:
        return None
    description = " ".join(words[:MOST_DESCRIPTION_WORDS])
    letters = sum(character.isalpha() or character == " " for character in description)
    if letters < LEAST_SHARE_OF_LETTERS * len(description):
        return None
    return summary, description


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in other people's strings
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            return
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield docstring


def _letters(text: str) -> str:
    return re.sub(r"\W+", "", text.lower())
