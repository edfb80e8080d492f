"""Runs the arms on a frozen backbone over seeds, and makes their tables; each run is a JSON line.

The learning rate of an arm is chosen on development data, by runs of a seed of their own,
`TUNING_SEED`, which are in the file but in no table.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sent.model.artifact.template import CleanUp
from s2sent.model.network.encoder import build_plain_encoder, build_prompt_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TEMPLATES, require_padding
from s2sent.training.backbones import resolve
from s2sent.training.bfloat16 import has_bfloat16
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, read_development_pairs
from s2sent.training.evaluation.results.statistics import Line, compare, kept_step
from s2sent.training.evaluation.sts import AVERAGE, distinct
from s2sent.training.experiments.engine import TESTS, Run, is_decoder, run_missing, size_of
from s2sent.training.experiments.frozen.heads import (
    ARMS,
    ENCODER_ARMS,
    MOST_BLOCKS,
    arms_for,
    num_parameters,
)
from s2sent.training.experiments.frozen.states import BlockStates, states_of
from s2sent.training.experiments.frozen.train import Schedule, batch_loss, batches_of, train_head
from s2sent.training.experiments.score import correlation, read_tests, scores_on
from s2sent.training.experiments.tables import (
    STS,
    Cell,
    Runs,
    arms_of,
    arms_table,
    by_setting,
    comparisons_table,
    get,
    of_each_test,
    spread,
)
from s2sent.training.files.jsonl import read_lines
from s2sent.training.recipe.recipe import CorpusPart

OBJECTIVE = "contrastive"  # of the two texts of a pair
TEMPLATE = "sfp"  # inside which a decoder reads a text
CLEAN_UP: CleanUp = "statement"
TRAINING_TOKENS, TOKENS = 64, 256
RATES = (1e-3, 1e-2)  # of which one is chosen for each arm
TUNING_SEED = 0  # of the runs that choose a rate
PAIRS = "pairs_per_task"  # among a run's scores of the tests, where these were thinned
# Of runs that are compared. A run that learns nothing has no steps of its own.
SETTING = ("backbone", "reading", "corpus_sha256", "eval_every", "batch_size")
SCORES = {  # where all runs of a table have them; arms are compared in the last
    **{name: get("chosen", name) for name in (WITHOUT_OVERLAP, "R@1", "MRR@10")},
    STS: get(TESTS, AVERAGE),
}


def short_texts(pairs: int) -> list[dict[str, Any]]:
    """Short texts, since a decoder reads each inside a template: eight captions of ten pairs."""
    shares = {"captions": 8, "wikisplit": 1, "pan_paraphrase": 1}
    return [{"source": name, "limit": pairs * of // 10} for name, of in shares.items()]


@dataclass(frozen=True)
class Texts:
    """What runs read: states, and the pairs [P, 2] of the corpus as rows of its states."""

    corpus: BlockStates
    pairs: Tensor
    dev: BlockStates
    tests: BlockStates


class FrozenBackbone:
    """A backbone, its data, and the states of their texts, computed when a run first needs them."""

    def __init__(self, backbone: str, data: Path, pairs: int, test_pairs: int) -> None:
        self.name, self.data, self.test_pairs = backbone, data, test_pairs
        self.causal = is_decoder(backbone)
        self.depth, self.width = size_of(resolve(backbone))
        self.blocks = min(MOST_BLOCKS, self.depth)
        parts = [CorpusPart(**part) for part in short_texts(pairs)]
        self.corpus = read_corpus(data / "corpus", parts, kind="pairs")
        self.dev = read_development_pairs(data / "sts").without_overlap
        self.tests = read_tests(data, test_pairs)

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
    def texts(self) -> Texts:
        """Mean-pooled; of a decoder inside its template, in bfloat16 where the machine has it."""
        if self.causal:
            encoder = build_prompt_encoder(
                resolve(self.name), None, [TEMPLATES[TEMPLATE]], pooling="rep1", clean_up=CLEAN_UP
            )
            encoder = encoder.to(torch.bfloat16) if has_bfloat16() else encoder
        else:
            encoder = build_plain_encoder(resolve(self.name))
            require_padding(encoder.tokenizer, self.name)
        preset = SelectorConfig.preset("decoder" if self.causal else "default", width=self.width)
        states = partial(states_of, encoder, config=preset, num_blocks=self.blocks)
        encoder.max_seq_length = TRAINING_TOKENS
        corpus = states(self.corpus.texts())
        row, rows = corpus.row, itertools.chain.from_iterable(self.corpus.parts.values())
        encoder.max_seq_length = TOKENS
        dev, *tests = ([*pairs.first, *pairs.second] for pairs in (self.dev, *self.tests.values()))
        return Texts(
            corpus,
            torch.tensor([(row[each[0]], row[each[1]]) for each in rows]),
            states(distinct(dev)),
            states(distinct(*tests)),
        )


def run_heads(backbone: FrozenBackbone, file: Path, steps: int, seeds: Sequence[int]) -> None:
    """Add the lines that ``file`` lacks: first the runs that choose rates, then every seed.

    An arm that learns nothing has one run. The tests are scored where no rate is chosen any more.
    """
    plan = Schedule(steps, 0.0, max(1, steps // 4))
    arms = arms_for(backbone.depth, causal=backbone.causal)
    run = partial(_run, backbone, file)
    tuning = {
        arm: [run(arm, TUNING_SEED, replace(plan, learning_rate=rate)) for rate in RATES]
        for arm in arms
        if ARMS[arm].learns
    }
    every = [each for runs in tuning.values() for each in runs]
    run_missing(every, backbone.data)
    if not all(each.has_line for each in every):
        return
    lines = read_lines(file)
    schedules = {
        arm: replace(plan, learning_rate=_best_rate(lines, of)) for arm, of in tuning.items()
    }
    fixed = [run(arm, TUNING_SEED, replace(plan, steps=0)) for arm in arms if arm not in tuning]
    learned = [run(arm, seed, of) for seed in seeds for arm, of in schedules.items()]
    run_missing([*fixed, *learned], backbone.data)


def _run(backbone: FrozenBackbone, file: Path, arm: str, seed: int, schedule: Schedule) -> Run:
    cell = {"objective": OBJECTIVE, "arm": arm, "seed": seed, "schedule": asdict(schedule)}
    name = f"{arm}.{schedule.learning_rate:g}.seed{seed}"
    return Run(
        name=f"frozen {name}",
        file=file,
        key={**backbone.describe(), **cell},
        folder=file.with_suffix("") / name,
        recipes={},
        score=partial(_score, backbone, cell),
    )


def _best_rate(lines: Sequence[Line], tuning: Sequence[Run]) -> float:
    """The rate of an arm at which its tuning run scored best on development data."""
    tuned = [next(line for line in lines if run.key.items() <= line.items()) for run in tuning]
    best = max(tuned, key=lambda line: line["chosen"][WITHOUT_OVERLAP])
    return float(best["schedule"]["learning_rate"])


def _score(backbone: FrozenBackbone, cell: Line) -> dict[str, Any]:
    """Train a head and score it, on the tests unless it chooses a rate."""
    torch.manual_seed(cell["seed"])
    arm, schedule, texts = ARMS[cell["arm"]], Schedule(**cell["schedule"]), backbone.texts
    head, blocks = arm.make(backbone.width), arm.num_blocks
    step, best = train_head(
        head,
        lambda pairs: batch_loss(head, texts.corpus, pairs, blocks),
        lambda: correlation(texts.dev.encode_by(head, blocks), backbone.dev),
        batches_of(texts.pairs, schedule.batch_size, cell["seed"]),
        schedule,
    )
    found: dict[str, Any] = {
        "parameters": num_parameters(head),
        "step": step,
        "chosen": {WITHOUT_OVERLAP: round(best, 6)},
    }
    if counts(cell):
        scores = scores_on(texts.tests.encode_by(head, blocks), backbone.tests)
        thinned_to = {PAIRS: backbone.test_pairs} if backbone.test_pairs else {}
        found[TESTS] = {**scores, **thinned_to}
    return found


def counts(line: Line) -> bool:
    """Whether a run stands in a table: not one that chose a rate."""
    return line["seed"] != TUNING_SEED or not learns(line)


def learns(line: Line) -> bool:
    """Whether a run's arm learns anything; one that does not has no seeds, steps or rate."""
    return ARMS[line["arm"]].learns


