"""The table of CSE-SFP: heads on a frozen backbone, then a decoder with low-rank updates.

Arms on a frozen backbone, a decoder or an encoder, are those of `training.experiments.frozen`.
Those with low-rank updates differ in the selector alone; only a decoder has them.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from s2sent.training.bfloat16 import has_bfloat16
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, read_development_pairs
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.sts import AVERAGE, CachedEncode, distinct
from s2sent.training.experiments.engine import (
    TESTS,
    Arm,
    Run,
    Series,
    Study,
    is_decoder,
    runs_of_arms,
)
from s2sent.training.experiments.frozen.run import (
    CLEAN_UP,
    TEMPLATE,
    FrozenBackbone,
    frozen_tables,
    run_heads,
    short_texts,
)
from s2sent.training.experiments.score import correlation, read_tests, scores_on
from s2sent.training.experiments.tables import (
    STS,
    Runs,
    arms_of,
    arms_table,
    by_setting,
    count,
    get,
    minus_table,
    of_each_test,
    spread,
    write_page,
)
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import read_record

FROZEN_FILE, LORA_FILE = "sfp.jsonl", "sfp-lora.jsonl"  # in the folder of a backbone's results
ONLY_TABLES = "frozen.jsonl"  # likewise, of runs that are not run again
DEV_PAIRS = 60  # scored before and after low-rank updates, where nothing is chosen but these two
SETTING = ("steps", "batch_size", "pairs", "pairs_per_task", "bf16")  # of runs that are compared

GATE_RATE = 3e-3
# Static weights are logits themselves: at the gate's rate 40 steps change them by 0.1 at most.
STATIC_RATE = 0.1


def _gate(label: str, rate: float = GATE_RATE, **options: Any) -> Arm:
    selector = {"preset": "decoder", "num_blocks": 3, **options}
    return Arm(label, {"selector": selector, "training": {"selector_learning_rate": rate}})


LORA_ARMS = {  # the heads that are trained with low-rank updates
    "last": Arm("last block", {}),
    "s2sent-3": _gate("S2Sent, 3 blocks"),
    "mean-3": Arm(
        "mean of 3 blocks",
        {"selector": {"spatial_selection": "avg", "input_norm": "rms", "num_blocks": 3}},
    ),
    "static-features-3": _gate(
        "static weights a block and feature, 3 blocks", rate=STATIC_RATE, static="features"
    ),
}
LABELS = {name: arm.label for name, arm in LORA_ARMS.items()}
OURS = "s2sent-3"


# By budget: the pairs of the training corpus, and how long runs are.
PAIRS = {"smoke": 20, "short": 1000, "full": 5000}
FROZEN = {"smoke": (4, (1, 2)), "short": (200, (1, 2, 3, 4, 5)), "full": (2000, (1, 2, 3, 4, 5))}
LORA = {"smoke": (1, 4, (1,)), "short": (60, 24, (1, 2, 3)), "full": (1000, 48, (1, 2, 3))}


def runs_of(series: Series) -> list[Run]:
    """The runs with low-rank updates, of which an encoder has none.

    That is CSE-SFP with the other text of a pair as positive. Arms differ in the selector and, as
    theirs are of another kind, in its rate.
    """
    pairs, (steps, batch_size, seeds) = PAIRS[series.budget], LORA[series.budget]
    steps = steps if series.steps is None else series.steps
    if not steps or not is_decoder(series.backbone):
        return []
    settings = {
        "backbone": series.backbone,
        "steps": steps,
        "batch_size": batch_size,
        "pairs": pairs,
        "pairs_per_task": series.test_pairs,
        "bf16": has_bfloat16(),  # matrix products of training and scoring
    }
    table = {
        "backbone": {
            "name": series.backbone,
            "template": TEMPLATE,
            "pooling": "rep1",
            "clean_up": CLEAN_UP,
        },
        "corpus": short_texts(pairs),
        "objective": {"name": "sfp", "examples": "pairs"},
        "training": {
            "steps": steps,
            "batch_size": batch_size,
            "learning_rate": 2e-4,
            "selector_learning_rate": GATE_RATE,
            "warmup_steps": steps // 10,
            "max_seq_length": 32,
            "eval_every": steps,
            "dev_pairs": DEV_PAIRS,
            "precision": "bf16" if settings["bf16"] else "fp32",
            "lora_rank": 16,
        },
    }
    file, seeds = series.folder / LORA_FILE, series.seeds or seeds
    return runs_of_arms(series, file, LORA_ARMS, seeds, settings, table, partial(_score, series))


def _score(series: Series, checkpoint: Path) -> dict[str, Any]:
    """Development score and tests, in the run's precision."""
    encoder = load_checkpoint(checkpoint).to(torch.bfloat16 if has_bfloat16() else torch.float32)
    encode = CachedEncode(torch_encode(encoder))
    dev = read_development_pairs(series.data / "sts").without_overlap
    tests = read_tests(series.data, series.test_pairs)
    encode(distinct(*(side for of in (dev, *tests.values()) for side in (of.first, of.second))))
    return {
        "name": series.name,
        "dev": read_record(checkpoint).get("dev"),
        WITHOUT_OVERLAP: correlation(encode, dev),
        TESTS: scores_on(encode, tests),
    }


LORA_COLUMNS = {
    "seeds": count,
    WITHOUT_OVERLAP: spread(get(WITHOUT_OVERLAP)),
    STS: spread(get(TESTS, AVERAGE)),
}


def lora_tables(lines: Runs) -> list[str]:
    """For each length of run a table of scores, and S2Sent against every other arm by seeds."""
    parts = []
    for (steps, batch, pairs, tested, bf16), of in by_setting(lines, SETTING).items():
        runs, precision = arms_of(of, LORA_ARMS), "bfloat16" if bf16 else "float32"
        others = [arm for arm in runs if arm != OURS]
        parts += [
            f"{steps} steps of {batch} pairs (of {pairs}), rank 16, in {precision};"
            f" {of_each_test(tested)}.",
            arms_table(LABELS, runs, LORA_COLUMNS),
            minus_table(LABELS, runs, OURS, others, STS, get(TESTS, AVERAGE)),
        ]
    return parts


def run_frozen(series: Series) -> None:
    """Train heads on the frozen backbone and score the tests, unless arms are named."""
    if not series.arms:
        pairs, (steps, seeds) = PAIRS[series.budget], FROZEN[series.budget]
        backbone = FrozenBackbone(series.backbone, series.data, pairs, series.test_pairs)
        run_heads(backbone, series.folder / FROZEN_FILE, steps, series.seeds or seeds)


def write_decoder_tables(series: Series) -> Path:
    """Write tables beside a series' results."""
    folder, parts = series.folder, []
    for name, others in ((FROZEN_FILE, ""), (ONLY_TABLES, ", other depths and objectives")):
        if frozen := read_lines(folder / name):
            parts += [f"## On the frozen backbone{others}", *frozen_tables(frozen)]
    if lora := read_lines(folder / LORA_FILE):
        parts += ["## With low-rank updates", *lora_tables(lora)]
    if not parts:
        raise ConfigError(f"{folder} has no results: run the experiment first.")
    file = (folder / FROZEN_FILE).with_suffix(".md")
    return write_page(file, f"Heads on {folder.name}", series.command, parts)


STUDY = Study(runs_of, write_decoder_tables, first=run_frozen)
