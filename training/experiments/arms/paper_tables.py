"""The Markdown tables of a backbone's results, with their plots, built from the result files alone.

A row without results shows as "not run", and so does one of a single seed beside rows of several.
Differences are tested by seeds, at 5 % after Holm's correction over the table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.published import TABLE_2, TABLE_3, TABLE_4
from s2sent.training.evaluation.results.statistics import (
    LEVEL,
    Comparison,
    Line,
    Value,
    compare,
    p_value,
)
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.arms.configurations import Configuration
from s2sent.training.experiments.arms.hypotheses import findings
from s2sent.training.experiments.arms.paper_experiments import Experiment
from s2sent.training.experiments.figures import densities, dots, save
from s2sent.training.experiments.overhead import read_overhead
from s2sent.training.experiments.tables import (
    NOT_RUN,
    ByArm,
    Cell,
    arms_of,
    arms_table,
    get,
    mean_weights,
    signed,
    spread,
    values,
    write_page,
)
from s2sent.training.files.jsonl import read_lines

TABLES_FILE = "tables.md"
PREFACE = (
    "Scores are Spearman x 100, as mean ± standard deviation over n seeds. Δ is to the row "
    "that tests are against, which has none; p is the t-test by seeds with Holm's correction "
    f"over the table, in bold below {LEVEL:g}. "
    "The paper's numbers are of bert-base-uncased and roberta-base after one pass over a million "
    "sentences of Wikipedia. Where the backbone, the corpus or a setting below is another, compare "
    "differences within a column, never a number of ours with one of theirs."
)


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
    """The keys in which two recipes differ, as ``key = value against value``."""
    a, b = dict(_flat(first)), dict(_flat(second))
    differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    return ", ".join(f"{key} = {a.get(key)} against {b.get(key)}" for key in differing)


def _flat(table: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{head}{key}.")
        else:
            yield head + key, value


def common_settings(result: Line) -> dict[str, Any]:
    """What must be equal in all results of a table: everything but what the tables vary."""
    recipe = {key: dict(value) for key, value in result["recipe"].items() if type(value) is dict}
    recipe["backbone"].pop("pooling", None)
    recipe["training"].pop("selector_learning_rate", None)
    recipe["objective"].pop("projection", None)
    kept = {key: recipe[key] for key in ("backbone", "objective", "training")}
    return {**kept, "corpus": result["corpus_sha256"]}


def write_tables(
    experiments: Sequence[Experiment], folder: Path, objectives: Sequence[str], command: str
) -> Path:
    """Write tables.md and its plots into ``folder``; returns its path.

    Raises `ConfigError` where nothing was run, or what was run cannot be compared.
    """
    parts, any_run = [PREFACE], False
    for objective in objectives:
        runs = read_results(folder, objective)
        any_run = any_run or bool(runs)
        parts += [f"## {objective}", _setting(runs)]
        for experiment in experiments:
            if objective in experiment.objectives:
                parts += _section(experiment, objective, runs, folder)
        parts += ["### What the paper says", hypotheses_table(runs, read_overhead(folder))]
        names = {name: c for e in experiments for name, c in e.configurations.items()}
        parts += ["### Geometry, weights and training", _details(names.values(), runs)]
    if not any_run:
        raise ConfigError(f"{folder} has no results: run something first, or name another folder.")
    return write_page(folder / TABLES_FILE, f"What was run on {folder.name}", command, parts)


def _setting(runs: ByArm) -> str:
    """One paragraph with the settings that all runs share."""
    for of_one in runs.values():
        common = common_settings(of_one[0])
        training = ", ".join(f"{key} {value}" for key, value in common["training"].items())
        versions = ", ".join(f"{key} {value}" for key, value in of_one[0]["versions"].items())
        return (
            f"Backbone {common['backbone']['name']}; corpus sha256 {common['corpus'][:12]}; "
            f"{training}. With {versions}."
        )
    return "Nothing was run."


def _section(experiment: Experiment, objective: str, runs: ByArm, folder: Path) -> list[str]:
    parts = [f"### {experiment.title}", experiment_table(experiment, objective, runs)]
    parts += [f"- {note}" for note in experiment.notes]
    if figure := _figure(experiment, runs):
        name = f"{objective}-{experiment.key.replace(' ', '-')}.svg"
        save(figure, folder / name)
        parts.append(f"![{experiment.title}]({name})")
    return parts


def _figure(experiment: Experiment, runs: ByArm) -> Figure | None:
    """The figure of an experiment for all seeds; None where nothing of it was run."""
    tested = _tested(experiment)
    rows = [(row, values(runs.get(row.configuration.name, ()), tested)) for row in experiment.rows]
    if not any(found for _, found in rows):
        return None
    if experiment.key == "figure 8":
        return densities({row.label: runs[row.configuration.name] for row, found in rows if found})
    return dots([(row.label, found) for row, found in rows])


def experiment_table(experiment: Experiment, objective: str, runs: ByArm) -> str:
    """The Markdown table of an experiment."""
    columns, tested = _columns(experiment), _tested(experiment)
    printed = _printed(experiment, objective)
    counts = {name: len(values(of, tested)) for name, of in runs.items()}
    most = max((counts.get(row.configuration.name, 0) for row in experiment.rows), default=0)
    compared = _against_bases(experiment, runs, tested)
    lines = []
    for row in experiment.rows:
        name = row.configuration.name
        count = counts.get(name, 0)
        cells = [NOT_RUN, *[""] * (len(columns) + 1)]
        if count > 1 or count == most > 0:
            of_row = [run for run in runs[name] if tested(run) is not None]
            cells = [*(cell(of_row) for cell in columns.values()), *_test(compared.get(name))]
        label = f"{row.label} (not in the paper)" if row.ours else row.label
        theirs = row.configuration.printed or name
        lines.append([label, str(count), *cells, *(of.get(theirs, "") for of in printed.values())])
    return markdown_table(["", "n", *columns, "Δ", "p", *printed], lines)


def _tested(experiment: Experiment) -> Value:
    """The value of a run that a table compares."""
    return get("transfer" if experiment.transfer else "scores", "average")


def _columns(experiment: Experiment) -> dict[str, Cell]:
    if experiment.transfer:
        return {name: spread(get("transfer", name)) for name in (*transfer.TASKS, "average")}
    scores = {name: spread(get("scores", name)) for name in (*TASKS, "average")}
    return scores | EXTRA.get(experiment.key, {})


def _parameter_share(result: Line) -> float | None:
    counts = result["parameters"]
    return float(100 * counts["selector"] / counts["backbone"])


EXTRA: dict[str, dict[str, Cell]] = {
    "table 2": {"parameters added, %": spread(_parameter_share, ".4f")},
    "figure 8": {
        **{
            f"cosine at {low}-{low + 1}": spread(
                get("by_gold", "groups", f"{low}-{low + 1}", "mean"), ".3f"
            )
            for low in range(5)
        },
        "spread": spread(get("by_gold", "spread"), ".3f"),
    },
    "control x1": {"distance from 1 / N": spread(get("weights", "moved"), ".4f")},
}
PRINTED = {  # the paper's numbers, and what they are of
    "table 2": (TABLE_2, "STS-B / SICK-R / average"),
    "table 3": (TABLE_3, "average"),
    "table 4": (TABLE_4, " / ".join((*transfer.TASKS, "average"))),
}


def _printed(experiment: Experiment, objective: str) -> dict[str, dict[str, str]]:
    """The paper's columns beside ours: header to configuration name to text."""
    if experiment.key not in PRINTED:
        return {}
    table, what = PRINTED[experiment.key]
    objective = objective.removesuffix("-mean")
    return {
        f"paper, {backbone}-base: {what}": {
            name: " / ".join(f"{value:.2f}" for value in row)
            for name, row in table.get((backbone, objective), {}).items()
        }
        for backbone in ("BERT", "RoBERTa")
    }


