"""Runs the twin experiment: trains and scores what is missing, one JSON line for each score.

First every cell is trained and scored on development data, then all are scored on the tests. What
has its checkpoint or its line is not done again, so an interrupted series goes on when its command
is given again.
"""

import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from s2sent.training.backbones import resolve
from s2sent.training.corpus import read_corpus
from s2sent.training.evaluation.encoders import load_checkpoint
from s2sent.training.evaluation.results.openings import note_opening
from s2sent.training.experiments.checkpoints import Train, ensure_checkpoint
from s2sent.training.experiments.locks import claim, lock_of
from s2sent.training.experiments.paper.cells import Series, backbone_name, size_of
from s2sent.training.experiments.paper.runs import VERSIONS
from s2sent.training.experiments.twins.join import joined
from s2sent.training.experiments.twins.plan import ARMS, TWIN_BUDGETS, TwinCell, new_plan
from s2sent.training.experiments.twins.scoring import score_on_development, score_on_tests
from s2sent.training.experiments.twins.tables import KEY, write_twin_tables
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import provenance
from s2sent.training.train import train as train_recipe

log = logging.getLogger(__name__)

RESULTS_FILE = "jtcse.jsonl"  # in the folder of a backbone's results
CHECKPOINTS = "jtcse"
PARTS = ("development", "tests")


def reproduce_twins(
    series: Series, *, only_tables: bool = False, train: Train = train_recipe
) -> Path:
    """Run what is missing of a series, and return the path of its tables.

    Raises a `TrainingError` for what cannot be run, and `Interrupted` when a signal ended a run.
    """
    file = series.folder / RESULTS_FILE
    if not only_tables:
        _run(series, file, train)
    return write_twin_tables(file)


def cells_of(series: Series) -> list[TwinCell]:
    """The cells of a series: every seed without selectors, then every seed with them."""
    blocks, _ = size_of(resolve(series.backbone))
    plan = new_plan(
        series.backbone, blocks, series.budget, steps=series.steps, corpus=series.corpus
    )
    seeds = series.seeds or TWIN_BUDGETS[series.budget].seeds
    return [
        TwinCell(plan, seed, selector, _folder(series, seed, selector=selector))
        for selector in (False, True)
        for seed in seeds
    ]


def _folder(series: Series, seed: int, *, selector: bool) -> Path:
    return series.folder / CHECKPOINTS / f"seed{seed}{'-selector' if selector else ''}"


def _run(series: Series, file: Path, train: Train) -> None:
    """Run what is missing; a cell that another process has is left to it."""
    cells = cells_of(series)
    sha256 = _corpora_sha256(cells[0], series.data)
    for part in PARTS:
        for cell in cells:
            if any(_missing(cell, part, sha256, file)):
                with claim(lock_of(cell.folder), f"{cell.name}, {part}") as free:
                    for head in _missing(cell, part, sha256, file) if free else ():
                        log.info("%s: %s, %s", cell.name, head["arm"], part)
                        append_line(file, _line(head, cell, series.data, train))
        if any(any(_missing(cell, part, sha256, file)) for cell in cells):
            log.info("%s is not done by other processes: give the same command again then", part)
            return
    for cell in (cell for cell in cells if cell.folder.is_dir()):
        with claim(lock_of(cell.folder), cell.name) as free:
            if free:
                _leave(cell, keep=series.keep)


def _leave(cell: TwinCell, *, keep: bool) -> None:
    """Delete the checkpoints of a cell; those that are kept get a line that tests were opened."""
    if not keep:
        shutil.rmtree(cell.folder, ignore_errors=True)
        return
    for run in dict.fromkeys(run for _, runs in ARMS.values() for run in runs):
        note_opening(str(cell.checkpoint(run)))


def _corpora_sha256(cell: TwinCell, data: Path) -> dict[str, str]:
    """The hash of what each run reads, which is the same for every cell."""
    return {
        run: read_corpus(data / "corpus", recipe.corpus, kind=recipe.objective.example_kind).sha256
        for run, recipe in cell.recipes().items()
    }


def _missing(
    cell: TwinCell, part: str, sha256: dict[str, str], file: Path
) -> Iterator[dict[str, Any]]:
    """The beginnings of the lines of a cell that the file does not hold."""
    known = [{key: line.get(key) for key in KEY} for line in read_lines(file)]
    for arm in ARMS:
        head = {
            "plan": {**asdict(cell.plan), "backbone": backbone_name(cell.plan.backbone)},
            "corpus_sha256": sha256,
            "part": part,
            "selector": cell.selector,
            "seed": cell.seed,
            "arm": arm,
        }
        if head not in known:
            yield head


def _line(head: dict[str, Any], cell: TwinCell, data: Path, train: Train) -> dict[str, Any]:
    runs = ARMS[head["arm"]][1]
    for run in ("tower_a", "tower_b", *(("jtcse",) if head["arm"] == "distilled" else ()), *runs):
        ensure_checkpoint(cell.checkpoint(run), cell.recipes()[run], data, train)
    started = time.monotonic()
    encoder = _encoder(cell, *runs)
    if head["part"] == "tests":
        found = score_on_tests(encoder, data)
    else:
        single = len(runs) == 1 and runs[0] in ("simcse_a", "distilled")
        start = _encoder(cell, *(("tower_a",) if single else ("tower_a", "tower_b")))
        found = score_on_development(encoder, start, data)
    return {
        **head,
        **found,
        "seconds_scoring": round(time.monotonic() - started, 1),
        "versions": {name: version(name) for name in VERSIONS},
        **provenance(),
    }


def _encoder(cell: TwinCell, *runs: str) -> SentenceTransformer:
    """The encoder of a run, or two runs' encoders summed."""
    folders = [cell.checkpoint(run) for run in runs]
    return load_checkpoint(folders[0]) if len(folders) == 1 else joined(*map(str, folders))
