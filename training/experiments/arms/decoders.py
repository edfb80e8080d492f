"""The table of CSE-SFP: heads on a frozen backbone, then a decoder with low-rank updates.

On a frozen backbone the arms are those of `training.experiments.frozen.heads`, of a decoder or an
encoder. Low-rank updates, `training.experiments.arms.lora`, train a decoder.
"""

from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms.lora import BUDGETS, LORA_FILE, lora_tables, runs_of
from s2sent.training.experiments.engine import Series, Study
from s2sent.training.experiments.frozen.run import FrozenBackbone, run_heads
from s2sent.training.experiments.frozen.tables import frozen_tables, scored_on
from s2sent.training.experiments.tables import STS, write_page
from s2sent.training.files.jsonl import read_lines

FROZEN_FILE = "sfp.jsonl"  # in the folder of a backbone's results
# Files of frozen runs and what they are; the second is of a command that is gone.
FROZEN_FILES = {FROZEN_FILE: "", "frozen.jsonl": ", other depths and objectives"}


def run_frozen(series: Series) -> None:
    """Train heads on the frozen backbone and score the tests, unless arms are named."""
    if not series.arms:
        budget = BUDGETS[series.budget]
        backbone = FrozenBackbone(series.backbone, series.data, budget.pairs, series.test_pairs)
        seeds = series.seeds or budget.frozen_seeds
        run_heads(backbone, series.folder / FROZEN_FILE, budget.frozen_steps, seeds)


def write_decoder_tables(series: Series) -> Path:
    """Write tables beside a series' results."""
    folder, parts = series.folder, []
    for name, what in FROZEN_FILES.items():
        if lines := read_lines(folder / name):
            scored = f"{STS}: {scored_on(lines)}."
            parts += [f"## On the frozen backbone{what}", scored, frozen_tables(lines)]
    if lora := read_lines(folder / LORA_FILE):
        parts += ["## With low-rank updates", *lora_tables(lora)]
    if not parts:
        raise ConfigError(f"{folder} has no results: run the experiment first.")
    file = (folder / FROZEN_FILE).with_suffix(".md")
    return write_page(file, f"Heads on {folder.name}", series.command, parts)


STUDY = Study(runs_of, write_decoder_tables, first=run_frozen)
