"""Runs the arms on a frozen backbone over depths, objectives and seeds; each run is a JSON line.

With several learning rates that of an arm is chosen on development data by runs of a seed of their
own, `TUNING_SEED`, which are in the file but in no table. Trained heads are kept, so that the tests
can be scored at the end, once: nothing is chosen by them.
"""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model

from s2sent.training.backbones import resolve
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.evaluation.sts import distinct
from s2sent.training.experiments.engine import (
    DEVELOPMENT,
    TESTS,
    Run,
    require_known,
    run_missing,
    size_of,
)
from s2sent.training.experiments.frozen.heads import ARMS, Arm, arms_for, num_parameters
from s2sent.training.experiments.frozen.setting import (
    CORPUS,
    DECODER_PAIRS,
    DecoderInput,
    Setting,
    Texts,
    frozen_encoder,
    read_setting,
    short_texts,
    states_of,
)
from s2sent.training.experiments.frozen.tables import PAIRS, TUNING_SEED, counts
from s2sent.training.experiments.frozen.train import CHOSEN_ON, Objective, Schedule, train_head
from s2sent.training.experiments.score import read_tests, scores_on, versions
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import written_whole
from s2sent.training.recipe.recipe import CorpusPart

log = logging.getLogger(__name__)

OBJECTIVES: tuple[Objective, ...] = ("distillation", "contrastive", "sfp")
KEY = ("backbone", "corpus_sha256", "reading", "exit", "objective", "arm", "seed", "schedule")


@dataclass(frozen=True)
class Plan:
    """What is run: depths (numbers of blocks), seeds, the schedule but for its rate, and rates.

    The rates are those of every arm alike. No arm and no objective: all of an encoder or a decoder.
    """

    depths: Sequence[int]
    seeds: Sequence[int]
    schedule: Schedule
    rates: Sequence[float] = (3e-3,)
    arms: Sequence[str] = ()
    objectives: Sequence[Objective] = ()


def run_heads(
    plan: Plan,
    backbone: str,
    data: Path,
    cache: Path,
    file: Path,
    *,
    template: str = "",
    corpus: Sequence[CorpusPart] = (),
    retrieval: Path | None = None,
    test_pairs: int | None = None,
) -> None:
    """Run what ``file`` lacks of a plan on a backbone, which a decoder reads inside a ``template``.

    ``cache`` keeps states and heads. ``test_pairs`` of each test are scored at the end, 0 for all,
    None for none. Raises a `TrainingError` for what cannot be run, before any state is computed.
    """
    blocks, _ = size_of(resolve(backbone))
    decoder = DecoderInput.inside(template, blocks) if template else None
    require_known(plan.arms, [*ARMS], "arm")
    require_known(plan.objectives, OBJECTIVES, "objective")
    chosen = [each for each in OBJECTIVES if each in plan.objectives] or OBJECTIVES[:2]
    arms = plan.arms or arms_for(blocks, causal=decoder is not None)
    plan = replace(plan, arms=arms, objectives=chosen)
    require_possible(plan, blocks, decoder)
    if test_pairs is not None:
        read_tests(data, test_pairs)  # so that no head is trained for tests that give no score
    parts = corpus or (short_texts(DECODER_PAIRS) if decoder else CORPUS)
    setting = read_setting(backbone, data, retrieval, cache, corpus=parts, decoder=decoder)
    run_plan(setting, plan, file, cache)
    if test_pairs is not None:
        score_tests(setting, data, cache, file, pairs_per_task=test_pairs)


def require_possible(plan: Plan, blocks: int, decoder: DecoderInput | None) -> None:
    """Raise `ConfigError` for a plan that a backbone of so many blocks does not allow."""
    dropped = blocks - decoder.num_blocks if decoder else 0
    lowest = dropped + max(ARMS[name].num_blocks for name in plan.arms)
    for asked in plan.depths:
        if not lowest <= asked <= blocks:
            raise ConfigError(
                f"Depth {asked} is outside {lowest} to {blocks}: name another, or only arms "
                "of fewer blocks."
            )
    if TUNING_SEED in plan.seeds:
        raise ConfigError(f"Seed {TUNING_SEED} chooses learning rates: name seeds from 1.")
    if "sfp" in plan.objectives and not (decoder and decoder.two_stages):
        raise ConfigError("sfp contrasts Rep2 with Rep1: give a template with [REP1] in it.")


