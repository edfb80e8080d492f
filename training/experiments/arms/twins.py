"""Twin encoders beside their controls. What a seed trains, in this order:

    tower_a, tower_b    SimCSE on single texts, from the backbone, with two seeds
    simcse_a, simcse_b  each goes on with the contrast of the corpus's pairs; simcse_a is "simcse",
                        and the two summed are "sum", the control that has no joint objective
    tncse, jtcse        both towers go on together, on the same pairs
    distilled           tower_a goes on towards the cosines and directions of jtcse's sum

Everything after the towers has the same steps, batches and learning rate. A cell is a seed with or
without a selector in each tower, whose checkpoints share a folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import ALL_PAIRS, WITHOUT_OVERLAP, score_development
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.results.statistics import compare
from s2sent.training.evaluation.sts import AVERAGE, TASKS, CachedEncode, score, with_average
from s2sent.training.experiments.engine import Arm, Run, Series, Study, read_results, size_of
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


def runs_of(series: Series) -> list[Run]:
    """Every arm of every seed without selectors, then with them.

    Half of the blocks have cross-attention, as 6 of 12 have in the paper. Raises `ConfigError` for
    a backbone of one block.
    """
    blocks, _ = size_of(series.backbone)
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
    runs: list[Run] = []
    sha256: dict[str, str] = {}  # of the corpora, which are the same for every seed
    for selector, seed in product((False, True), series.seeds or seeds):
        cell = series.folder / "jtcse" / f"seed{seed}{'-selector' * selector}"
        recipes = recipes_of(plan, seed, cell, selector=selector)
        sha256 = sha256 or {
            folder.stem: read_corpus(
                series.data / "corpus", recipe.corpus, kind=recipe.objective.example_kind
            ).sha256
            for folder, recipe in recipes.items()
        }
        shown = {**plan, "backbone": series.name}
        key = {"plan": shown, "corpus_sha256": sha256, "selector": selector, "seed": seed}
        for arm, (_, scored) in ARMS.items():
            teacher = ("jtcse",) if arm == "distilled" else ()
            names = ("tower_a", "tower_b", *teacher, *scored)
            needed = [cell / f"{name}.checkpoint" for name in names]
            run = Run(
                name=f"seed {seed}{' with selectors' * selector}: {arm}",
                file=series.folder / RESULTS_FILE,
                key={**key, "arm": arm},
                folder=cell,
                recipes={folder: recipes[folder] for folder in needed},
                score=partial(_score, needed[-len(scored) :], series.data),
            )
            runs.append(run)
    return runs


def recipes_of(
    plan: Mapping[str, Any], seed: int, cell: Path, *, selector: bool
) -> dict[Path, Recipe]:
    """The recipe of every checkpoint, in an order in which each finds what it begins from."""
    steps, batch_size = plan["steps"], plan["batch_size"]
    tower_a, tower_b, jtcse = (
        f"{cell / run}.checkpoint" for run in ("tower_a", "tower_b", "jtcse")
    )
    # Every arm reads as many rows as it has steps, so a teacher need not embed the others.
    limit = -(-steps * batch_size // len(PAIRS)) + batch_size
    pairs = [{"source": source, "limit": limit} for source in PAIRS]
    first = {
        "seed": seed,
        "backbone": {"name": plan["backbone"], "max_seq_length": MAX_SEQ_LENGTH},
        "corpus": [{"source": plan["corpus"]}],
        "objective": {"name": "simcse"},
        "training": {
            **{name: plan[name] for name in TRAINING},
            "selector_learning_rate": SELECTOR_RATE if selector else 0.0,
            "eval_every": steps,
        },
        "selector": {"num_blocks": 3} if selector else None,
    }

    def after(tower: str, name: str, **options: Any) -> dict[str, Any]:
        backbone = {"name": tower, "max_seq_length": MAX_SEQ_LENGTH}
        own = {"selector": None} if name == "jtcse" else {}  # of the towers
        return {
            "backbone": backbone,
            "corpus": pairs,
            "objective": {"name": name, **options},
            **own,
        }

    joint = partial(after, tower_a, "jtcse", second_tower=tower_b)
    patches: dict[str, dict[str, Any]] = {
        "tower_a": {},
        "tower_b": {"seed": seed + SECOND_TOWER_SEED},
        "simcse_a": after(tower_a, "supervised"),
        "simcse_b": after(tower_b, "supervised"),
        "tncse": joint(cross_attention=False),
        "jtcse": joint(num_ca_layers=plan["num_ca_layers"]),
        "distilled": after(tower_a, "pair_distillation", teachers=[jtcse], direction_weight=1.0),
    }
    recipes = {run: Arm(run, patch).recipe(first, run) for run, patch in patches.items()}
    return {cell / f"{run}.checkpoint": recipe for run, recipe in recipes.items()}


def _score(checkpoints: Sequence[Path], data: Path) -> dict[str, Any]:
    """Scores on development data and on the tests, of one encoder or of two that are summed."""
    one = len(checkpoints) == 1
    encoder = load_checkpoint(checkpoints[0]) if one else joined(*map(str, checkpoints))
    encode = CachedEncode(torch_encode(encoder))
    steps = [read_record(folder).get("dev", {}).get("step") for folder in checkpoints]
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
            of = [line for line in lines if line["selector"] == selector]
            parts += [f"## {title}", *(_tables(of) if of else ["Not run."])]
    title = f"Twins on {series.name}"
    return write_page(file.with_suffix(".md"), title, series.command, parts)


def _tables(lines: Runs) -> Iterator[str]:
    for title, (field, names) in TABLES.items():
        scored = arms_of([line for line in lines if field in line], ARMS)
        runs = {arm: of for arm, of in scored.items() if of}
        others = [(LABELS[arm], of, scored[CONTROL]) for arm, of in runs.items() if arm != CONTROL]
        columns = {"n": count, **{name: spread(get(field, name)) for name in names}}
        compared = compare(others, get(field, names[-1]))
        yield f"{title}:"
        yield arms_table(LABELS, runs, columns)
        yield comparisons_table(f"minus {LABELS[CONTROL]}", names[-1], compared)


STUDY = Study(runs_of, write_twin_tables)
