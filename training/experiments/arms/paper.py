"""Runs the paper's experiments (arXiv 2508.18164) and our controls, and builds their tables.

A run is one configuration trained with one objective and one seed. Its line, in the file of its
objective, is written once, however many tables it stands in. In a table a row without results shows
as "not run", and so does one of a single seed beside rows of several.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import Line, Value, compare
from s2sent.training.evaluation.sts import AVERAGE, TASKS, score, with_average
from s2sent.training.experiments.arms.configurations import (
    BUDGETS,
    EXPERIMENTS,
    PAPER,
    PRESETS,
    Experiment,
    as_printed,
    chosen,
    num_blocks,
    recipe_of,
)
from s2sent.training.experiments.engine import Run, Series, Study, model_config, size_of
from s2sent.training.experiments.tables import (
    NOT_RUN,
    ByArm,
    arms_of,
    comparisons_table,
    get,
    spread,
    write_page,
)
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import read_record
from s2sent.training.recipe.recipe import CorpusPart, Recipe, recipe_from

log = logging.getLogger(__name__)

TABLES_FILE = "tables.md"
# Settings that the runs of a table have in common, but for these.
COMMON = ("corpus_sha256", "backbone.", "objective.", "training.")
VARIED = ("backbone.pooling", "training.selector_learning_rate", "objective.projection")
PREFACE = (
    "Scores are Spearman x 100, of transfer tasks accuracy x 100, as mean ± standard deviation over"
    " n seeds. p is the t-test by seeds with Holm's correction over a table. "
    "The paper's numbers are of bert-base-uncased and roberta-base after one pass over a million "
    "sentences of Wikipedia. Where the backbone, the corpus or a setting below is another, compare "
    "differences within a column, never a number of ours with one of theirs."
)


def runs_of(series: Series) -> list[Run]:
    """The runs of a series' experiments, each once, a whole seed before the next.

    Raises `ConfigError` where none is left, and for a line that is of another recipe or corpus.
    """
    cells, left_out = cells_of(experiments_of(series), series)
    for name, reason in left_out.items():
        log.info("left out: %s, as %s", name, reason)
    if not cells:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"Nothing is left to run on {series.backbone} ({reasons}): ask for more.")
    family = str(model_config(series.backbone).model_type)
    budget, runs = BUDGETS[series.budget], []
    corpus = [CorpusPart(source=series.corpus, limit=budget.limit)]  # of every run
    sha256 = read_corpus(series.data / "corpus", corpus, kind="texts").sha256
    for seed in series.seeds or budget.seeds:
        for (objective, name), with_transfer in cells.items():
            recipe = recipe_of(name, series, seed, objective=objective, family=family)
            checkpoint = series.folder / objective / f"{name}.seed{seed}.checkpoint"
            run = Run(
                name=f"{objective} {name} seed {seed}",
                file=series.folder / f"{objective}.jsonl",
                key={"configuration": name, "objective": objective, "seed": seed},
                folder=checkpoint,
                recipes={checkpoint: recipe},
                score=partial(_score, checkpoint, series.data, with_transfer),
                needed=("transfer",) if with_transfer else (),
            )
            _refuse_others(run, recipe, sha256)
            runs.append(run)
    return runs


def experiments_of(series: Series) -> list[Experiment]:
    """The experiments that a series names; of the paper's budget those in print."""
    if series.budget == PAPER:
        return as_printed(series.keys)
    return chosen(series.keys or [*EXPERIMENTS])


