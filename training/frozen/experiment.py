"""Runs the arms of a frozen experiment over exits, objectives and seeds; each run is a JSON line.

With several learning rates that of an arm is chosen on development data by runs of a seed of their
own, `TUNING_SEED`, which are in the file but in no table. A run that is in the file is not run again.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from training.errors import ConfigError
from training.frozen.arms import ARMS, NUM_BLOCKS, Arm
from training.frozen.setting import Setting
from training.frozen.train import CHOSEN_ON, Objective, Schedule, train_head
from training.jsonl import append_line, read_lines
from training.record import provenance

log = logging.getLogger(__name__)

TUNING_SEED = 0
VERSIONS = ("torch", "transformers", "sentence-transformers", "numpy", "scipy")
KEY = ("backbone", "corpus_sha256", "exit", "objective", "arm", "seed", "schedule")

Line = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is run: exits (numbers of blocks), seeds, the schedule but for its rate, and rates.

    The rates are those of every arm alike.
    """

    exits: Sequence[int]
    seeds: Sequence[int]
    schedule: Schedule
    rates: Sequence[float] = (3e-3,)
    arms: Sequence[str] = tuple(ARMS)


def run_plan(setting: Setting, plan: Plan, file: Path) -> None:
    """Run what ``file`` does not hold yet, tuning runs first, then seed by seed.

    Raises `ConfigError` for an exit that the backbone does not have.
    """
    for depth in plan.exits:
        if not NUM_BLOCKS <= depth <= setting.depth:
            raise ConfigError(
                f"Exit {depth} is outside {NUM_BLOCKS} to {setting.depth}: name another."
            )
    if TUNING_SEED in plan.seeds:
        raise ConfigError(f"Seed {TUNING_SEED} chooses learning rates: name seeds from 1.")
    done = {_key(line): line for line in read_lines(file)}
    for seed in (TUNING_SEED, *plan.seeds):
        for depth, objective in settings_of(plan, setting.depth):
            for arm in (ARMS[name] for name in plan.arms):
                for schedule in _schedules(done, setting, depth, objective, arm, plan, seed):
                    head = _head_line(setting, depth, objective, arm, schedule, seed)
                    if _key(head) not in done:
                        line = _run(head, setting, arm, schedule)
                        append_line(file, line)
                        done[_key(line)] = line


def settings_of(plan: Plan, depth: int) -> Iterator[tuple[int, Objective]]:
    """The exits and objectives; the teacher of a distillation is the full depth itself."""
    for exit_at in plan.exits:
        if exit_at < depth:
            yield exit_at, "distillation"
        yield exit_at, "contrastive"


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
    return {
        "backbone": setting.backbone,
        "corpus_sha256": setting.corpus_sha256,
        "exit": depth,
        "objective": objective,
        "arm": arm.name,
        "seed": seed,
        "schedule": asdict(schedule),
    }


def _key(line: Line) -> tuple[Any, ...]:
    return tuple(
        tuple(sorted(line[name].items())) if name == "schedule" else line[name] for name in KEY
    )


def _run(head: Line, setting: Setting, arm: Arm, schedule: Schedule) -> Line:
    torch.manual_seed(head["seed"])
    module = arm.make(setting.width)
    blocks = range(head["exit"] - NUM_BLOCKS + 1, head["exit"] + 1)
    started = time.monotonic()
    outcome = train_head(module, setting, blocks, head["objective"], schedule, head["seed"])
    line = {
        **head,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        **_rounded(asdict(outcome)),
        "seconds": round(time.monotonic() - started, 1),
        "versions": {name: version(name) for name in VERSIONS},
        **provenance(),
    }
    log.info(
        "exit %d %s %s seed %d rate %g: step %d, %s",
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