def frozen_tables(lines: Runs) -> list[str]:
    """Markdown: how many pairs were scored, a table of scores an objective, one of comparisons.

    Runs of other texts or another schedule have tables of their own. Holm's correction is over all
    comparisons of such a part. Raises `ConfigError` for runs scored on different numbers of pairs.
    """
    numbers = {run[TESTS].get(PAIRS, 0) for run in lines if run.get(TESTS)}
    if len(numbers) > 1:
        both = " and others on ".join(map(of_each_test, sorted(numbers)))
        raise ConfigError(f"Some runs were scored on {both}: keep them in different files.")
    runs = [{"teacher": "", **line["schedule"], **line} for line in lines if counts(line)]
    parts = [f"{STS}: {of_each_test(*numbers) if numbers else 'not scored'}."]
    settings = by_setting(runs, SETTING)
    for (backbone, _, corpus, every, batch), of in settings.items():
        if len(settings) > 1:
            schedule = f"scored every {every} steps of {batch} pairs"
            parts.append(f"### {backbone}, corpus {corpus}, {schedule}")
        parts += _tables(of)
    return parts


def _tables(lines: Runs) -> list[str]:
    parts, sides = [], []
    scores = {name: score for name, score in SCORES.items() if None not in map(score, lines)}
    columns = {**COLUMNS, **{name: spread(scores[name]) for name in scores}}
    columns["kept steps"] = _kept_steps
    by_objective = by_setting(lines, ("exit", "objective", "teacher"))
    for (depth, objective, teacher), of in by_objective.items():
        title = f"{depth}, {objective} {teacher}".strip()
        runs = {arm: of_arm for arm, of_arm in arms_of(of, ARMS).items() if of_arm}
        table = arms_table({arm: ARMS[arm].label for arm in runs}, runs, columns)
        parts += [f"**Depth {title}**", table]
        sides += _sides(f"depth {title}: ", runs)
    minus = "S2Sent minus" if all(line["arm"] in ENCODER_ARMS for line in lines) else "difference"
    last = [*scores][-1]
    return [*parts, comparisons_table(minus, last, compare(sides, scores[last]))]