def run_plan(setting: Setting, plan: Plan, file: Path, cache: Path) -> None:
    """Run what ``file`` does not hold yet, tuning runs first, then seed by seed.

    ``cache`` is the folder that keeps trained heads. A distillation follows the full depth itself,
    where it is not run.
    """
    cells = [
        (depth, objective, name)
        for depth in plan.depths
        for objective in plan.objectives
        if objective != "distillation" or depth < setting.depth
        for name in plan.arms
    ]

    def run(depth: int, objective: Objective, arm: str, seed: int, schedule: Schedule) -> Run:
        cell = {"exit": depth, "objective": objective, "arm": arm, "seed": seed}
        key = {**setting.describe(), **cell, "schedule": asdict(schedule)}
        head = head_file(cache, key)
        name = f"depth {depth} {objective} {arm}, seed {seed}"
        train = partial(_train, setting, key, schedule, head)
        return Run(name, file, key, head, {}, train, part=DEVELOPMENT)

    tuning = {
        cell: [run(*cell, TUNING_SEED, schedule) for schedule in _tuning(ARMS[cell[-1]], plan)]
        for cell in cells
    }
    every = [each for runs in tuning.values() for each in runs]
    run_missing(every, file.parent)
    if all(each.has_line for each in every):
        lines = read_lines(file)
        schedules = {
            cell: replace(plan.schedule, learning_rate=_rate(lines, tuning[cell], plan))
            for cell in cells
            if ARMS[cell[-1]].learns
        }
        runs = [run(*cell, seed, of) for seed in plan.seeds for cell, of in schedules.items()]
        run_missing(runs, file.parent)


def _tuning(arm: Arm, plan: Plan) -> list[Schedule]:
    """Every rate where there are several; of an arm that learns nothing its one run."""
    if not arm.learns:
        return [replace(plan.schedule, steps=0, learning_rate=0.0)]
    every = [replace(plan.schedule, learning_rate=rate) for rate in plan.rates]
    return every if len(every) > 1 else []


def _rate(lines: Sequence[Line], tuning: Sequence[Run], plan: Plan) -> float:
    """The rate of an arm at which its tuning run scored best on development data."""
    tuned = [next(line for line in lines if run.key.items() <= line.items()) for run in tuning]
    best = max(tuned, key=lambda line: line["chosen"][CHOSEN_ON], default=None)
    return plan.rates[0] if best is None else float(best["schedule"]["learning_rate"])


def _train(
    setting: Setting, key: dict[str, Any], schedule: Schedule, keep: Path, _: float | None
) -> dict[str, Any]:
    """Train a head, keep it, and describe what came out."""
    torch.manual_seed(key["seed"])
    arm = ARMS[key["arm"]]
    head = arm.make(setting.width)
    started = time.monotonic()
    blocks = arm.blocks(key["exit"])
    found = train_head(head, setting, blocks, key["objective"], schedule, key["seed"])
    save_model(head, str(keep))
    return {
        "parameters": num_parameters(head),
        **_rounded(found),
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if value != value else round(value, 6)  # NaN is no JSON
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


def head_file(cache: Path, line: Line) -> Path:
    """Where the trained head of a run is kept."""
    text = json.dumps([line.get(name) for name in KEY], sort_keys=True)
    return cache / "heads" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"


def score_tests(
    setting: Setting, data: Path, cache: Path, file: Path, *, pairs_per_task: int = 0
) -> None:
    """Score every run of ``file`` that is in a table and has no scores of the tests yet.

    Runs of other backbones, or that read them otherwise, are left as they are. ``pairs_per_task``
    of each test, at equal steps; 0 takes all. The heads are in ``cache``. Raises `ConfigError`
    for a run whose head is not there.
    """
    waiting = [
        line
        for line in read_lines(file)
        if setting.reads_as(line) and counts(line) and TESTS not in line
    ]
    if not waiting:
        return
    tests = read_tests(data, pairs_per_task)
    encoder = frozen_encoder(setting.backbone, setting.decoder)
    every = distinct(*(side for pairs in tests.values() for side in (pairs.first, pairs.second)))
    texts = Texts(every, states_of(encoder, every, cache, setting.decoder))
    scored, thinned_to = {}, {PAIRS: pairs_per_task} if pairs_per_task else {}
    for line in waiting:
        encode = texts.encode_by(
            _head_of(line, setting, cache), ARMS[line["arm"]].blocks(line["exit"])
        )
        scored[head_file(cache, line)] = scores_on(encode, tests) | thinned_to
    lines = read_lines(file)  # again: another process may have added runs
    for line in lines:
        if head_file(cache, line) in scored:
            line[TESTS] = scored[head_file(cache, line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with written_whole(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _head_of(line: Line, setting: Setting, cache: Path) -> torch.nn.Module:
    head, path = ARMS[line["arm"]].make(setting.width), head_file(cache, line)
    if not path.is_file():
        raise ConfigError(f"{path} is missing: delete its line and run the experiment again.")
    load_model(head, str(path))
    return head