def _against_bases(experiment: Experiment, runs: ByArm, tested: Value) -> dict[str, Comparison]:
    """Every row beside the one it is tested against, by its configuration's name."""
    sides = [
        (row.configuration.name, runs.get(row.configuration.name, ()), runs.get(row.base.name, ()))
        for row in experiment.rows
        if row.base
    ]
    return {each.label: each for each in compare(sides, tested)}


def _test(compared: Comparison | None) -> tuple[str, str]:
    """Δ and the corrected p of a row; empty where there is nothing to compare."""
    if compared is None:
        return "", ""
    text = compared.verdict if compared.initial else p_value(compared.p)
    bold = compared.p is not None and compared.p < LEVEL
    return signed(compared.found.mean), f"**{text}**" if bold else text


def hypotheses_table(runs: ByArm, overhead: Mapping[str, float | None]) -> str:
    """The Markdown table of what the paper says: the verdict here, and its numbers."""
    shares = values(runs.get("last3-2d", ()), _parameter_share)
    known = {**overhead, "parameters": shares[0] if shares else overhead.get("parameters")}
    lines = [
        [statement, f"**{verdict}**", said] for statement, verdict, said in findings(runs, known)
    ]
    return markdown_table(["statement", "here", "numbers"], lines)


def _details(configurations: Iterable[Configuration], runs: ByArm) -> str:
    """The Markdown table of geometry, weights and training of every configuration."""
    geometry = ("alignment", "uniformity", "pos_over_random", "align_over_abs_uniform")
    columns: dict[str, Cell] = {
        "dev": spread(get("dev")),
        "kept step": spread(get("step"), ".0f"),
        **{name: spread(get("geometry", name), ".3f") for name in geometry},
        "distance of weights from 1 / N": spread(get("weights", "moved"), ".4f"),
        "weight change": spread(get("weights", "max_moved"), ".4f"),
        "seconds": spread(get("seconds"), ".0f"),
        "mean weight, shallowest block first": mean_weights("mean_block_weights", ".3f"),
    }
    labels = {c.name: f"{c.label} (`{c.name}`)" for c in configurations}
    return arms_table(labels, {name: runs.get(name, ()) for name in labels}, columns)