def _kept_steps(runs: Runs) -> str:
    """The first and the last kept step, and how many runs kept their initial weights."""
    if not learns(runs[0]):
        return ""
    steps = sorted(kept_step(run) or 0 for run in runs)
    initial = steps.count(0)
    return f"{steps[0]} to {steps[-1]}" + (f"; {initial} of {len(steps)} at 0" if initial else "")


COLUMNS: dict[str, Cell] = {
    "parameters": lambda of: f"{of[0]['parameters']:,}",
    "seeds": lambda of: str(len(of)) if learns(of[0]) else "nothing learned",
    "rate": lambda of: f"{of[0]['schedule']['learning_rate']:g}" if learns(of[0]) else "",
}


def _sides(head: str, runs: Mapping[str, Runs]) -> list[tuple[str, Runs, Runs]]:
    """The arms of several seeds beside their controls.

    A control that learns nothing has its one run for every seed.
    """
    sides = []
    for arm, of_arm in runs.items():
        for control in ARMS[arm].controls if len(of_arm) > 1 else ():
            if control in runs:
                minus = "" if arm in ENCODER_ARMS else f"{ARMS[arm].label}, minus "
                other = runs[control]
                if not learns(other[0]):
                    other = [{**other[0], "seed": run["seed"]} for run in of_arm]
                sides.append((head + minus + ARMS[control].label, of_arm, other))
    return sides
