"""The table of CSE-SFP: heads on a frozen backbone, then on one with low-rank updates.

On a frozen backbone the arms are those of `training.experiments.frozen.arms`. A decoder is then
trained with low-rank updates, by `training.experiments.arms.lora`; an encoder is not.
"""

from pathlib import Path

from s2sent.training.backbones import resolve
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.statistics import Line, compare
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.arms.lora import (
    BUDGETS,
    LABELS,
    LORA_ARMS,
    LORA_FILE,
    OURS,
    SCRATCH,
    TEMPLATE,
    is_decoder,
    runs_of,
)
from s2sent.training.experiments.engine import Series, Train, require_known, run_missing, size_of
from s2sent.training.experiments.figures import save, weights_of_blocks
from s2sent.training.experiments.frozen.arms import ARMS, DECODER_ARMS, ENCODER_ARMS
from s2sent.training.experiments.frozen.run import Plan, run_plan
from s2sent.training.experiments.frozen.selection import TESTS, comparable, pairs_scored
from s2sent.training.experiments.frozen.setting import DecoderInput, read_setting, short_texts
from s2sent.training.experiments.frozen.sts_tests import score_tests
from s2sent.training.experiments.frozen.tables import GEOMETRY, STS, frozen_tables
from s2sent.training.experiments.frozen.train import CHOSEN_ON, Objective, Schedule
from s2sent.training.experiments.tables import (
    ByArm,
    Cell,
    Runs,
    arms_of,
    arms_table,
    comparisons_table,
    count,
    get,
    least,
    mean,
    mean_weights,
    spread,
    write_page,
)
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.locks import locked
from s2sent.training.train import train as train_recipe

FROZEN_FILE = "sfp.jsonl"  # in the folder of a backbone's results
DRAWN = "contrastive"  # the objective whose weights are drawn
RATES = (1e-3, 1e-2)  # of which seed 0 chooses one for each frozen arm
BATCH_SIZE = 64  # pairs, of a frozen run
DROPPED = "length"  # a scaling of frozen arms; a mean of blocks is the same with rms


def reproduce_decoders(
    series: Series, *, only_tables: bool = False, train: Train = train_recipe
) -> Path:
    """Run what is missing of a series, and return the path of its tables.

    First heads on the frozen backbone, scored on the tests at the end, then low-rank updates. The
    series' ``steps`` are those of a run with low-rank updates, 0 for none. Where its ``arms`` are
    named nothing is run but low-rank updates with these heads. Raises a `TrainingError` for what
    cannot be run, and `Interrupted` when a signal ended a run.
    """
    require_known(series.arms, [*LORA_ARMS], "arm")
    if not only_tables:
        if not series.arms:
            with locked(series.folder / SCRATCH) as free:
                if free:
                    run_frozen(series)
        run_missing(runs_of(series), series.data, keep=series.keep, train=train)
    return write_decoder_tables(series.folder, series.command)


def run_frozen(series: Series) -> None:
    """Train the heads on the frozen backbone's states, then score the tests, once."""
    causal = is_decoder(series.backbone)
    blocks, _ = size_of(resolve(series.backbone))
    file, cache = series.folder / FROZEN_FILE, series.folder / SCRATCH / "states"
    setting = read_setting(
        series.backbone,
        series.data,
        None,
        cache,
        corpus=short_texts(BUDGETS[series.budget].pairs),
        decoder=DecoderInput.inside(TEMPLATE, blocks) if causal else None,
    )
    run_plan(setting, frozen_plan(series, causal=causal, blocks=blocks), file, cache)
    score_tests(setting, series.data, cache, file, pairs_per_task=series.test_pairs)