def cells_of(
    experiments: Sequence[Experiment], series: Series
) -> tuple[dict[tuple[str, str], bool], dict[str, str]]:
    """Each objective and configuration, and whether it needs transfer tasks.

    Beside them is what is left out, with reasons.
    """
    blocks, _ = size_of(series.backbone)
    found: dict[tuple[str, str], bool] = {}
    left_out: dict[str, str] = {}
    for experiment, objective in product(experiments, series.objectives):
        if objective not in experiment.objectives:
            left_out[f"{experiment.key} with {objective}"] = "the paper has no such rows"
            continue
        for name in experiment.configurations:
            if (needed := num_blocks(name)) > blocks:
                left_out[name] = f"it weighs {needed} blocks, and the backbone has {blocks}"
            else:
                cell = objective, name
                found[cell] = experiment.transfer or found.get(cell, False)
    return found, left_out


def _refuse_others(run: Run, recipe: Recipe, sha256: str) -> None:
    """Raise `ConfigError` where the line of a run is of another recipe or of another corpus."""
    ours = settings_of(recipe.as_table(), sha256)
    for line in read_result_lines(run.file):
        if run.key.items() <= line.items():
            made_by = recipe_from(line["recipe"], str(run.file)).as_table()
            if differing := difference(settings_of(made_by, line["corpus_sha256"]), ours):
                raise ConfigError(
                    f"{run.file} holds {run.name} with other settings than it has now"
                    f" ({differing}): name another --output, or delete the line."
                )


def _score(checkpoint: Path, data: Path, with_transfer: bool) -> dict[str, Any]:
    record = read_record(checkpoint)
    encode = torch_encode(load_checkpoint(checkpoint))
    found = {
        "recipe": record["recipe"],
        "corpus_sha256": record["corpus"]["sha256"],
        "step": record["dev"]["step"],
        "scores": with_average(score(encode, data / "sts")),
    }
    if with_transfer:
        found["transfer"] = with_average(transfer.score_transfer(encode, data / "transfer"))
    return found


def read_transfer(series: Series) -> None:
    """Read the transfer tasks that runs need, so that none ends at a file that cannot be used."""
    if any(experiment.transfer for experiment in experiments_of(series)):
        transfer.read_tasks(series.data / "transfer")


def read_result_lines(file: Path) -> list[dict[str, Any]]:
    """The results in a file; of a configuration and seed that stand in it twice the last one.

    Raises `ConfigError` naming a line that is no result.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in enumerate(read_lines(file), start=1):
        if not {"configuration", "seed", "recipe", "corpus_sha256", "scores"} <= set(line):
            raise ConfigError(f"{file}, line {number} is no result of a run: delete the line.")
        found[line["configuration"], line["seed"]] = line
    return list(found.values())


def read_results(folder: Path, objective: str) -> dict[str, list[Line]]:
    """The runs of an objective by configuration. Raises `ConfigError` for what does not compare."""
    file = folder / f"{objective}.jsonl"
    lines = read_result_lines(file)
    for line in lines:
        if differing := difference(common_settings(lines[0]), common_settings(line)):
            first, other = (f"{of['configuration']} seed {of['seed']}" for of in (lines[0], line))
            raise ConfigError(
                f"{first} and {other} in {file} cannot be compared ({differing}): keep them in "
                "different folders."
            )
    return arms_of(lines, dict.fromkeys(line["configuration"] for line in lines), "configuration")


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The keys in which two settings differ, as ``key = value against value``."""
    differing = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return ", ".join(f"{key} = {first.get(key)} against {second.get(key)}" for key in differing)


def settings_of(recipe: Mapping[str, Any], corpus_sha256: str) -> dict[str, Any]:
    """The values of a recipe's table by ``section.key``, and the corpus."""
    found: dict[str, Any] = {"corpus_sha256": corpus_sha256}
    for section, value in recipe.items():
        of_section = value if isinstance(value, Mapping) else {"": value}
        found |= {f"{section}.{key}".rstrip("."): each for key, each in of_section.items()}
    return found


def common_settings(line: Line) -> dict[str, Any]:
    """What must be equal in all results of a table: everything but what the tables vary."""
    every = settings_of(line["recipe"], line["corpus_sha256"])
    return {k: v for k, v in every.items() if k.startswith(COMMON) and k not in VARIED}


