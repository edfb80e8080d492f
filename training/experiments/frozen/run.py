"""Runs the arms on a frozen backbone over depths, objectives and seeds; each run is a JSON line.

With several learning rates that of an arm is chosen on development data by runs of a seed of their
own, `TUNING_SEED`, which are in the file but in no table. A run that is in the file is not run
again. Trained heads are kept, so that `sts_tests` can score the tests later, once.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.frozen.arms import ARMS, ENCODER_ARMS, Arm, blocks_of
from s2sent.training.experiments.frozen.setting import Setting
from s2sent.training.experiments.frozen.train import CHOSEN_ON, Objective, Schedule, train_head
from s2sent.training.experiments.score import versions
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import provenance

log = logging.getLogger(__name__)

TUNING_SEED = 0
HEADS = "heads"  # the folder of trained heads in the cache
KEY = ("backbone", "corpus_sha256", "reading", "exit", "objective", "arm", "seed", "schedule")

OBJECTIVES: tuple[Objective, ...] = ("distillation", "contrastive", "sfp", "teacher")
ENCODER_OBJECTIVES: tuple[Objective, ...] = OBJECTIVES[:2]

Line = dict[str, Any]


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
    done = {_key(line): line for line in read_lines(file)}
    for seed in (TUNING_SEED, *plan.seeds):
        for depth, objective in settings_of(plan, setting.depth):
            for arm in (ARMS[name] for name in plan.arms):
                for schedule in _schedules(done, setting, depth, objective, arm, plan, seed):
                    head = _head_line(setting, depth, objective, arm, schedule, seed)
                    if _key(head) not in done:
                        line = _run(head, setting, arm, schedule, cache)
                        append_line(file, line)
                        done[_key(line)] = line


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


def _schedules(
    done: dict[Any, Line],
    setting: Setting,
    depth: int,
    objective: Objective,
    arm: Arm,
    plan: Plan,
    seed: int,
) -> list[Schedule]:
    """Of the tuning seed every rate; of another the best; of an arm that learns nothing one run."""
    every = [replace(plan.schedule, learning_rate=rate) for rate in plan.rates]
    if not arm.learns:
        return [replace(plan.schedule, steps=0, learning_rate=0.0)] if seed == TUNING_SEED else []
    if len(every) == 1:
        return every if seed != TUNING_SEED else []
    if seed == TUNING_SEED:
        return every
    tuned = [
        done[_key(_head_line(setting, depth, objective, arm, schedule, TUNING_SEED))]
        for schedule in every
    ]
    best = max(tuned, key=lambda line: line["chosen"][CHOSEN_ON])
    return [replace(plan.schedule, learning_rate=best["schedule"]["learning_rate"])]


def _head_line(
    setting: Setting, depth: int, objective: Objective, arm: Arm, schedule: Schedule, seed: int
) -> Line:
    """The part of a line that says which run it is."""
    follows = {"teacher": setting.teacher_name} if objective == "teacher" else {}
    return {
        **setting.describe(),
        "exit": depth,
        "objective": objective,
        **follows,
        "arm": arm.name,
        "seed": seed,
        "schedule": asdict(schedule),
    }


def _values(line: Line) -> list[Any]:
    """What tells a run from others; the teacher stands only where one is followed."""
    return [line.get(name) for name in KEY] + ([line["teacher"]] if "teacher" in line else [])


def _key(line: Line) -> tuple[Any, ...]:
    return tuple(
        tuple(sorted(value.items())) if isinstance(value, dict) else value
        for value in _values(line)
    )


def head_file(folder: Path, line: Line) -> Path:
    """Where the trained head of a run is kept."""
    key = json.dumps(_values(line), sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


def _run(head: Line, setting: Setting, arm: Arm, schedule: Schedule, cache: Path | None) -> Line:
    torch.manual_seed(head["seed"])
    module = arm.make(setting.width)
    blocks = blocks_of(arm, head["exit"])
    started = time.monotonic()
    outcome = train_head(module, setting, blocks, head["objective"], schedule, head["seed"])
    if cache is not None:
        (cache / HEADS).mkdir(parents=True, exist_ok=True)
        save_model(module, str(head_file(cache / HEADS, head)))
    line = {
        **head,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        **_rounded(asdict(outcome)),
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
        **provenance(),
    }
    log.info(
        "depth %d %s %s seed %d rate %g: step %d, %s",
        *(head["exit"], head["objective"], head["arm"], head["seed"], schedule.learning_rate),
        *(outcome.step, line["chosen"]),
    )
    return line


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if value != value else round(value, 6)  # NaN is no JSON
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
