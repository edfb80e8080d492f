"""Scores an encoder at each depth and width, times an artifact there, and makes their tables."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from s2sent.model.artifact.writer import record_by_depth
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.errors import EncoderError
from s2sent.training.evaluation.depths.encoders import (
    DepthEncoders,
    artifact_depths,
    open_artifact,
    open_depths,
)
from s2sent.training.evaluation.development import score_development
from s2sent.training.evaluation.encoders import is_artifact
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.use_of_tests import log_test_use
from s2sent.training.evaluation.sts import (
    DEV_FILE,
    Encode,
    average,
    each_role,
    read_sentence_pairs,
    score,
)

DIMENSIONS = (32, 64, 128, 256)  # and all of them
TIMED_TEXTS, TIMED_ROUNDS = 64, 7

Show = Callable[[str], None]
Grid = dict[int, dict[int, float]]  # a score by depth and dimensions
ByDepth = dict[str, dict[str, Any]]  # `model.artifact.manifest.Manifest.by_depth`


def evaluate_by_depth(
    path: Path,
    data: Path,
    show: Show,
    *,
    dev_only: bool = False,
    retrieval: Path | None = None,
    record: bool = False,
) -> None:
    """Score the artifact at ``path`` at each depth and width, and ``show`` the tables.

    These are the average of the STS tasks with the time of each depth, which ``record`` writes into
    the manifest; with ``dev_only`` each development score, of an artifact or of a checkpoint with
    exits, and no test is opened. Raises `ArtifactError`, and a `TrainingError` for data that cannot
    be used, an encoder without depths, or a checkpoint without ``dev_only``.
    """
    if dev_only:
        score_dev = partial(score_development, folder=data / "sts", retrieval=retrieval)
        for name, grid in score_grid(open_depths(path), score_dev).items():
            show(f"\n{name}\n\n{_table(grid)}")
        return
    if not is_artifact(path):
        raise EncoderError(
            f"{path} is no artifact, which alone has times and is scored on the tests: export it "
            "with --depths, or score a checkpoint with --dev-only or --pairs."
        )
    encoder = open_artifact(path)
    warning = log_test_use(str(path))

    def score_tests(encode: Encode) -> dict[str, float]:
        return {"average": average(score(encode, data / "sts"))}

    grid = score_grid(artifact_depths(encoder), score_tests)["average"]
    texts = read_sentence_pairs(data / "sts" / DEV_FILE).first[:TIMED_TEXTS]
    by_depth = describe(grid, time_shares(encoder, texts))
    show(by_depth_table(by_depth))
    if warning:
        show(f"\n{warning}")
    if record:
        record_by_depth(encoder.artifact, by_depth, opened=datetime.now(UTC).date().isoformat())


def score_grid(
    encoders: DepthEncoders, score_encoder: Callable[[Encode], dict[str, float]]
) -> dict[str, Grid]:
    """Each score of an encoder by depth and dimensions."""
    widths = [*(each for each in DIMENSIONS if each < encoders.width), encoders.width]
    found: dict[str, Grid] = {}
    for depth, whole in encoders.at.items():
        for width in widths:
            for name, value in score_encoder(_cut(whole, width)).items():
                found.setdefault(name, {}).setdefault(depth, {})[width] = value
    return found


def time_shares(encoder: OnnxEncoder, texts: Sequence[str]) -> dict[int, float]:
    """By depth, the time of one text at a time as a share of full depth's, the median of rounds.

    The depths take turns, text by text, so that what else the machine does falls on all of them.
    """
    manifest = encoder.artifact.manifest
    rows = [row.input_ids for row in encoder.tokenizer.tokenize(texts)]
    rounds = [_seconds(encoder, rows) for _ in range(TIMED_ROUNDS + 1)][1:]  # the first warms up
    full = manifest.all_depths[-1]
    return {
        depth: median(seconds[depth] / seconds[full] for seconds in rounds)
        for depth in manifest.all_depths
    }


def describe(grid: Grid, shares: Mapping[int, float]) -> ByDepth:
    """What the manifest says of each depth, rounded to two digits."""
    return {
        str(depth): {
            "time": round(shares[depth], 2),
            "scores": {str(width): round(value, 2) for width, value in scores.items()},
        }
        for depth, scores in grid.items()
    }


def by_depth_table(by_depth: Mapping[str, Any]) -> str:
    """A manifest's ``by_depth`` as a Markdown table, a row a depth; empty where there is none."""
    if not by_depth:
        return ""
    depths = sorted(by_depth, key=int)
    widths = sorted(by_depth[depths[-1]]["scores"], key=int)
    head = ["blocks run", "time of a text", *(f"{width} dimensions" for width in widths)]
    rows = [
        [f"{depth} of {depths[-1]}", f"{by_depth[depth]['time']:.2f}"]
        + [f"{by_depth[depth]['scores'][width]:.2f}" for width in widths]
        for depth in depths
    ]
    return markdown_table(head, rows)


def _table(grid: Grid) -> str:
    widths = [*next(iter(grid.values()))]
    rows = [[str(depth), *(f"{grid[depth][width]:.2f}" for width in widths)] for depth in grid]
    return markdown_table(["depth", *map(str, widths)], rows)


def _cut(encode: Encode, width: int) -> Encode:
    def first_components(of_role: Encode) -> Encode:
        return lambda texts: of_role(texts)[:, :width]

    return each_role(encode, first_components)


def _seconds(encoder: OnnxEncoder, rows: Sequence[Sequence[int]]) -> dict[int, float]:
    manifest = encoder.artifact.manifest
    seconds = dict.fromkeys(manifest.all_depths, 0.0)
    for row in rows:
        for depth in seconds:
            started = time.perf_counter()
            encoder.run([row], depth=None if depth == manifest.full_depth else depth)
            seconds[depth] += time.perf_counter() - started
    return seconds
