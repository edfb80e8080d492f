"""Scores the heads of a finished experiment on the seven STS tests, once.

Nothing is chosen by them: the runs, their rates and their steps are in the file already.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.geometry import geometry_of
from s2sent.training.evaluation.sts import (
    Encode,
    SentencePairs,
    distinct,
    read_tasks,
    spearman,
    thinned,
    with_average,
)
from s2sent.training.experiments.frozen.arms import ARMS, blocks_of
from s2sent.training.experiments.frozen.selection import PAIRS, TESTS, counts, head_file
from s2sent.training.experiments.frozen.setting import Setting, Texts, frozen_encoder, states_of
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import written_whole

log = logging.getLogger(__name__)

GEOMETRY_TASK = "STS-B"


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
    texts, scored = _states_of(tests, setting, cache), {}
    for line in waiting:
        blocks = blocks_of(ARMS[line["arm"]], line["exit"])
        found = scores_on(texts.encode_by(_head_of(line, setting, cache), blocks), tests)
        thinned_to = {PAIRS: pairs_per_task} if pairs_per_task else {}
        scored[head_file(cache, line)] = found | thinned_to
        log.info("%s %s seed %d: %s", line["objective"], line["arm"], line["seed"], found)
    lines = read_lines(file)  # again: another process may have added runs
    for line in lines:
        if head_file(cache, line) in scored:
            line[TESTS] = scored[head_file(cache, line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with written_whole(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _states_of(tests: Mapping[str, SentencePairs], setting: Setting, cache: Path) -> Texts:
    """The states of the tests' sentences, of which a task's are computed together."""
    encoder = frozen_encoder(setting.backbone, setting.decoder)
    columns = [distinct(pairs.first, pairs.second) for pairs in tests.values()]
    return Texts(
        (texts, states_of(encoder, setting.backbone, texts, cache, setting.decoder))
        for texts in columns
    )


def _head_of(line: dict[str, Any], setting: Setting, cache: Path) -> torch.nn.Module:
    module = ARMS[line["arm"]].make(setting.width)
    path = head_file(cache, line)
    if not path.is_file():
        raise ConfigError(f"{path} is missing: delete its line and run the experiment again.")
    load_model(module, str(path))
    return module


def read_tests(data: Path, pairs_per_task: int) -> dict[str, SentencePairs]:
    """The seven tests, ``pairs_per_task`` pairs of each at equal steps; 0 takes all."""
    return {
        task: thinned(pairs, pairs_per_task) for task, pairs in read_tasks(data / "sts").items()
    }


def scores_on(encode: Encode, tests: dict[str, SentencePairs]) -> dict[str, float]:
    """Spearman x 100 of each test and their mean; alignment, uniformity and their ratios."""
    by_task = {
        task: spearman(encode(pairs.first), encode(pairs.second), pairs.gold)
        for task, pairs in tests.items()
    }
    found = with_average(by_task) | geometry_of(encode, tests[GEOMETRY_TASK])
    return {name: round(value, 6) for name, value in found.items()}
