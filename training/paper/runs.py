"""Runs experiments: one JSON file for each configuration and seed, in a folder that can be shared.

    <output>/<backbone>/<objective>/<configuration>.seed<seed>.json         what was found
                                                              .lock         being run, by which pid
                                                              .checkpoint   until it is scored
    <output>/<backbone>/overhead.json        what the selector adds in parameters and latency

A run that has its file is skipped, so an interrupted series goes on when its command is given
again. Several processes may work on one folder: each run is claimed with a lock on its lock file,
which the system releases when the process that holds it is gone.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from training.errors import ConfigError, Interrupted
from training.paper.experiments import BUDGETS, S2SENT, Configuration, Experiment, misfit
from training.recipe import Recipe, recipe_from
from training.record import commit, read_record

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from training.evaluation.sts import Encode

log = logging.getLogger(__name__)

VERSIONS = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")
DRIFT_SENTENCES = 64
SHUFFLED_TASK = "STS-B"
SEED_OF_SHUFFLE = 0
OVERHEAD_FILE = "overhead.json"


class Train(Protocol):
    """`training.train.train`, or what stands in for it: leaves a checkpoint and its record."""

    def __call__(self, recipe: Recipe, data: Path, output: Path, *, resume: bool) -> Any: ...


class Measure(Protocol):
    """`measure`, or what stands in for it."""

    def __call__(self, checkpoint: Path, data: Path, *, transfer: bool) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Series:
    """What one command runs: cells of experiments on one backbone, under one budget."""

    data: Path
    output: Path
    backbone: str
    budget: str = "short"
    objectives: tuple[str, ...] = ("simcse",)
    seeds: tuple[int, ...] = ()  # none given: the budget's
    steps: int | None = None  # none given: the budget's
    corpus: str = "wikisplit"
    keep: bool = False  # the checkpoints too

    @property
    def folder(self) -> Path:
        """Where the results of the backbone are."""
        return self.output / backbone_name(self.backbone)

    def recipe(self, configuration: Configuration, objective: str, seed: int) -> Recipe:
        """The recipe of a cell."""
        return configuration.recipe(
            objective=objective,
            backbone=self.backbone,
            budget=self.budget,
            seed=seed,
            steps=self.steps,
            corpus=self.corpus,
        )


@dataclass(frozen=True)
class Cell:
    """One run: a recipe, and the file that its result goes to."""

    configuration: str
    objective: str
    recipe: Recipe
    transfer: bool
    file: Path

    @property
    def checkpoint(self) -> Path:
        """The folder of the trained encoder."""
        return self.file.with_suffix(".checkpoint")

    @property
    def name(self) -> str:
        """How the cell is called in messages."""
        return f"{self.objective} {self.configuration} seed {self.recipe.seed}"


def backbone_name(backbone: str) -> str:
    """A backbone's name as a folder's: the end of its path, without ``pypi:``."""
    return Path(backbone).name.rpartition(":")[2]


def cells(experiments: Sequence[Experiment], series: Series) -> tuple[list[Cell], dict[str, str]]:
    """The runs of experiments, each once, a whole seed before the next; and what is left out.

    What is left out is given by name, with the reason. Raises `ConfigError` where none is left.
    """
    from training.backbones import resolve

    blocks, width = size_of(resolve(series.backbone))
    found: dict[Path, Cell] = {}
    left_out: dict[str, str] = {}
    for seed in series.seeds or BUDGETS[series.budget].seeds:
        for experiment in experiments:
            for objective in series.objectives:
                if objective not in experiment.objectives:
                    left_out[f"{experiment.key} with {objective}"] = "the paper has no such rows"
                    continue
                for name, configuration in experiment.configurations.items():
                    if reason := misfit(configuration, blocks=blocks, width=width):
                        left_out[name] = reason
                        continue
                    file = series.folder / objective / f"{name}.seed{seed}.json"
                    recipe = series.recipe(configuration, objective, seed)
                    transfer = experiment.transfer or (file in found and found[file].transfer)
                    found[file] = Cell(name, objective, recipe, transfer, file)
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"Nothing is left to run on {series.backbone} ({reasons}): ask for more.")
    return list(found.values()), left_out


def size_of(backbone: str) -> tuple[int, int]:
    """How many blocks a backbone has, and how wide it is. Raises `EncoderError`."""
    from transformers import AutoConfig

    from training.backbones import width_of

    width = width_of(backbone)
    return int(AutoConfig.from_pretrained(backbone).num_hidden_layers), width


def run(
    experiments: Sequence[Experiment],
    series: Series,
    *,
    train: Train | None = None,
    measure: Measure | None = None,
) -> None:
    """Run what has no result yet. Raises a `TrainingError` for a result of another recipe,
    before anything is run, and `Interrupted` when a signal ended a run."""
    todo, left_out = cells(experiments, series)
    for name, reason in left_out.items():
        log.info("left out: %s, as %s", name, reason)
    sha256 = corpus_sha256(series.data, todo)
    for cell in todo:
        is_done(cell, sha256[cell.file])
    for number, cell in enumerate(todo, start=1):
        head = f"{number} of {len(todo)}: {cell.name}"
        with claimed(cell.file.with_suffix(".lock")) as owner:
            if owner is not None:
                log.info("%s is being run by process %d", head, owner)
            elif is_done(cell, sha256[cell.file]):
                log.info("%s is there", head)
            else:
                log.info("%s", head)
                result = run_cell(
                    cell, series, train=train or _train, measure=measure or globals()["measure"]
                )
                log.info("%s: average %.2f", head, result["scores"]["average"])


def measure_latency(series: Series, *, required: bool) -> None:
    """Measure what a selector of three blocks adds on the backbone, unless it has been measured.

    A backbone with too few blocks is left out, or where it is ``required`` raises `ConfigError`;
    what is no backbone raises `EncoderError`.
    """
    import torch

    from training.backbones import resolve
    from training.evaluation import overhead

    file = series.folder / OVERHEAD_FILE
    if file.exists():
        log.info("latency is there: %s", file)
        return
    blocks, width = size_of(resolve(series.backbone))
    if reason := misfit(S2SENT, blocks=blocks, width=width):
        if required:
            raise ConfigError(f"Latency of {series.backbone} cannot be measured: {reason}.")
        log.info("left out: latency, as %s", reason)
        return
    protocol = overhead.Protocol(
        **BUDGETS[series.budget].latency, device="cuda" if torch.cuda.is_available() else "cpu"
    )
    write_json(file, overhead.measure_torch(series.backbone, S2SENT.selector or {}, protocol))


def corpus_sha256(data: Path, todo: Sequence[Cell]) -> dict[Path, str]:
    """The hash of the corpus that each cell trains on, each corpus being read once."""
    from training.corpus import read_corpus

    known: dict[Any, str] = {}
    for cell in todo:
        key = (tuple(cell.recipe.corpus), cell.recipe.objective.rows)
        if key not in known:
            known[key] = read_corpus(data / "corpus", key[0], kind=key[1]).sha256
    return {
        cell.file: known[tuple(cell.recipe.corpus), cell.recipe.objective.rows] for cell in todo
    }


def is_done(cell: Cell, sha256: str) -> bool:
    """Whether a cell has its result. Raises `ConfigError` where its file holds another recipe's."""
    if not cell.file.is_file():
        return False
    result = read_result(cell.file)
    if recipe_from(result["recipe"], str(cell.file)) != cell.recipe:
        raise ConfigError(
            f"{cell.file} holds another recipe than {cell.name} has now "
            f"({difference(result['recipe'], cell.recipe.as_table())}): "
            "name another --output, or delete it."
        )
    if result["corpus_sha256"] != sha256:
        raise ConfigError(
            f"{cell.file} was trained on the corpus {result['corpus_sha256'][:12]}, and "
            f"{cell.name} would be on {sha256[:12]}: name another --output, or delete it."
        )
    return not cell.transfer or "transfer" in result


