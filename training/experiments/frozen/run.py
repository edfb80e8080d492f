"""Runs the arms on a frozen backbone over objectives and seeds; each run is a JSON line.

The learning rate of an arm is chosen on development data, by runs of a seed of their own,
`TUNING_SEED`, which are in the file but in no table.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from s2sent.model.artifact.template import CleanUp
from s2sent.model.network.encoder import build_plain_encoder, build_prompt_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TEMPLATES, require_padding
from s2sent.training.backbones import resolve
from s2sent.training.bfloat16 import has_bfloat16
from s2sent.training.corpus import read_corpus
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, read_development_pairs
from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.evaluation.sts import SentencePairs, distinct
from s2sent.training.experiments.engine import TESTS, Run, is_decoder, run_missing, size_of
from s2sent.training.experiments.frozen.heads import ARMS, MOST_BLOCKS, arms_for, num_parameters
from s2sent.training.experiments.frozen.states import BlockStates, states_of
from s2sent.training.experiments.frozen.tables import PAIRS, TUNING_SEED, counts
from s2sent.training.experiments.frozen.train import Schedule, batch_loss, batches_of, train_head
from s2sent.training.experiments.score import correlation, read_tests, scores_on
from s2sent.training.files.jsonl import read_lines
from s2sent.training.recipe.recipe import CorpusPart

TEMPLATE = "sfp"  # inside which a decoder reads a text
CLEAN_UP: CleanUp = "statement"
TRAINING_TOKENS, TOKENS = 64, 256
RATES = (1e-3, 1e-2)  # of which one is chosen for each arm
LEFT = ("mean-3-length",)  # an arm that is not run again: it is the mean with rms


def short_texts(pairs: int) -> list[CorpusPart]:
    """Short texts, since a decoder reads each inside a template: eight captions of ten pairs."""
    shares = {"captions": 8, "wikisplit": 1, "pan_paraphrase": 1}
    return [CorpusPart(source=name, limit=pairs * of // 10) for name, of in shares.items()]


class FrozenBackbone:
    """A backbone and the states of its texts, each computed when it is first asked for."""

    def __init__(self, backbone: str, data: Path, pairs: int, test_pairs: int) -> None:
        self.name, self.data, self.test_pairs = backbone, data, test_pairs
        self.causal = is_decoder(backbone)
        self.depth, self.width = size_of(resolve(backbone))
        self.blocks = min(MOST_BLOCKS, self.depth)
        self.corpus = read_corpus(data / "corpus", short_texts(pairs), kind="pairs")

    def describe(self) -> dict[str, Any]:
        """What of a run's line says which texts it read, and how."""
        found: dict[str, Any] = {"backbone": self.name, "corpus_sha256": self.corpus.sha256}
        if self.causal:
            found["reading"] = {
                "template": TEMPLATES[TEMPLATE],
                "clean_up": CLEAN_UP,
                "num_blocks": self.blocks,
                "bf16": has_bfloat16(),
            }
        return found | {"exit": self.depth}

    @cached_property
    def encoder(self) -> SentenceTransformer:
        """Mean-pooled; a decoder inside its template, in bfloat16 where the machine has it."""
        folder = resolve(self.name)
        if not self.causal:
            plain = build_plain_encoder(folder)
            require_padding(plain.tokenizer, self.name)
            return plain
        encoder = build_prompt_encoder(
            folder, None, [TEMPLATES[TEMPLATE]], pooling="rep1", clean_up=CLEAN_UP
        )
        return encoder.to(torch.bfloat16) if has_bfloat16() else encoder

    @cached_property
    def training(self) -> BlockStates:
        """The states of the corpus, with Rep2 where there is one."""
        return self._states(self.corpus.texts(), TRAINING_TOKENS, with_second=self.causal)

    @cached_property
    def pairs(self) -> torch.Tensor:
        """The pairs [P, 2] of the corpus, as rows of its states."""
        row = self.training.row
        examples = itertools.chain.from_iterable(self.corpus.parts.values())
        return torch.tensor([(row[each[0]], row[each[1]]) for each in examples])

    @cached_property
    def dev(self) -> SentencePairs:
        """STS-B dev without STS12 to 16."""
        return read_development_pairs(self.data / "sts").without_overlap

    @cached_property
    def dev_states(self) -> BlockStates:
        """The states of `dev`."""
        return self._states(distinct(self.dev.first, self.dev.second), TOKENS)

    @cached_property
    def tests(self) -> dict[str, SentencePairs]:
        """The seven tests."""
        return read_tests(self.data, self.test_pairs)

    @cached_property
    def test_states(self) -> BlockStates:
        """The states of `tests`."""
        sides = (side for of in self.tests.values() for side in (of.first, of.second))
        return self._states(distinct(*sides), TOKENS)

    def _states(self, texts: list[str], limit: int, *, with_second: bool = False) -> BlockStates:
        preset = "decoder" if self.causal else "default"
        config = SelectorConfig.preset(preset, width=self.width)
        self.encoder.max_seq_length = limit
        return states_of(self.encoder, texts, config, self.blocks, with_second=with_second)


