"""Twin encoders beside their controls: the runs of each seed, their scores, and the tables."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from s2sent.model.network.twin_encoder import TwinEncoder
from s2sent.training.backbones import resolve
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import (
    ALL_PAIRS,
    WITHOUT_OVERLAP,
    read_development_pairs,
    score_development,
)
from s2sent.training.evaluation.encoders import torch_encode
from s2sent.training.evaluation.geometry import geometry_of
from s2sent.training.evaluation.results.statistics import Value, compare
from s2sent.training.evaluation.sts import (
    TASKS,
    Remembered,
    cosines,
    read_tasks,
    score,
    with_average,
)
from s2sent.training.experiments.arms.twin_recipes import ARMS, CONTROL, LABELS, Plan, TwinCell
from s2sent.training.experiments.engine import (
    DEVELOPMENT,
    TESTS,
    Run,
    Series,
    Train,
    read_results,
    run_missing,
    size_of,
)
from s2sent.training.experiments.score import (
    development_texts,
    first_token_norm,
    fusion_weights,
    versions,
)
from s2sent.training.experiments.tables import (
    Cell,
    Runs,
    arms_of,
    arms_table,
    count,
    difference_columns,
    get,
    spread,
    write_page,
)
from s2sent.training.files.record import read_record
from s2sent.training.train import train as train_recipe

RESULTS_FILE = "jtcse.jsonl"  # in the folder of a backbone's results
BUDGETS = {  # steps, batch size, seeds
    "smoke": (2, 8, (1,)),
    "short": (100, 32, (1, 2, 3)),
    "full": (1000, 64, (1, 2, 3)),
}


def reproduce_twins(
    series: Series, *, only_tables: bool = False, train: Train = train_recipe
) -> Path:
    """Run what is missing of a series, and return the path of its tables.

    Raises a `TrainingError` for what cannot be run, and `Interrupted` when a signal ended a run.
    """
    if not only_tables:
        runs = runs_of(series)
        read_tasks(series.data / "sts")  # so that no run ends at a file that cannot be used
        run_missing(runs, series.data, keep=series.keep, train=train)
    return write_twin_tables(series.folder / RESULTS_FILE, series.command)


def cells_of(series: Series) -> list[TwinCell]:
    """The cells of a series: every seed without selectors, then every seed with them.

    Half of the blocks have cross-attention, as 6 of 12 have in the paper. Raises `ConfigError` for
    a backbone of one block.
    """
    blocks, _ = size_of(resolve(series.backbone))
    if blocks < 2:
        raise ConfigError(f"{series.backbone} has {blocks} block: name a backbone of two or more.")
    steps, batch_size, seeds = BUDGETS[series.budget]
    plan = Plan(series.backbone, blocks // 2, series.steps or steps, batch_size, series.corpus)
    folder = series.folder / "jtcse"
    return [
        TwinCell(plan, seed, selector, folder / f"seed{seed}{'-selector' * selector}")
        for selector in (False, True)
        for seed in series.seeds or seeds
    ]


def runs_of(series: Series) -> list[Run]:
    """Every arm of every cell, first on development data and then on the tests."""
    cells = cells_of(series)
    sha256 = {  # which are the same for every cell
        run: read_corpus(
            series.data / "corpus", recipe.corpus, kind=recipe.objective.example_kind
        ).sha256
        for run, recipe in cells[0].recipes().items()
    }
    return [
        _run(series, cell, part, arm, sha256)
        for part in (DEVELOPMENT, TESTS)
        for cell in cells
        for arm in ARMS
    ]


def _run(series: Series, cell: TwinCell, part: str, arm: str, sha256: Mapping[str, str]) -> Run:
    key = {
        "plan": {**asdict(cell.plan), "backbone": series.name},
        "corpus_sha256": sha256,
        "part": part,
        "selector": cell.selector,
        "seed": cell.seed,
        "arm": arm,
    }
    scored, recipes = ARMS[arm][1], cell.recipes()
    needed = ("tower_a", "tower_b", *(("jtcse",) if arm == "distilled" else ()), *scored)
    return Run(
        name=f"seed {cell.seed}{' with selectors' * cell.selector}: {arm}",
        file=series.folder / RESULTS_FILE,
        key=key,
        folder=cell.folder,
        recipes={cell.checkpoint(run): recipes[run] for run in needed},
        score=partial(_score, cell, part, scored, series.data),
        part=part,
        tested=tuple(map(cell.checkpoint, scored)) if part == TESTS else (),
    )


def _score(
    cell: TwinCell, part: str, scored: Sequence[str], data: Path, _: float | None
) -> dict[str, Any]:
    """Scores of an arm, on development data with its geometry and its change since its start."""
    started = time.monotonic()
    encoder = cell.encoder(*scored)
    steps = [read_record(cell.checkpoint(run)).get("dev", {}).get("step") for run in scored]
    if part == TESTS:
        found: dict[str, Any] = {"scores": with_average(score(torch_encode(encoder), data / "sts"))}
    else:
        alone = scored in (("simcse_a",), ("distilled",))
        start = cell.encoder(*(("tower_a",) if alone else ("tower_a", "tower_b")))
        found = _on_development(encoder, start, data)
    return {
        "step": None if None in steps else max(steps),
        **found,
        "seconds_scoring": round(time.monotonic() - started, 1),
        "versions": versions(),
    }


def _on_development(
    encoder: SentenceTransformer, start: SentenceTransformer, data: Path
) -> dict[str, Any]:
    """Everything is of STS-B dev, so no test is scored.

    ``moved`` is the mean of 1 - cosine between a text's embeddings before and after.
    ``first_token_norm`` is the mean over towers. ``max_weight_moved`` is the largest change of a
    fusion weight in a tower; None without selectors.
    """
    texts, encode = development_texts(data), Remembered(torch_encode(encoder))
    pairs = zip(_towers(encoder), _towers(start), strict=True)
    weights = [fusion_weights(after, before, texts) for after, before in pairs]
    return {
        "development": score_development(encode, data / "sts"),
        "geometry": geometry_of(encode, read_development_pairs(data / "sts").all),
        "first_token_norm": float(
            np.mean([first_token_norm(tower, texts) for tower in _towers(encoder)])
        ),
        "moved": float((1 - cosines(encode(texts), torch_encode(start)(texts))).mean()),
        "max_weight_moved": max((of.change for of in weights if of and of.change), default=None),
    }


def _towers(encoder: SentenceTransformer) -> tuple[SentenceTransformer, ...]:
    twins = encoder[0]
    return twins.towers if isinstance(twins, TwinEncoder) else (encoder,)


COLUMNS: dict[str, dict[str, Cell]] = {
    DEVELOPMENT: {
        ALL_PAIRS: spread(get("development", ALL_PAIRS)),
        WITHOUT_OVERLAP: spread(get("development", WITHOUT_OVERLAP)),
        "alignment": spread(get("geometry", "alignment"), ".3f"),
        "uniformity": spread(get("geometry", "uniformity"), ".3f"),
        "E_CLS": spread(get("first_token_norm"), ".3f"),
        "embedding change": spread(get("moved"), ".3f"),
        "weight change": spread(get("max_weight_moved"), ".3f"),
    },
    TESTS: {task: spread(get("scores", task)) for task in (*TASKS, "average")},
}
COMPARED: dict[str, Value] = {
    DEVELOPMENT: get("development", WITHOUT_OVERLAP),
    TESTS: get("scores", "average"),
}


def write_twin_tables(file: Path, command: str) -> Path:
    """Write the tables of a file of results beside it; returns their path.

    Raises `ConfigError` for a file without results, or with those of several plans.
    """
    lines = read_results(file)
    plan = lines[0]["plan"]
    if any(line["plan"] != plan for line in lines):
        raise ConfigError(
            f"{file} holds results of several plans, which cannot be compared: keep one backbone, "
            "number of steps and corpus in a folder."
        )
    parts = [
        f"{plan['steps']} steps of {plan['batch_size']} texts for each tower, then "
        f"{plan['steps']} steps of {plan['batch_size']} pairs for every arm; learning rate "
        f"{plan['learning_rate']:g}, {plan['precision']}. Scores are Spearman x 100, mean ± "
        "standard deviation over n seeds. Δ is to two SimCSE towers summed, by seeds, p with "
        "Holm's correction over a table. Embedding change: the mean of 1 - cosine since an arm's "
        "start."
    ]
    for selector, title in ((False, "Without selectors"), (True, "A selector in each tower")):
        of_cell = [line for line in lines if line["selector"] == selector]
        parts += [f"## {title}", *_section(of_cell)]
    return write_page(file.with_suffix(".md"), f"Twins on {plan['backbone']}", command, parts)


def _section(lines: Runs) -> list[str]:
    found = []
    for part, title in ((DEVELOPMENT, "Development data"), (TESTS, "The seven STS tests")):
        runs = arms_of([line for line in lines if line["part"] == part], ARMS)
        run = {arm: of for arm, of in runs.items() if of}
        sides = [(arm, of, runs[CONTROL]) for arm, of in run.items() if arm != CONTROL]
        columns = {
            "n": count,
            **COLUMNS[part],
            **difference_columns(compare(sides, COMPARED[part])),
        }
        found.append(f"{title}:" if run else f"{title}: not run.")
        found += [arms_table(LABELS, run, columns)] if run else []
    return found