def read_result(file: Path) -> dict[str, Any]:
    """A result's content. Raises `ConfigError` for a file that is none."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if {"recipe", "corpus_sha256", "scores"} <= set(content):
            return content
    except (OSError, ValueError):
        pass
    raise ConfigError(f"{file} is no result of a run: delete it.")


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Where two recipes differ, as ``key = value against value``."""
    a, b = dict(_flat(first)), dict(_flat(second))
    differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    return ", ".join(f"{key} = {a.get(key)} against {b.get(key)}" for key in differing)


def _flat(table: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{head}{key}.")
        else:
            yield head + key, value


@contextmanager
def claimed(lock: Path) -> Iterator[int | None]:
    """Hold a run for this process within the block; gives the pid of another that holds it."""
    descriptor = _lock(lock)
    if descriptor is None:
        yield int(lock.read_text() or 0) if lock.exists() else 0
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield None
    finally:
        lock.unlink()
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """The descriptor of a lock file that is now this process's; None where it is another's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its last owner deleted the file meanwhile


def run_cell(cell: Cell, series: Series, *, train: Train, measure: Measure) -> dict[str, Any]:
    """Train a cell, or go on where it was interrupted, score it, and write its result."""
    checkpoint, seconds = cell.checkpoint, None
    partial = checkpoint.with_name(checkpoint.name + ".partial")
    if not checkpoint.exists():
        again = "Interrupted: give the same command again to go on."
        try:
            outcome = train(cell.recipe, series.data, checkpoint, resume=partial.exists())
        except Interrupted as error:
            raise Interrupted(again) from error
        if outcome.stopped:
            raise Interrupted(again)
        seconds = outcome.seconds
    record = read_record(checkpoint)
    if "recipe" not in record or recipe_from(record["recipe"], str(checkpoint)) != cell.recipe:
        raise ConfigError(f"{checkpoint} is of another recipe than {cell.name}: delete it.")
    result = {
        "configuration": cell.configuration,
        "objective": cell.objective,
        "seed": cell.recipe.seed,
        "recipe": cell.recipe.as_table(),
        "corpus_sha256": record["corpus"]["sha256"],
        "dev": record["dev"]["score"],
        "step": record["dev"]["step"],
        "curve": record["dev"]["curve"],
        "mean_block_weights": record.get("mean_block_weights"),
        "seconds": seconds,  # none where training had ended before an interruption
        **measure(checkpoint, series.data, transfer=cell.transfer),
        "versions": {name: version(name) for name in VERSIONS},
        "commit": commit(Path(__file__).parents[2]),
    }
    write_json(cell.file, result)
    if not series.keep:
        shutil.rmtree(checkpoint)
    return result


def write_json(file: Path, content: Any) -> None:
    """Write a file that is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    scratch.replace(file)


def _train(recipe: Recipe, data: Path, output: Path, *, resume: bool) -> Any:
    from training.train import train

    return train(recipe, data, output, resume=resume)


def measure(checkpoint: Path, data: Path, *, transfer: bool) -> dict[str, Any]:
    """All that is told of a checkpoint: scores, geometry, weights, drift, parameters."""
    from training.evaluation import geometry
    from training.evaluation.encoders import load_checkpoint, torch_encode
    from training.evaluation.sts import Remembered, average, distinct, read_sentence_pairs, score

    encoder = load_checkpoint(checkpoint)
    encode = Remembered(torch_encode(encoder))
    sts = data / "sts"
    scores = score(encode, sts)
    pairs = read_sentence_pairs(sts / geometry.GEOMETRY_FILE)
    sentences = distinct(pairs.first, pairs.second)
    groups = geometry.groups_by_gold(encode, sts)
    found: dict[str, Any] = {
        "scores": {**scores, "average": average(scores)},
        "geometry": geometry.geometry(encode, sts),
        "by_gold": geometry.describe_groups(groups),
        "cosines": {group.name: np.round(group.cosines, 4).tolist() for group in groups},
        "parameters": parameters(encoder),
        "drift": drift(torch_encode(encoder), sentences[:DRIFT_SENTENCES]),
    }
    if (weights := geometry.block_weights(encoder, sentences)) is not None:
        found["weights"] = {
            "blocks": list(weights.blocks),
            "mean": weights.mean.mean(1).tolist(),
            "spread": weights.spread.tolist(),
            "moved": float(abs(weights.mean - 1 / len(weights.blocks)).mean()),
        }
    if (shuffled := shuffled_score(encoder, sts)) is not None:
        found["shuffled"] = shuffled - scores[SHUFFLED_TASK]
    if transfer:
        from training.evaluation.transfer import score_transfer

        accuracy = score_transfer(encode, data / "transfer")
        found["transfer"] = {**accuracy, "average": average(accuracy)}
    return found


def parameters(encoder: "SentenceTransformer") -> dict[str, int]:
    """True counts, biases included, of the backbone and of the selector."""
    from model.network.encoder import find_selector

    parts = {"backbone": encoder[0], "selector": find_selector(encoder)}
    return {
        name: sum(p.numel() for p in part.parameters()) if part is not None else 0
        for name, part in parts.items()
    }


def drift(encode: "Encode", sentences: Sequence[str]) -> float:
    """The largest 1 - cosine between a sentence embedded alone and with the others."""
    from training.evaluation.sts import cosines

    alone = np.concatenate([encode([sentence]) for sentence in sentences])
    return float((1 - cosines(alone, encode(sentences))).max())


def shuffled_score(encoder: "SentenceTransformer", folder: Path) -> float | None:
    """`SHUFFLED_TASK` with the squeeze's tokens in random order; None where order cannot matter."""
    from model.network.encoder import find_selector
    from training.evaluation.encoders import torch_encode
    from training.evaluation.sts import score

    selector = find_selector(encoder)
    squeeze = selector.frequency_selection if selector else None
    if squeeze is None or squeeze.config.num_frequencies == 1:
        return None
    with _shuffled(squeeze):
        return score(torch_encode(encoder), folder, [SHUFFLED_TASK])[SHUFFLED_TASK]


@contextmanager
def _shuffled(squeeze: Any) -> Iterator[None]:
    """Give each valid token the place of another in the squeeze's cosines within the block."""
    import torch

    in_order = squeeze.token_basis
    generator = torch.Generator().manual_seed(SEED_OF_SHUFFLE)

    def token_basis(mask: torch.Tensor) -> torch.Tensor:
        basis: torch.Tensor = in_order(mask)  # [B, F, L]
        padding = 2 * (mask == 0)
        noise = torch.rand(mask.shape, generator=generator).to(mask.device)
        place = padding.argsort(dim=1, stable=True)  # valid tokens first, in order
        source = (noise + padding).argsort(dim=1)  # valid tokens first, in any order
        order = torch.empty_like(place).scatter(1, place, source)
        return basis.gather(2, order[:, None].expand_as(basis))

    squeeze.token_basis = token_basis
    try:
        yield
    finally:
        del squeeze.token_basis
