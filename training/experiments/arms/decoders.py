"""The table of CSE-SFP: heads on a frozen backbone, then a decoder with low-rank updates.

On a frozen backbone the arms are those of `training.experiments.frozen.heads`, of a decoder or an
encoder. Low-rank updates, `training.experiments.arms.lora`, train a decoder.
"""

from pathlib import Path

from s2sent.training.backbones import resolve
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.experiments.arms.lora import (
    BUDGETS,
    LORA_FILE,
    SCRATCH,
    TEMPLATE,
    is_decoder,
    lora_tables,
    runs_of,
)
from s2sent.training.experiments.engine import Series, Study, size_of
from s2sent.training.experiments.figures import save, weights_of_blocks
from s2sent.training.experiments.frozen.heads import ARMS, arms_for
from s2sent.training.experiments.frozen.run import Plan, run_heads
from s2sent.training.experiments.frozen.setting import short_texts
from s2sent.training.experiments.frozen.tables import comparable, frozen_tables, scored_on
from s2sent.training.experiments.frozen.train import Schedule
from s2sent.training.experiments.tables import STS, Runs, arms_of, write_page
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.locks import locked

FROZEN_FILE = "sfp.jsonl"  # in the folder of a backbone's results
RATES = (1e-3, 1e-2)  # of which seed 0 chooses one for each frozen arm
DROPPED = "length"  # a scaling of frozen arms; a mean of blocks is the same with rms
DRAWN = "contrastive"  # the objective of frozen arms whose weights are drawn


def run_frozen(series: Series) -> None:
    """Train heads on the frozen backbone at full depth and score the tests, unless arms are named.

    Where another process does so, it is left to it.
    """
    if series.arms:
        return
    (blocks, _), causal = size_of(resolve(series.backbone)), is_decoder(series.backbone)
    with locked(series.folder / SCRATCH) as free:
        if free:
            run_heads(
                frozen_plan(series, blocks, causal=causal),
                series.backbone,
                series.data,
                series.folder / SCRATCH / "states",
                series.folder / FROZEN_FILE,
                template=TEMPLATE if causal else "",
                corpus=short_texts(BUDGETS[series.budget].pairs),
                test_pairs=series.test_pairs,
            )


def frozen_plan(series: Series, blocks: int, *, causal: bool) -> Plan:
    """The frozen runs at full depth: every arm that the backbone has blocks for."""
    budget = BUDGETS[series.budget]
    return Plan(
        depths=(blocks,),
        seeds=series.seeds or budget.frozen_seeds,
        schedule=Schedule(budget.frozen_steps, 0.0, max(1, budget.frozen_steps // 4)),
        rates=RATES,
        arms=[name for name in arms_for(blocks, causal=causal) if not name.endswith(DROPPED)],
        objectives=("contrastive", "sfp") if causal else ("contrastive",),
    )


def write_decoder_tables(series: Series) -> Path:
    """Write tables and figure beside a series' results."""
    folder, frozen = series.folder, series.folder / FROZEN_FILE
    lines, lora = read_lines(frozen), read_lines(folder / LORA_FILE)
    if not lines and not lora:
        raise ConfigError(f"{folder} has no results: run the experiment first.")
    parts = []
    if lines:
        scored = f"{STS}: {scored_on(lines)}."
        parts += ["## On the frozen backbone", scored, frozen_tables(frozen)]
    if drawn := drawn_weights(lines):
        save(weights_of_blocks(drawn, lines[0]["exit"]), frozen.with_suffix(".svg"))
        parts.append(f"![The weight of each block, by arm]({frozen.with_suffix('.svg').name})")
    if lora:
        parts += ["## With low-rank updates", *lora_tables(lora)]
    return write_page(frozen.with_suffix(".md"), f"Heads on {folder.name}", series.command, parts)


def drawn_weights(lines: Runs) -> dict[str, list[Line]]:
    """The runs that learn weights of blocks, by label, of the table of most arms, then steps."""

    def size(runs: Runs) -> tuple[int, int]:
        steps = max((int(run["schedule"]["steps"]) for run in runs), default=0)
        return len({run["arm"] for run in runs}), steps

    runs = max(comparable(lines).values(), default=[], key=size)
    weighed = [run for run in runs if run["objective"] == DRAWN and run["block_weights"]]
    return {ARMS[arm].label: of for arm, of in arms_of(weighed, ARMS).items() if of}


STUDY = Study(runs_of, write_decoder_tables, first=run_frozen)
