"""Sources of a corpus that are more than the lines of a file, by their names in a recipe.

texts           texts.tsv.gz: single texts of the origins that ``groups`` names, or of all;
                related are two texts of one origin
far_captions    captions without those near a sentence of an STS task
caption_edits   pairs of captions that differ by an edit
"""

from collections.abc import Sequence
from pathlib import Path

from s2sent.training.corpus import SOURCES, Example, Lines, Make, known_rows, read_table
from s2sent.training.errors import DataError
from s2sent.training.recipe.objectives import ExampleKind
from s2sent.training.recipe.recipe import TEXTS, CorpusPart
from s2sent.training.sources.caption_edits import far_from_tasks, read_caption_edits

TEXTS_FILE = "texts.tsv.gz"


def _texts(folder: Path, part: CorpusPart, kind: ExampleKind, lines: Lines) -> Sequence[Example]:
    path = folder / TEXTS_FILE
    if kind == "pairs":
        raise DataError(f"{path} has no pairs of one meaning: name another source.")
    found: dict[str, list[str]] = {}
    for origin, text in read_table(path, ("source", "text"), lines=lines):
        found.setdefault(origin, []).append(text)
    if unknown := [group for group in part.groups if group not in found]:
        known = ", ".join(sorted(found))
        raise DataError(f"{path} has no texts of {', '.join(unknown)}: use {known}.")
    chosen = [found[group] for group in part.groups or sorted(found)]
    if kind == "texts":
        return [(text,) for texts in chosen for text in texts]
    return [pair for texts in chosen for pair in zip(texts[::2], texts[1::2], strict=False)]


def _far_captions(
    folder: Path, _: CorpusPart, kind: ExampleKind, lines: Lines
) -> Sequence[Example]:
    return far_from_tasks(known_rows(folder, SOURCES["captions"], kind, lines), folder.parent)


def _caption_edits(folder: Path, _: CorpusPart, kind: ExampleKind, __: Lines) -> Sequence[Example]:
    if kind != "related":
        raise DataError(f"Caption edits are related texts, and the objective needs {kind}.")
    return read_caption_edits(folder.parent)


MADE: dict[str, Make] = {
    TEXTS: _texts,
    "far_captions": _far_captions,
    "caption_edits": _caption_edits,
}