def run_heads(backbone: FrozenBackbone, file: Path, steps: int, seeds: Sequence[int]) -> None:
    """Add the lines that ``file`` lacks: first the runs that choose rates, then every seed.

    An arm that learns nothing has one run. The tests are scored where no rate is chosen any more.
    """
    plan = Schedule(steps, 0.0, max(1, steps // 4))
    objectives = ("contrastive", "sfp") if backbone.causal else ("contrastive",)
    arms = [name for name in arms_for(backbone.depth, causal=backbone.causal) if name not in LEFT]
    run = partial(_run, backbone, file)
    tuning = {
        (objective, arm): [
            run(objective, arm, TUNING_SEED, replace(plan, learning_rate=rate)) for rate in RATES
        ]
        for objective in objectives
        for arm in arms
        if ARMS[arm].learns
    }
    every = [each for runs in tuning.values() for each in runs]
    run_missing(every, backbone.data)
    if not all(each.has_line for each in every):
        return
    lines = read_lines(file)
    schedules = {
        cell: replace(plan, learning_rate=_best_rate(lines, of)) for cell, of in tuning.items()
    }
    fixed = [
        run(objective, arm, TUNING_SEED, replace(plan, steps=0))
        for objective in objectives
        for arm in arms
        if not ARMS[arm].learns
    ]
    learned = [run(*cell, seed, of) for seed in seeds for cell, of in schedules.items()]
    run_missing([*fixed, *learned], backbone.data)


def _run(
    backbone: FrozenBackbone, file: Path, objective: str, arm: str, seed: int, schedule: Schedule
) -> Run:
    cell = {"objective": objective, "arm": arm, "seed": seed, "schedule": asdict(schedule)}
    name = f"{objective}.{arm}.{schedule.learning_rate:g}.seed{seed}"
    tested = counts(cell)
    return Run(
        name=f"frozen {name}",
        file=file,
        key={**backbone.describe(), **cell},
        folder=file.with_suffix("") / name,
        recipes={},
        score=partial(_score, backbone, cell, tested),
        needed=(TESTS,) if tested else (),
    )


def _best_rate(lines: Sequence[Line], tuning: Sequence[Run]) -> float:
    """The rate of an arm at which its tuning run scored best on development data."""
    tuned = [next(line for line in lines if run.key.items() <= line.items()) for run in tuning]
    best = max(tuned, key=lambda line: line["chosen"][WITHOUT_OVERLAP])
    return float(best["schedule"]["learning_rate"])


def _score(backbone: FrozenBackbone, cell: Line, tested: bool) -> dict[str, Any]:
    """Train a head and score it."""
    torch.manual_seed(cell["seed"])
    arm, schedule = ARMS[cell["arm"]], Schedule(**cell["schedule"])
    head = arm.make(backbone.width)

    def score() -> float:
        return correlation(backbone.dev_states.encode_by(head, arm.num_blocks), backbone.dev)

    def loss_of(pairs: torch.Tensor) -> torch.Tensor:
        return batch_loss(head, backbone.training, pairs, arm.num_blocks, cell["objective"])

    batches = batches_of(backbone.pairs, schedule.batch_size, cell["seed"])
    step, best = train_head(head, loss_of, score, batches, schedule)
    found: dict[str, Any] = {
        "parameters": num_parameters(head),
        "step": step,
        "chosen": {WITHOUT_OVERLAP: round(best, 6)},
    }
    if tested:
        scores = scores_on(backbone.test_states.encode_by(head, arm.num_blocks), backbone.tests)
        thinned_to = {PAIRS: backbone.test_pairs} if backbone.test_pairs else {}
        found[TESTS] = {**scores, **thinned_to}
    return found
