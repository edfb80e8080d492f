"""Runs a plan of heads on a frozen backbone from what a command line names."""

from dataclasses import replace
from pathlib import Path

from s2sent.training.backbones import resolve
from s2sent.training.experiments.engine import require_known, size_of
from s2sent.training.experiments.frozen.arms import ARMS, DECODER_ARMS, ENCODER_ARMS
from s2sent.training.experiments.frozen.run import (
    ENCODER_OBJECTIVES,
    OBJECTIVES,
    Plan,
    require_possible,
    run_plan,
)
from s2sent.training.experiments.frozen.setting import (
    CORPUS,
    DECODER_PAIRS,
    Reading,
    read_setting,
    short_texts,
)
from s2sent.training.experiments.frozen.sts_tests import score_tests


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
    reading = Reading.inside(template, blocks) if template else None
    every = [*ENCODER_ARMS]
    if reading is not None:
        every = [name for name in DECODER_ARMS if ARMS[name].num_blocks <= reading.num_blocks]
    require_known(plan.arms, [*ARMS], "arm")
    require_known(plan.objectives, OBJECTIVES, "objective")
    chosen = [objective for objective in OBJECTIVES if objective in plan.objectives]
    plan = replace(plan, arms=plan.arms or every, objectives=chosen or ENCODER_OBJECTIVES)
    kept = blocks if reading is None else reading.num_blocks
    require_possible(
        plan,
        depth=blocks,
        first=blocks - kept + 1,
        two_stages=reading is not None and reading.two_stages,
        taught=teacher is not None,
    )
    setting = read_setting(
        backbone,
        data,
        retrieval,
        cache,
        corpus=short_texts(DECODER_PAIRS) if reading else CORPUS,
        reading=reading,
        teacher=teacher,
    )
    run_plan(setting, plan, output, cache)
    if test_pairs is not None:
        score_tests(setting, data, cache, output, pairs_per_task=test_pairs)