def frozen_plan(series: Series, *, causal: bool, blocks: int) -> Plan:
    """The frozen runs at full depth: every arm that the backbone has blocks for."""
    budget = BUDGETS[series.budget]
    names = DECODER_ARMS if causal else ENCODER_ARMS
    objectives: tuple[Objective, ...] = ("contrastive", "sfp") if causal else ("contrastive",)
    every = max(1, budget.frozen_steps // 4)
    return Plan(
        depths=(blocks,),
        seeds=series.seeds or budget.frozen_seeds,
        schedule=Schedule(budget.frozen_steps, 0.0, every, BATCH_SIZE),
        rates=RATES,
        arms=[
            name for name in names if ARMS[name].num_blocks <= blocks and not name.endswith(DROPPED)
        ],
        objectives=objectives,
    )


def write_decoder_tables(folder: Path, command: str) -> Path:
    """Write tables and figure beside the results in ``folder``; returns the tables' path.

    Raises `ConfigError` for a folder without results.
    """
    frozen = folder / FROZEN_FILE
    lines, lora = read_lines(frozen), read_lines(folder / LORA_FILE)
    if not lines and not lora:
        raise ConfigError(f"{folder} has no results: run the experiment first.")
    parts = []
    if lines:
        parts += ["## On the frozen backbone", _pairs_scored(lines), frozen_tables(frozen)]
    if drawn := drawn_weights(lines):
        save(weights_of_blocks(drawn, lines[0]["exit"]), frozen.with_suffix(".svg"))
        parts.append(f"![The weight of each block, by arm]({frozen.with_suffix('.svg').name})")
    if lora:
        parts += ["## With low-rank updates", *lora_tables(lora)]
    return write_page(frozen.with_suffix(".md"), f"Heads on {folder.name}", command, parts)


def _pairs_scored(lines: Runs) -> str:
    numbers = sorted({number for number in map(pairs_scored, lines) if number is not None})
    return f"{STS}: {' and '.join(map(_of_each, numbers)) or 'not scored'}."


def _of_each(count: int) -> str:
    return f"{count} pairs of each test" if count else "all pairs of the seven tests"


def drawn_weights(lines: Runs) -> dict[str, list[Line]]:
    """The runs that learn weights of blocks, by label, of the table of most arms, then steps."""

    def size(runs: Runs) -> tuple[int, int]:
        steps = max((int(run["schedule"]["steps"]) for run in runs), default=0)
        return len({run["arm"] for run in runs}), steps

    runs = max(comparable(lines).values(), default=[], key=size)
    weighed = [run for run in runs if run["objective"] == DRAWN and run["block_weights"]]
    return {ARMS[arm].label: of for arm, of in arms_of(weighed, ARMS).items() if of}


def lora_tables(lines: Runs) -> list[str]:
    """For each length of run a table of scores, and S2Sent against every other arm by seeds."""
    parts = []
    names = ("steps", "batch_size", "pairs", "pairs_per_task", "bf16")
    for setting in sorted({tuple(line[name] for name in names) for line in lines}):
        of_setting = [line for line in lines if tuple(line[name] for name in names) == setting]
        runs = arms_of(of_setting, LORA_ARMS)
        steps, batch, pairs, tested, bf16 = setting
        precision = "bfloat16" if bf16 else "float32"
        parts += [
            f"{steps} steps of {batch} pairs (of {pairs}), rank 16, in {precision};"
            f" {_of_each(tested)}.",
            arms_table(LABELS, runs, LORA_COLUMNS),
            _comparisons(runs),
        ]
    return parts


LORA_COLUMNS: dict[str, Cell] = {
    "seeds": count,
    CHOSEN_ON: spread(get(CHOSEN_ON)),
    STS: spread(get(TESTS, AVERAGE)),
    **{name: spread(get(TESTS, name), ".3f") for name in GEOMETRY},
    # An interrupted run has no time.
    "minutes": mean(lambda run: run["seconds_training"] and run["seconds_training"] / 60, ".0f"),
    "weight change": least(get("moved")),
    "weights of the blocks": mean_weights(),
}


def _comparisons(runs: ByArm) -> str:
    """S2Sent minus each other arm by seeds, Holm's correction over the arms."""
    sides = [(LABELS[arm], runs[OURS], of) for arm, of in runs.items() if arm != OURS]
    return comparisons_table(f"{LABELS[OURS]}, minus", STS, compare(sides, get(TESTS, AVERAGE)))
