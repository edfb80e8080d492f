"""Scores the heads of a finished experiment on the seven STS tests, once.

Nothing is chosen by them: the runs, their rates and their steps are in the file already.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_model

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.geometry import geometry_of
from s2sent.training.evaluation.sts import (
    TASKS,
    Encode,
    SentencePairs,
    distinct,
    read_sentence_pairs,
    spearman,
    thinned,
    with_average,
)
from s2sent.training.experiments.frozen.arms import ARMS, blocks_of
from s2sent.training.experiments.frozen.selection import PAIRS, TESTS, counts, head_file
from s2sent.training.experiments.frozen.setting import Setting, frozen_encoder, states_of
from s2sent.training.experiments.frozen.states import BlockStates
from s2sent.training.files.jsonl import read_lines
from s2sent.training.files.record import written_whole

log = logging.getLogger(__name__)

GEOMETRY_TASK = "STS-B"
CHUNK = 4096  # texts that a head embeds at once


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
    texts = TestStates(setting, data, cache, pairs_per_task)
    scored: dict[Path, dict[str, float]] = {}
    for line in waiting:
        scored[head_file(cache, line)] = found = texts.scores(_head_of(line, setting, cache), line)
        log.info("%s %s seed %d: %s", line["objective"], line["arm"], line["seed"], found)
    lines = read_lines(file)  # again: another process may have added runs
    for line in lines:
        if head_file(cache, line) in scored:
            line[TESTS] = scored[head_file(cache, line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with written_whole(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


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
        task: thinned(read_sentence_pairs(data / "sts" / name), pairs_per_task)
        for task, name in TASKS.items()
    }


def scores_on(encode: Encode, tests: dict[str, SentencePairs]) -> dict[str, float]:
    """Spearman x 100 of each test and their mean; alignment, uniformity and their ratios."""
    by_task = {
        task: spearman(encode(pairs.first), encode(pairs.second), pairs.gold)
        for task, pairs in tests.items()
    }
    found = with_average(by_task) | geometry_of(encode, tests[GEOMETRY_TASK])
    return {name: round(value, 6) for name, value in found.items()}


class TestStates:
    """The states of the sentences of the seven tests; a task's are computed together."""

    __test__ = False  # no test of pytest's

    def __init__(self, setting: Setting, data: Path, cache: Path, pairs_per_task: int) -> None:
        self.pairs_per_task = pairs_per_task
        self._row: dict[str, int] = {}
        self._states: list[BlockStates] = []
        self._tasks = read_tests(data, pairs_per_task)
        encoder = frozen_encoder(setting.backbone, setting.decoder)
        for pairs in self._tasks.values():
            texts = distinct(pairs.first, pairs.second)
            first = sum(len(states.lengths) for states in self._states)
            self._row.update({text: first + place for place, text in enumerate(texts)})
            self._states.append(states_of(encoder, setting.backbone, texts, cache, setting.decoder))

    def scores(self, head: torch.nn.Module, line: dict[str, Any]) -> dict[str, float]:
        """Spearman x 100 of each test and their mean; alignment, uniformity and their ratios."""
        embeddings = self._embed(head, blocks_of(ARMS[line["arm"]], line["exit"]))

        def encode(texts: Sequence[str]) -> NDArray[np.float32]:
            return embeddings[[self._row[text] for text in texts]]

        found = scores_on(encode, self._tasks)
        return found | ({PAIRS: self.pairs_per_task} if self.pairs_per_task else {})

    @torch.no_grad()
    def _embed(self, head: torch.nn.Module, blocks: range) -> NDArray[np.float32]:
        """The embeddings of all sentences, by row."""
        parts = [
            head(*states.batch(slice(start, start + CHUNK), blocks))
            for states in self._states
            for start in range(0, len(states.lengths), CHUNK)
        ]
        embeddings: NDArray[np.float32] = torch.cat(parts).numpy()
        return embeddings
