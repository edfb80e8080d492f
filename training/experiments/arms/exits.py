"""Control X4: heads at early exits that differ in nothing else, the rest trained alike."""

from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.evaluation.depths.by_depth import DIMENSIONS, score_grid
from s2sent.training.evaluation.depths.encoders import checkpoint_depths
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, score_development
from s2sent.training.evaluation.encoders import load_checkpoint
from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.evaluation.retrieval import PACKAGES, RECALL, score_retrieval
from s2sent.training.evaluation.sts import Encode, average, score
from s2sent.training.experiments.engine import (
    Arm,
    Run,
    Series,
    Study,
    read_results,
    runs_of_arms,
    size_of,
)
from s2sent.training.experiments.tables import (
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
LOW_RANK = ("low-rank", "s2sent-low-rank")  # at each exit, of about as many parameters as a gate
ARMS = {
    "last": Arm("last block alone", {"selector": LAST}),
    "mean": Arm("mean of the last min(3, k)", {"selector": {**LAST, "num_blocks": 3}}),
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
    blocks, width = size_of(series.backbone)
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
    head = {"elastic": {"project": True, "project_rank": head_rank(width)}}
    arms = dict(ARMS)
    for name in LOW_RANK:
        arms[name] = Arm(ARMS[name].label, {**ARMS[name].patch, **head})
    file, seeds = series.folder / RESULTS_FILE, series.seeds or DEFAULT_SEEDS
    return runs_of_arms(series, file, arms, seeds, settings, table, partial(_score, series))


def head_rank(width: int) -> int:
    """The rank of the low-rank head that has about as many parameters as a gate."""
    options = {key: value for key, value in SELECTOR.items() if key not in TRAINING_OPTIONS}
    gate = S2SentSelector(SelectorConfig.preset("default", width=width, **options))
    return max(1, round(sum(each.numel() for each in gate.parameters()) / (2 * width)))


def _score(series: Series, checkpoint: Path) -> dict[str, Any]:
    """The kept step of a checkpoint, and its scores at each depth.

    Spearman x 100 also by dimension: "tests", the mean of the STS tasks, and "dev"; and R@1 x 100
    as "retrieval", where packages are there. Raises `DataError` for a missing file.
    """
    by_depth = checkpoint_depths(load_checkpoint(checkpoint), checkpoint)

    def scores(encode: Encode) -> dict[str, float]:
        dev = score_development(encode, series.data / "sts")[WITHOUT_OVERLAP]
        return {"tests": average(score(encode, series.data / "sts")), "dev": dev}

    step = read_record(checkpoint).get("dev", {}).get("step")
    found: dict[str, Any] = {"name": series.name, "step": step}
    for part, grid in score_grid(by_depth, scores).items():
        found[part] = {str(depth): {str(d): row[d] for d in row} for depth, row in grid.items()}
    if (packages := series.data / PACKAGES).is_file():
        found["retrieval"] = {
            str(depth): score_retrieval(encode, packages)[RECALL]
            for depth, encode in by_depth.at.items()
        }
    return found


def area(line: Line) -> float:
    """The mean of a run's grid of depths and dimensions on the STS tests."""
    return fmean(value for row in line["tests"].values() for value in row.values())


def at_depth(line: Line, depth: str) -> float:
    """A run's score on the STS tests at a depth and full width."""
    row = line["tests"][depth]
    return float(row[max(row, key=int)])


def write_exit_tables(series: Series) -> Path:
    """Write the tables of a series' results beside them."""
    file, parts = series.folder / RESULTS_FILE, []
    for setting, lines in by_setting(read_results(file), SETTING).items():
        runs = arms_of(lines, ARMS)
        first = lines[0]
        depths = sorted({depth for line in lines for depth in line["tests"]}, key=int)
        columns = {
            "seeds": count,
            **{f"depth {depth}": mean(partial(at_depth, depth=depth)) for depth in depths},
            "area": mean(area),
        }
        parts += [f"## {setting[-1]} steps", _preface(first), arms_table(LABELS, runs, columns)]
        parts += [
            minus_table(LABELS, runs, arm, others, "area", area)
            for arm, others in COMPARED.items()
            if runs[arm]
        ]
        if "retrieval" in first:  # at full width; no arm or step was chosen by it
            columns = {f"depth {depth}": mean(get("retrieval", depth)) for depth in depths}
            run = {arm: of for arm, of in runs.items() if of}
            parts.append(arms_table(LABELS, run, columns, corner="R@1, packages-dev"))
    title = "X4: a selector at each early exit"
    return write_page(file.with_suffix(".md"), title, series.command, parts)


def _preface(line: Line) -> str:
    return (
        f"{line['name']} distilled into its own exits after blocks {line['depths']}, "
        f"{line['batch_size']} texts of {line['corpus']} a step; all weights trained, the arms "
        "differ in the head alone. Spearman x 100, mean of the seven STS tests and of the seeds, "
        "at full width; the area is the mean over depths and dimensions."
    )


STUDY = Study(runs_of, write_exit_tables)