def write_tables(series: Series) -> Path:
    """Write the tables of a series' experiments beside their results; returns their path.

    Raises `ConfigError` where nothing was run, or what was run cannot be compared.
    """
    folder, parts, any_run = series.folder, [PREFACE], False
    for objective in series.objectives:
        runs = read_results(folder, objective)
        any_run = any_run or bool(runs)
        parts += [f"## {objective}", _setting(runs)]
        for experiment in experiments_of(series):
            if objective in experiment.objectives:
                tables = experiment_tables(experiment, objective, runs)
                notes = [f"- {note}" for note in experiment.notes]
                parts += [f"### {experiment.title}", *tables, *notes]
    if not any_run:
        raise ConfigError(f"{folder} has no results: run something first, or name another folder.")
    return write_page(folder / TABLES_FILE, f"What was run on {folder.name}", series.command, parts)


def _setting(runs: ByArm) -> str:
    """One paragraph with the settings that all runs share."""
    if not runs:
        return "Nothing was run."
    first = next(iter(runs.values()))[0]
    common, head = common_settings(first), "training."
    training = [f"{k.removeprefix(head)} {v}" for k, v in common.items() if k.startswith(head)]
    versions = [f"{name} {version}" for name, version in first["versions"].items()]
    return (
        f"Backbone {common['backbone.name']}; corpus sha256 {common['corpus_sha256'][:12]}; "
        f"{', '.join(training)}. With {', '.join(versions)}."
    )


def experiment_tables(experiment: Experiment, objective: str, runs: ByArm) -> list[str]:
    """The scores of an experiment, and what was tested of them."""
    part, tasks = ("transfer", transfer.TASKS) if experiment.transfer else ("scores", TASKS)
    tested = get(part, AVERAGE)
    cells = {name: spread(get(part, name)) for name in (*tasks, AVERAGE)}
    printed = _printed_columns(experiment, objective)
    scored = {
        row.name: [run for run in runs.get(row.name, ()) if tested(run) is not None]
        for row in experiment.rows
    }
    most = max(map(len, scored.values()))
    shown = {name: of for name, of in scored.items() if len(of) > 1 or len(of) == most > 0}
    lines = []
    for row in experiment.rows:
        blank = [NOT_RUN, *[""] * len(tasks)]
        ours = [cell(shown[row.name]) for cell in cells.values()] if row.name in shown else blank
        theirs = [of.get(row.name, "") for of in printed.values()]
        label = row.label if any(theirs) else f"{row.label} (not in the paper)"
        lines.append([label, str(len(scored[row.name])), *ours, *theirs])
    scores = markdown_table(["", "n", *cells, *printed], lines)
    return [scores, *_comparisons(experiment, shown, tested)]


def _printed_columns(experiment: Experiment, objective: str) -> dict[str, dict[str, str]]:
    """The paper's columns beside ours: header to configuration name to text."""
    return {
        f"paper, {backbone}-base: {experiment.printed_scores}": {
            name + preset: " / ".join(f"{value:.2f}" for value in row)
            for name, row in table.items()
            for preset in ("", *(f"-{each}" for each in PRESETS))
        }
        for (backbone, of), table in experiment.printed.items()
        if of == objective.removesuffix("-mean")
    }


def _comparisons(experiment: Experiment, runs: ByArm, tested: Value) -> Iterator[str]:
    """Every row less the one it is tested against, then the rows that the paper has in an order."""
    labels = {row.name: row.label for row in experiment.rows}
    to_bases = [(row.name, row.base) for row in experiment.rows if row.base]
    for pairs in (to_bases, experiment.orders):
        sides = [
            (f"{labels[first]}, minus {labels[second]}", runs.get(first, ()), runs.get(second, ()))
            for first, second in pairs
        ]
        if compared := compare(sides, tested):
            yield comparisons_table("", AVERAGE, compared)


STUDY = Study(runs_of, write_tables, first=read_transfer)
