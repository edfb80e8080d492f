"""Runs the arms on a frozen backbone over depths, objectives and seeds; each run is a JSON line.

With several learning rates that of an arm is chosen on development data by runs of a seed of their
own, `TUNING_SEED`, which are in the file but in no table. Trained heads are kept, so that
`sts_tests` can score the tests later, once.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from s2sent.training.backbones import resolve
from s2sent.training.errors import ConfigError
from s2sent.training.experiments.engine import (
    DEVELOPMENT,
    Run,
    require_known,
    run_missing,
    size_of,
)
from s2sent.training.experiments.frozen.arms import (
    ARMS,
    DECODER_ARMS,
    ENCODER_ARMS,
    Arm,
    blocks_of,
)
from s2sent.training.experiments.frozen.selection import TUNING_SEED, head_file
from s2sent.training.experiments.frozen.setting import (
    CORPUS,
    DECODER_PAIRS,
    DecoderInput,
    Setting,
    read_setting,
    short_texts,
)
from s2sent.training.experiments.frozen.sts_tests import score_tests
from s2sent.training.experiments.frozen.train import CHOSEN_ON, Objective, Schedule, train_head
from s2sent.training.experiments.score import versions
from s2sent.training.files.jsonl import read_lines

OBJECTIVES: tuple[Objective, ...] = ("distillation", "contrastive", "sfp", "teacher")
ENCODER_OBJECTIVES: tuple[Objective, ...] = OBJECTIVES[:2]


@dataclass(frozen=True)
class Plan:
    """What is run: depths (numbers of blocks), seeds, the schedule but for its rate, and rates.

    The rates are those of every arm alike.
    """

    depths: Sequence[int]
    seeds: Sequence[int]
    schedule: Schedule
    rates: Sequence[float] = (3e-3,)
    arms: Sequence[str] = tuple(ENCODER_ARMS)
    objectives: Sequence[Objective] = ENCODER_OBJECTIVES


def run_frozen(
    plan: Plan,
    backbone: str,
    data: Path,
    cache: Path,
    output: Path,
    *,
    template: str,
    teacher: str | None,
    retrieval: Path | None,
    test_pairs: int | None,
) -> None:
    """Run what ``output`` lacks of a plan, of which every arm and objective may be left out.

    A decoder, read inside a ``template``, has arms of its own, as far as it has blocks for them,
    and short texts. ``test_pairs`` of each test are scored at the end, 0 for all, None for none.
    Raises a `TrainingError` for what cannot be run, before any state is computed.
    """
    blocks, _ = size_of(resolve(backbone))
    decoder = DecoderInput.inside(template, blocks) if template else None
    every = [*ENCODER_ARMS]
    if decoder is not None:
        every = [name for name in DECODER_ARMS if ARMS[name].num_blocks <= decoder.num_blocks]
    require_known(plan.arms, [*ARMS], "arm")
    require_known(plan.objectives, OBJECTIVES, "objective")
    chosen = [objective for objective in OBJECTIVES if objective in plan.objectives]
    plan = replace(plan, arms=plan.arms or every, objectives=chosen or ENCODER_OBJECTIVES)
    kept = blocks if decoder is None else decoder.num_blocks
    require_possible(
        plan,
        depth=blocks,
        first=blocks - kept + 1,
        two_stages=decoder is not None and decoder.two_stages,
        taught=teacher is not None,
    )
    setting = read_setting(
        backbone,
        data,
        retrieval,
        cache,
        corpus=short_texts(DECODER_PAIRS) if decoder else CORPUS,
        decoder=decoder,
        teacher=teacher,
    )
    run_plan(setting, plan, output, cache)
    if test_pairs is not None:
        score_tests(setting, data, cache, output, pairs_per_task=test_pairs)


def run_plan(setting: Setting, plan: Plan, file: Path, cache: Path | None = None) -> None:
    """Run what ``file`` does not hold yet, tuning runs first, then seed by seed.

    ``cache`` is the folder that keeps trained heads. Raises `ConfigError` for a depth that the
    backbone does not have, and for an objective without the states or the teacher that it needs.
    """
    require_possible(
        plan,
        depth=setting.depth,
        first=setting.states.first,
        two_stages=setting.states.second is not None,
        taught=setting.teacher is not None,
    )
    cells = [
        (depth, objective, ARMS[name])
        for depth, objective in settings_of(plan, setting.depth)
        for name in plan.arms
    ]

    def run(depth: int, objective: Objective, arm: Arm, seed: int, schedule: Schedule) -> Run:
        follows = {"teacher": setting.teacher_name} if objective == "teacher" else {}
        cell = {"exit": depth, "objective": objective, **follows, "arm": arm.name, "seed": seed}
        key = {**setting.describe(), **cell, "schedule": asdict(schedule)}
        head = head_file(cache or file.parent, key)
        name = f"depth {depth} {objective} {arm.name}, seed {seed}"
        train = partial(_train, setting, arm, key, schedule, head if cache else None)
        return Run(name, file, key, head, {}, train, part=DEVELOPMENT)

    tuning = [
        run(*cell, TUNING_SEED, schedule)
        for cell in cells
        for schedule in _tuning_schedules(cell[-1], plan)
    ]
    run_missing(tuning, file.parent, keep=True)
    if all(each.has_line for each in tuning):
        lines = read_lines(file)
        runs = [
            run(*cell, seed, replace(plan.schedule, learning_rate=_rate(lines, tuning, cell, plan)))
            for seed in plan.seeds
            for cell in cells
            if cell[-1].learns
        ]
        run_missing(runs, file.parent, keep=True)


def require_possible(plan: Plan, *, depth: int, first: int, two_stages: bool, taught: bool) -> None:
    """Raise `ConfigError` for a plan that the setting does not allow; it needs no states.

    The backbone has ``depth`` blocks, whose states are kept from the block ``first`` on, with Rep2
    if it is read in ``two_stages``, and there is a teacher if it is ``taught``.
    """
    lowest = first - 1 + max(ARMS[name].num_blocks for name in plan.arms)
    for asked in plan.depths:
        if not lowest <= asked <= depth:
            raise ConfigError(
                f"Depth {asked} is outside {lowest} to {depth}: name another, or only arms "
                "of fewer blocks."
            )
    if TUNING_SEED in plan.seeds:
        raise ConfigError(f"Seed {TUNING_SEED} chooses learning rates: name seeds from 1.")
    if "sfp" in plan.objectives and not two_stages:
        raise ConfigError("sfp contrasts Rep2 with Rep1: give a template with [REP1] in it.")
    if "teacher" in plan.objectives and not taught:
        raise ConfigError("The objective teacher needs --teacher: name an encoder.")


def settings_of(plan: Plan, depth: int) -> Iterator[tuple[int, Objective]]:
    """The depths and objectives; a distillation follows the full depth itself."""
    for asked in plan.depths:
        for objective in plan.objectives:
            if objective != "distillation" or asked < depth:
                yield asked, objective


def _tuning_schedules(arm: Arm, plan: Plan) -> list[Schedule]:
    """Every rate where there are several; of an arm that learns nothing its one run."""
    if not arm.learns:
        return [replace(plan.schedule, steps=0, learning_rate=0.0)]
    every = [replace(plan.schedule, learning_rate=rate) for rate in plan.rates]
    return every if len(every) > 1 else []


def _rate(
    lines: Sequence[Any], tuning: Sequence[Run], cell: tuple[int, str, Arm], plan: Plan
) -> float:
    """The rate of an arm at which its tuning run scored best on development data."""
    depth, objective, arm = cell
    own = {"exit": depth, "objective": objective, "arm": arm.name}.items()
    keys = [run.key.items() for run in tuning if own <= run.key.items()]
    tuned = [next(line for line in lines if key <= line.items()) for key in keys]
    best = max(tuned, key=lambda line: line["chosen"][CHOSEN_ON], default=None)
    return plan.rates[0] if best is None else float(best["schedule"]["learning_rate"])


def _train(
    setting: Setting,
    arm: Arm,
    key: dict[str, Any],
    schedule: Schedule,
    keep: Path | None,
    _: float | None,
) -> dict[str, Any]:
    """Train a head, keep it, and describe what came out."""
    torch.manual_seed(key["seed"])
    head = arm.make(setting.width)
    started = time.monotonic()
    blocks = blocks_of(arm, key["exit"])
    outcome = train_head(head, setting, blocks, key["objective"], schedule, key["seed"])
    if keep is not None:
        save_model(head, str(keep))
    return {
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
        **_rounded(asdict(outcome)),
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if value != value else round(value, 6)  # NaN is no JSON
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
