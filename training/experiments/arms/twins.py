"""Twin encoders beside their controls. What a seed trains, in this order:

    tower_a, tower_b    SimCSE on single texts, from the backbone, with two seeds
    simcse_a, simcse_b  each goes on with the contrast of the corpus's pairs; simcse_a is "simcse",
                        and the two summed are "sum", the control that has no joint objective
    tncse, jtcse        both towers go on together, on the same pairs
    distilled           tower_a goes on towards the cosines and directions of jtcse's sum

Everything after the towers has the same steps, batches and learning rate. A cell is a seed with or
without a selector in each tower; all its encoders share both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from s2sent.training.backbones import resolve
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import (
    ALL_PAIRS,
    WITHOUT_OVERLAP,
    score_development,
)
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.results.statistics import compare
from s2sent.training.evaluation.sts import AVERAGE, TASKS, Remembered, score, with_average
from s2sent.training.experiments.engine import (
    Arm,
    Run,
    Series,
    Study,
    read_results,
    size_of,
)
from s2sent.training.experiments.tables import (
    Runs,
    arms_of,
    arms_table,
    by_setting,
    comparisons_table,
    count,
    get,
    spread,
    write_page,
)
from s2sent.training.files.record import read_record
from s2sent.training.join import joined
from s2sent.training.recipe.recipe import Recipe

RESULTS_FILE = "jtcse.jsonl"  # in the folder of a backbone's results
PAIRS = ("wikisplit", "pan_paraphrase")  # they stand in for the paper's round-trip translations
SECOND_TOWER_SEED = 1000  # added to a cell's seed
SELECTOR_RATE = 3e-3  # high enough for fusion weights to change
MAX_SEQ_LENGTH = 128  # tokens that the encoders read; in training 32
TRAINING = ("steps", "batch_size", "learning_rate", "max_seq_length", "precision")  # of a plan
BUDGETS = {  # steps, batch size, seeds
    "smoke": (2, 8, (1,)),
    "short": (100, 32, (1, 2, 3)),
    "full": (1000, 64, (1, 2, 3)),
}
# What is scored: a label, and whose checkpoints it is.
ARMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "simcse": ("SimCSE, one tower", ("simcse_a",)),
    "sum": ("two SimCSE towers, summed", ("simcse_a", "simcse_b")),
    "tncse": ("TNCSE", ("tncse",)),
    "jtcse": ("JTCSE", ("jtcse",)),
    "distilled": ("JTCSE-D, distilled into one", ("distilled",)),
}
LABELS = {arm: label for arm, (label, _) in ARMS.items()}
CONTROL = "sum"


@dataclass(frozen=True)
class TwinCell:
    """A seed, with selectors or without, and the folder of its checkpoints; all share a plan."""

    plan: Mapping[str, Any]
    seed: int
    selector: bool
    folder: Path

    def checkpoint(self, run: str) -> Path:
        """The folder of a run's encoder."""
        return self.folder / f"{run}.checkpoint"

    def recipes(self) -> dict[str, Recipe]:
        """The recipe of every run, in an order in which each finds what it begins from."""
        steps, batch_size = self.plan["steps"], self.plan["batch_size"]
        tower_a, tower_b, jtcse = map(str, map(self.checkpoint, ("tower_a", "tower_b", "jtcse")))
        # Every arm reads as many rows as it has steps, so a teacher need not embed the others.
        limit = -(-steps * batch_size // len(PAIRS)) + batch_size
        pairs = [{"source": source, "limit": limit} for source in PAIRS]

        first = {
            "seed": self.seed,
            "backbone": {"name": self.plan["backbone"], "max_seq_length": MAX_SEQ_LENGTH},
            "corpus": [{"source": self.plan["corpus"]}],
            "objective": {"name": "simcse"},
            "training": {
                **{name: self.plan[name] for name in TRAINING},
                "selector_learning_rate": SELECTOR_RATE if self.selector else 0.0,
                "eval_every": steps,
            },
            "selector": {"num_blocks": 3} if self.selector else None,
        }

        def after(tower: str, **objective: Any) -> dict[str, Any]:
            joint = {"selector": None} if objective["name"] == "jtcse" else {}  # the towers' own
            backbone = {"name": tower, "max_seq_length": MAX_SEQ_LENGTH}
            return {"backbone": backbone, "corpus": pairs, "objective": objective, **joint}

        joint = {"name": "jtcse", "second_tower": tower_b}
        learned = {"name": "pair_distillation", "teachers": [jtcse], "direction_weight": 1.0}
        patches: dict[str, dict[str, Any]] = {
            "tower_a": {},
            "tower_b": {"seed": self.seed + SECOND_TOWER_SEED},
            "simcse_a": after(tower_a, name="supervised"),
            "simcse_b": after(tower_b, name="supervised"),
            "tncse": after(tower_a, **joint, cross_attention=False),
            "jtcse": after(tower_a, **joint, num_ca_layers=self.plan["num_ca_layers"]),
            "distilled": after(tower_a, **learned),
        }
        return {run: Arm(run, patch).recipe(first, run) for run, patch in patches.items()}

    def encoder(self, *runs: str) -> SentenceTransformer:
        """The encoder of a run, or two runs' encoders summed."""
        folders = [self.checkpoint(run) for run in runs]
        return load_checkpoint(folders[0]) if len(folders) == 1 else joined(*map(str, folders))


def cells_of(series: Series) -> list[TwinCell]:
    """The cells of a series: every seed without selectors, then every seed with them.

    Half of the blocks have cross-attention, as 6 of 12 have in the paper. Raises `ConfigError` for
    a backbone of one block.
    """
    blocks, _ = size_of(resolve(series.backbone))
    if blocks < 2:
        raise ConfigError(f"{series.backbone} has {blocks} block: name a backbone of two or more.")
    steps, batch_size, seeds = BUDGETS[series.budget]
    plan = {
        "backbone": series.backbone,
        "num_ca_layers": blocks // 2,
        "steps": series.steps or steps,  # of the towers, and again of everything after them
        "batch_size": batch_size,
        "corpus": series.corpus,  # of the towers
        "learning_rate": 3e-5,
        "max_seq_length": 32,
        "precision": "bf16",
    }
    folder = series.folder / "jtcse"
    return [
        TwinCell(plan, seed, selector, folder / f"seed{seed}{'-selector' * selector}")
        for selector in (False, True)
        for seed in series.seeds or seeds
    ]


def runs_of(series: Series) -> list[Run]:
    """Every arm of every cell."""
    cells = cells_of(series)
    sha256 = {  # which are the same for every cell
        run: read_corpus(
            series.data / "corpus", recipe.corpus, kind=recipe.objective.example_kind
        ).sha256
        for run, recipe in cells[0].recipes().items()
    }
    return [_run(series, cell, arm, sha256) for cell in cells for arm in ARMS]


def _run(series: Series, cell: TwinCell, arm: str, sha256: Mapping[str, str]) -> Run:
    scored, recipes = ARMS[arm][1], cell.recipes()
    needed = ("tower_a", "tower_b", *(("jtcse",) if arm == "distilled" else ()), *scored)
    return Run(
        name=f"seed {cell.seed}{' with selectors' * cell.selector}: {arm}",
        file=series.folder / RESULTS_FILE,
        key={
            "plan": {**cell.plan, "backbone": series.name},
            "corpus_sha256": sha256,
            "selector": cell.selector,
            "seed": cell.seed,
            "arm": arm,
        },
        folder=cell.folder,
        recipes={cell.checkpoint(run): recipes[run] for run in needed},
        score=partial(_score, cell, scored, series.data),
    )


def _score(cell: TwinCell, scored: Sequence[str], data: Path) -> dict[str, Any]:
    """Scores of an arm on development data and on the tests."""
    encode = Remembered(torch_encode(cell.encoder(*scored)))
    steps = [read_record(cell.checkpoint(run)).get("dev", {}).get("step") for run in scored]
    return {
        "step": None if None in steps else max(steps),
        "development": score_development(encode, data / "sts"),
        "scores": with_average(score(encode, data / "sts")),
    }


# A table's title, the field of its scores, its columns, and the last of these, which is compared.
TABLES = {
    "Development data": ("development", (ALL_PAIRS, WITHOUT_OVERLAP)),
    "The seven STS tests": ("scores", (*TASKS, AVERAGE)),
}


def write_twin_tables(series: Series) -> Path:
    """Write the tables of a series' results beside them; each plan has its own."""
    file, parts = series.folder / RESULTS_FILE, []
    for lines in by_setting(read_results(file), ("plan",)).values():
        plan = lines[0]["plan"]
        parts.append(
            f"{plan['steps']} steps of {plan['batch_size']} texts for each tower, then "
            f"{plan['steps']} steps of {plan['batch_size']} pairs for every arm; learning rate "
            f"{plan['learning_rate']:g}, {plan['precision']}. Scores are Spearman x 100, mean ± "
            "standard deviation over n seeds."
        )
        for selector, title in ((False, "Without selectors"), (True, "A selector in each tower")):
            parts.append(f"## {title}")
            of = [line for line in lines if line["selector"] == selector]
            parts += _tables(of) if of else ["Not run."]
    title = f"Twins on {series.name}"
    return write_page(file.with_suffix(".md"), title, series.command, parts)


def _tables(lines: Runs) -> Iterator[str]:
    for title, (field, names) in TABLES.items():
        scored = arms_of([line for line in lines if field in line], ARMS)
        runs = {arm: of for arm, of in scored.items() if of}
        others = [(LABELS[arm], of, scored[CONTROL]) for arm, of in runs.items() if arm != CONTROL]
        columns = {"n": count, **{name: spread(get(field, name)) for name in names}}
        yield f"{title}:"
        yield arms_table(LABELS, runs, columns)
        compared = compare(others, get(field, names[-1]))
        yield comparisons_table(f"minus {LABELS[CONTROL]}", names[-1], compared)


STUDY = Study(runs_of, write_twin_tables)
