"""The HTML report of an encoder: its scores beside others', cosines by gold score, fusion weights.

The file loads nothing and runs no script. Every figure has a caption on how to read it and the
command that makes it again. The same encoders and data give the same file.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from s2sent.training.backbones import resolve
from s2sent.training.evaluation.encoders import is_artifact, is_url, open_encoder, open_torch
from s2sent.training.evaluation.geometry import (
    GEOMETRY_FILE,
    BlockWeights,
    block_weights,
    describe_groups,
)
from s2sent.training.evaluation.measure import Measured, Scores, measure
from s2sent.training.evaluation.results.output import require_writable
from s2sent.training.evaluation.results.published import (
    PAPER,
    STS_COLUMNS,
    best_sts_rows,
    transfer_rows,
)
from s2sent.training.evaluation.results.use_of_tests import log_test_use
from s2sent.training.evaluation.sts import AVERAGE, TASKS, distinct, read_sentence_pairs
from s2sent.training.evaluation.transfer import TASKS as TRANSFER_TASKS
from s2sent.training.files.record import read_record
from s2sent.training.report.figures import plot_curve, plot_densities, plot_scores, plot_weights
from s2sent.training.report.html import absent, figure, page, section, table

log = logging.getLogger(__name__)


def write_report(
    name: str, data: Path, output: Path, *, beside: Sequence[str] = (), transfer: bool = False
) -> list[Measured]:
    """Measure ``name`` and the encoders ``beside`` it, and write the report to ``output``.

    Raises a `TrainingError` for an encoder or data that cannot be used, and for a file that cannot
    be written.
    """
    require_writable(output)
    names = distinct([name, *beside])
    encoders = {each: open_encoder(each) for each in names}
    for warning in filter(None, map(log_test_use, names)):
        log.warning("%s", warning)
    measured = [measure(n, encode, data, transfer=transfer) for n, encode in encoders.items()]
    command = shlex.join(
        ["s2sent-train", "report", name, "--data", str(data), "--output", str(output)]
        + [part for other in names[1:] for part in ("--beside", other)]
        + (["--transfer"] if transfer else [])
    )
    weights = None
    if has_torch_form(name):
        pairs = read_sentence_pairs(data / "sts" / GEOMETRY_FILE)
        weights = block_weights(open_torch(name), distinct(pairs.first, pairs.second))
    html = render(measured, weights, training_record(name), command)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(html, encoding="utf-8")
    return measured


def has_torch_form(name: str) -> bool:
    """Whether the name is a checkpoint or a backbone, whose fusion weights can be read."""
    return not is_url(name) and not is_artifact(Path(name))


def training_record(name: str) -> dict[str, Any]:
    """The training record of a checkpoint or an artifact; empty where there is none."""
    if is_url(name):
        return {}
    path = Path(resolve(name))
    if is_artifact(path):
        from s2sent.model.artifact.reader import Artifact

        return Artifact.open(path).manifest.training
    return read_record(path)


def render(
    measured: Sequence[Measured],
    weights: BlockWeights | None,
    record: Mapping[str, Any],
    command: str,
) -> str:
    """The HTML page about the first of ``measured``, compared with the others."""
    first = measured[0]
    sections = [
        _sts(measured, command),
        _transfer(measured, command),
        _densities(measured, command),
        _geometry(measured),
        _weights(first.name, weights, command),
        _curve(record, command),
    ]
    return page(first.name, _summary(measured), sections, command)


def _summary(measured: Sequence[Measured]) -> str:
    first, others = measured[0], measured[1:]
    parts = [f"<b>{first.sts[AVERAGE]:.2f}</b> on the seven STS tasks"]
    if first.transfer is not None:
        parts.append(f"<b>{first.transfer[AVERAGE]:.2f}</b> on the seven transfer tasks")
    text = f"{' and '.join(parts)}, on average."
    for other in others:
        text += f" Beside {escape(other.name)}: {_signed(first.sts[AVERAGE] - other.sts[AVERAGE])}"
        if first.transfer is not None and other.transfer is not None:
            text += f" and {_signed(first.transfer[AVERAGE] - other.transfer[AVERAGE])}"
        text += "."
    return text


def _sts(measured: Sequence[Measured], command: str) -> str:
    rows = {m.name: m.sts for m in measured}
    paper = {
        name: dict(zip(STS_COLUMNS, values, strict=True))
        for name, values in best_sts_rows().items()
    }
    columns = [*TASKS, AVERAGE]
    return section(
        "Semantic textual similarity",
        _score_table(columns, rows, paper),
        "Spearman's correlation × 100 of cosine and people's scores, all subsets of a year ranked "
        "together. Differences are to the first row. The paper's rows are printed numbers of "
        "models on another backbone and corpus, and it prints three of the columns: compare the "
        "gain within a pair of its rows with the gain here, never the scores.",
        figure(
            plot_scores(_tasks_only(rows), "Spearman × 100"),
            "A dot is one encoder's score on one task; higher is better. Encoders are side by "
            "side over their task, so a gain that holds everywhere is the same step at every task.",
            command,
        ),
    )


def _transfer(measured: Sequence[Measured], command: str) -> str:
    rows = {m.name: m.transfer for m in measured if m.transfer is not None}
    columns = [*TRANSFER_TASKS, AVERAGE]
    if not rows:
        return section("Transfer", absent("Not measured: add --transfer."))
    paper = {
        name: dict(zip(columns, values, strict=True)) for name, values in transfer_rows().items()
    }
    return section(
        "Transfer",
        _score_table(columns, rows, paper),
        "Accuracy × 100 of logistic regression on frozen embeddings. The paper's rows are printed "
        "numbers of another backbone, by SentEval's own classifier on more of SST2.",
        figure(
            plot_scores(_tasks_only(rows), "accuracy × 100"),
            "A dot is one encoder's accuracy on one task; higher is better.",
            command,
        ),
    )


def _densities(measured: Sequence[Measured], command: str) -> str:
    described = {m.name: describe_groups(m.groups) for m in measured}
    head = ["gold score", "pairs", "mean", "sd", "5 %", "95 %", "overlap with the next"]
    body = []
    for name, numbers in described.items():
        overlaps = [f"{value:.3f}" for value in numbers["overlap"].values()] + [""]
        body.append([f"{name}: spread of the means {numbers['spread']:.3f}"])
        for (group, of), overlap in zip(numbers["groups"].items(), overlaps, strict=True):
            values = [f"{of[key]:.3f}" for key in ("mean", "sd", "p5", "p95")]
            body.append([group, str(of["pairs"]), *values, overlap])
    return section(
        "Cosine by gold score",
        figure(
            plot_densities({m.name: m.groups for m in measured}),
            "How often each cosine occurs among the pairs of STS-B test, one hill for each group "
            "of gold score, the least similar at the bottom; a tick marks the mean. Good: hills "
            "far apart, rising to the right, that hardly share a cosine.",
            command,
        ),
        table(head, body),
    )


def _geometry(measured: Sequence[Measured]) -> str:
    names = list(measured[0].geometry)
    head = ["", *(name.replace("_", " ") for name in names)]
    body = [[m.name, *(f"{m.geometry[name]:.4f}" for name in names)] for m in measured]
    return section(
        "Alignment and uniformity",
        table(head, body),
        "On STS-B test. Alignment is the mean squared distance of the pairs with a gold score "
        "above 4; uniformity is the logarithm of the mean of exp(−2 · squared distance) over all "
        "pairs of different sentences. Lower is better for each; pushing one down often pushes the "
        "other up, which the two ratios show.",
    )


def _weights(name: str, weights: BlockWeights | None, command: str) -> str:
    title = "Fusion weights"
    if weights is None:
        why = (
            f"{name} has no selector."
            if has_torch_form(name)
            else "An artifact or a service does not show its weights: report its checkpoint."
        )
        return section(title, absent(why))
    rows = zip(weights.blocks, weights.mean, weights.spread, strict=True)
    body = [
        [f"block {block}", *(f"{v:.4f}" for v in (row.mean(), row.min(), row.max(), spread))]
        for block, row, spread in rows
    ]
    return section(
        title,
        figure(
            plot_weights(weights),
            "Left: the weight that each feature (across) takes from each block (down), as a mean "
            "over the sentences of STS-B test. Right: the same weights, counted; the dotted line "
            "is the plain average of the blocks. A block far from the line is preferred or "
            "avoided; a wide hill means that features differ in the block they take.",
            command,
        ),
        table(["", "mean weight", "least feature", "greatest feature", "sd by sentence"], body),
        "The last column is how much a weight moves from sentence to sentence, averaged over "
        "features: 0 would be a fixed mix that does not depend on what is read.",
    )


def _curve(record: Mapping[str, Any], command: str) -> str:
    dev = record.get("dev")
    curve = dev.get("curve") if isinstance(dev, dict) else None
    if not dev or not curve:
        return section("Dev curve", absent("No training record has one."))
    points = [(float(step), float(value)) for step, value in curve if value is not None]
    if not points:
        return section("Dev curve", absent("No step had a finite score."))
    step, score = dev.get("step"), dev.get("score")
    kept = None if step is None or score is None else (float(step), float(score))
    dot = "" if kept is None else " The red dot is the step that was kept."
    return section(
        "Dev curve",
        figure(
            plot_curve(points, kept),
            f"{dev.get('task', 'Spearman × 100 on STS-B dev')}, while it was trained.{dot} A curve "
            "that still rises at its end was stopped early.",
            command,
        ),
    )


def _tasks_only(rows: Mapping[str, Scores]) -> dict[str, Scores]:
    return {
        name: {task: value for task, value in scores.items() if task != AVERAGE}
        for name, scores in rows.items()
    }


def _score_table(
    columns: Sequence[str], rows: Mapping[str, Scores], paper: Mapping[str, Scores]
) -> str:
    """Scores by encoder, the differences to the first under each other one, then the paper's."""
    body = []
    first = next(iter(rows.values()))
    for name, scores in rows.items():
        body.append([name, *(f"{scores[column]:.2f}" for column in columns)])
        if scores is not first:
            body.append(
                ["· first row minus this", *(_signed(first[c] - scores[c]) for c in columns)]
            )
    body.append([f"Printed in {PAPER}: another backbone"])
    for name, scores in paper.items():
        body.append([name, *(f"{scores[c]:.2f}" if c in scores else "–" for c in columns)])
    return table(["", *columns], body)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
