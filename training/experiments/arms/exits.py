"""Control X4: heads at early exits that differ in nothing else, the rest trained alike."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.backbones import resolve
from s2sent.training.evaluation.depths.by_depth import DIMENSIONS
from s2sent.training.evaluation.encoders import load_checkpoint
from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.experiments.engine import (
    Arm,
    Run,
    Series,
    Study,
    read_results,
    runs_of_arms,
    size_of,
)
from s2sent.training.experiments.score import score_depths
from s2sent.training.experiments.tables import (
    ByArm,
    Cell,
    arms_of,
    arms_table,
    by_setting,
    count,
    get,
    mean,
    minus_table,
    write_page,
)
from s2sent.training.files.record import read_record
from s2sent.training.recipe.recipe import TRAINING_OPTIONS

RESULTS_FILE = "x4.jsonl"  # in the folder of a backbone's results
DEFAULT_STEPS, DEFAULT_SEEDS = 300, (1, 2, 3)
SETTING = ("backbone", "corpus", "batch_size", "depths", "steps")  # of runs that are compared

SELECTOR = {
    "num_blocks": 3,
    "reduction": 12,
    "weight_norm": "softmax_logits",
    "initial_bias": 3.0,  # at full depth, as the default model's; exits start from the mean
}
LAST = {"num_blocks": 1, "spatial_selection": "avg"}
MEAN = {"num_blocks": 3, "spatial_selection": "avg"}
LOW_RANK = ("low-rank", "s2sent-low-rank")  # at each exit, of about as many parameters as a gate
ARMS = {
    "last": Arm("last block alone", {"selector": LAST}),
    "mean": Arm("mean of the last min(3, k)", {"selector": MEAN}),
    "static": Arm("static weights, one per block", {"selector": {**SELECTOR, "static": "blocks"}}),
    "s2sent": Arm("S2Sent", {"selector": SELECTOR}),
    "low-rank": Arm("low-rank head on the last block", {"selector": LAST}),
    "s2sent-low-rank": Arm("low-rank head on S2Sent", {"selector": SELECTOR}),
}
LABELS = {name: arm.label for name, arm in ARMS.items()}
COMPARED = {  # each with what it is tested against
    "s2sent": ("last", "mean", "static", "low-rank"),
    "s2sent-low-rank": ("low-rank",),
}


def runs_of(series: Series) -> list[Run]:
    """The runs of a series: the backbone's own similarities distilled into every exit.

    All arms have the same data in the same order, and the same rates. A corpus of fewer texts than
    ``steps * batch_size`` is gone over again.
    """
    blocks, width = size_of(resolve(series.backbone))
    steps, batch_size = series.steps or DEFAULT_STEPS, 8 if series.budget == "smoke" else 64
    depths = [*range(2, blocks)]
    settings = {
        "backbone": series.backbone,
        "depths": depths,
        "corpus": series.corpus,
        "batch_size": batch_size,
        "steps": steps,
    }
    table = {
        "backbone": {"name": series.backbone},
        "corpus": [{"source": series.corpus, "limit": steps * batch_size}],
        "elastic": {"depths": depths, "dimensions": [*DIMENSIONS]},
        "objective": {
            "name": "distillation",
            "teachers": [series.backbone],
            "contrastive_weight": 0,
            "error_weight": 4,
            "dropout": False,
        },
        "training": {
            "steps": steps,
            "batch_size": batch_size,
            "learning_rate": 1e-4,
            "selector_learning_rate": 5e-3,
            "warmup_steps": min(50, steps // 6),
            "max_seq_length": 48,
            "group_by_length": True,
            "eval_every": max(1, steps // 2),
            "dev_pairs": 500,
            "precision": "bf16",
        },
    }
    low_rank = {"elastic": {"project": True, "project_rank": head_rank(width)}}
    arms = {
        name: Arm(arm.label, {**arm.patch, **low_rank}) if name in LOW_RANK else arm
        for name, arm in ARMS.items()
    }
    file, seeds = series.folder / RESULTS_FILE, series.seeds or DEFAULT_SEEDS
    return runs_of_arms(series, file, arms, seeds, settings, table, partial(_score, series))


def head_rank(width: int) -> int:
    """The rank of the low-rank head that has about as many parameters as a gate."""
    options = {key: value for key, value in SELECTOR.items() if key not in TRAINING_OPTIONS}
    gate = S2SentSelector(SelectorConfig.preset("default", width=width, **options))
    return max(1, round(sum(each.numel() for each in gate.parameters()) / (2 * width)))


def _score(series: Series, checkpoint: Path) -> dict[str, Any]:
    """The grid of depths and dimensions, R@1 and the kept step of a checkpoint."""
    step = read_record(checkpoint).get("dev", {}).get("step")
    found = score_depths(load_checkpoint(checkpoint), checkpoint, series.data)
    return {"name": series.name, "step": step, **found}


def area(line: Line) -> float:
    """The mean of a run's grid of depths and dimensions on the STS tests."""
    return fmean(value for row in line["tests"].values() for value in row.values())


def at_depth(line: Line, depth: str) -> float:
    """A run's score on the STS tests at a depth and full width."""
    row = line["tests"][depth]
    return float(row[max(row, key=int)])


def write_exit_tables(series: Series) -> Path:
    """Write the tables of a series' results beside them."""
    file = series.folder / RESULTS_FILE
    settings = {
        setting: arms_of(lines, ARMS)
        for setting, lines in by_setting(read_results(file), SETTING).items()
    }
    parts = []
    for setting, runs in settings.items():
        first = next(of for of in runs.values() if of)[0]
        parts += [f"## {setting[-1]} steps", _preface(first), _scores_table(runs)]
        parts += [
            minus_table(LABELS, runs, arm, others, "area", area)
            for arm, others in COMPARED.items()
            if runs[arm]
        ]
        if "retrieval" in first:  # at full width; no arm or step was chosen by it
            columns = {f"depth {d}": mean(get("retrieval", d)) for d in _depths(first["retrieval"])}
            run = {arm: of for arm, of in runs.items() if of}
            parts.append(arms_table(LABELS, run, columns, corner="R@1, packages-dev"))
    title = "X4: a selector at each early exit"
    return write_page(file.with_suffix(".md"), title, series.command, parts)


def _depths(by_depth: Mapping[str, Any]) -> list[str]:
    return sorted(by_depth, key=int)


def _preface(line: Line) -> str:
    return (
        f"{line['name']} distilled into its own exits after blocks {line['depths']}, "
        f"{line['batch_size']} texts of {line['corpus']} a step; all weights trained, the arms "
        "differ in the head alone. Spearman x 100, mean of the seven STS tests and of the seeds, "
        "at full width; the area is the mean over depths and dimensions."
    )


def _scores_table(runs: ByArm) -> str:
    every = {depth: 0 for of in runs.values() for run in of for depth in run["tests"]}
    columns: dict[str, Cell] = {"seeds": count}
    columns |= {f"depth {depth}": mean(partial(at_depth, depth=depth)) for depth in _depths(every)}
    return arms_table(LABELS, runs, {**columns, "area": mean(area)})


STUDY = Study(runs_of, write_exit_tables, cache="x4/cache")
