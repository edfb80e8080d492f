"""One HTML file about an encoder: its scores beside others', how its cosines lie, what it weighs.

The file holds everything it shows: no scripts, nothing that is fetched, and it reads on light and
dark. Under every figure stand how to read it and the command that makes it again. The same
encoders and data give the same file.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from training.backbones import resolve
from training.evaluation.encoders import is_artifact, is_url, open_encoder, open_torch
from training.evaluation.figures import plot_curve, plot_densities, plot_scores, plot_weights
from training.evaluation.geometry import (
    GEOMETRY_FILE,
    BlockWeights,
    Group,
    block_weights,
    describe_groups,
    geometry,
    groups_by_gold,
)
from training.evaluation.sts import (
    AVERAGE,
    TASKS,
    Encode,
    Remembered,
    distinct,
    read_sentence_pairs,
    score,
    with_average,
)
from training.evaluation.transfer import TASKS as TRANSFER_TASKS
from training.evaluation.transfer import score_transfer
from training.record import read_record

PAPER = "arXiv 2508.18164"
# Its tables 2 and 4: another backbone and corpus; of STS it prints these three columns only.
PAPER_STS = {
    "SimCSE-BERT base": (76.88, 72.19, 76.21),
    "SimCSE-BERT base, S2Sent": (79.54, 73.18, 78.50),
    "SimCSE-RoBERTa base": (80.32, 68.51, 76.46),
    "SimCSE-RoBERTa base, S2Sent": (82.41, 70.89, 78.48),
    "PromptBERT base": (81.70, 69.57, 78.11),
    "PromptBERT base, S2Sent": (83.41, 71.15, 80.98),
    "PromptRoBERTa base": (81.81, 69.74, 79.02),
    "PromptRoBERTa base, S2Sent": (83.67, 71.57, 81.25),
}
PAPER_STS_COLUMNS = ("STS-B", "SICK-R", AVERAGE)
PAPER_TRANSFER = {
    "SimCSE-BERT base": (81.01, 86.19, 94.45, 89.28, 85.10, 89.40, 74.51, 85.71),
    "SimCSE-BERT base, S2Sent": (80.95, 86.79, 95.12, 89.97, 86.12, 89.97, 74.98, 86.27),
    "SimCSE-RoBERTa base": (81.15, 87.14, 93.29, 86.14, 86.50, 84.43, 73.28, 84.56),
    "SimCSE-RoBERTa base, S2Sent": (82.01, 87.89, 93.96, 85.91, 86.94, 85.23, 74.02, 85.14),
    "PromptBERT base": (80.69, 85.89, 93.81, 89.87, 84.89, 88.48, 76.28, 85.70),
    "PromptBERT base, S2Sent": (81.45, 86.64, 93.91, 89.91, 84.77, 89.52, 76.99, 86.17),
    "PromptRoBERTa base": (83.72, 88.59, 93.37, 90.40, 88.10, 90.01, 76.27, 87.21),
    "PromptRoBERTa base, S2Sent": (83.44, 88.90, 93.01, 90.77, 88.64, 90.08, 76.43, 87.32),
}

Scores = dict[str, float]  # task, and the average of the tasks, to score


@dataclass(frozen=True)
class Measured:
    """Everything that is measured of one encoder; ``transfer`` only where it was asked for."""

    name: str
    sts: Scores
    geometry: dict[str, float]
    groups: list[Group]
    transfer: Scores | None = None

    def numbers(self) -> dict[str, Any]:
        """All of it for JSON, unrounded."""
        transfer = {} if self.transfer is None else {"transfer": self.transfer}
        return {
            "name": self.name,
            "sts": self.sts,
            **transfer,
            "geometry": self.geometry,
            "cosine_by_gold": describe_groups(self.groups),
        }


def measure(name: str, encode: Encode, data: Path, *, transfer: bool = False) -> Measured:
    """Measure an encoder on the data folder; every text is embedded once."""
    encode = Remembered(encode)
    return Measured(
        name=name,
        sts=with_average(score(encode, data / "sts")),
        geometry=geometry(encode, data / "sts"),
        groups=groups_by_gold(encode, data / "sts"),
        transfer=with_average(score_transfer(encode, data / "transfer")) if transfer else None,
    )


def write_report(
    name: str, data: Path, output: Path, *, beside: Sequence[str] = (), transfer: bool = False
) -> list[Measured]:
    """Measure ``name`` and the encoders ``beside`` it, and write the report to ``output``.

    Raises a `TrainingError` for an encoder or data that cannot be used.
    """
    names = distinct([name, *beside])
    measured = [measure(n, open_encoder(n), data, transfer=transfer) for n in names]
    command = shlex.join(
        ["s2sent-train", "report", name, "--data", str(data), "--output", str(output)]
        + [part for other in names[1:] for part in ("--beside", other)]
        + (["--transfer"] if transfer else [])
    )
    weights = None
    if has_torch_form(name):
        pairs = read_sentence_pairs(data / "sts" / GEOMETRY_FILE)
        weights = block_weights(open_torch(name), distinct(pairs.first, pairs.second))
    page = render(measured, weights, training_record(name), command)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")
    return measured


def has_torch_form(name: str) -> bool:
    """Whether the name leads to something whose blocks can be looked into."""
    return not is_url(name) and not is_artifact(Path(resolve(name)))


def training_record(name: str) -> dict[str, Any]:
    """How a checkpoint or an artifact was trained; empty where nothing says so."""
    if is_url(name):
        return {}
    path = Path(resolve(name))
    if is_artifact(path):
        from model.artifact.reader import Artifact

        return Artifact.open(path).manifest.training
    return read_record(path)


def render(
    measured: Sequence[Measured],
    weights: BlockWeights | None,
    record: Mapping[str, Any],
    command: str,
) -> str:
    """The whole page; the first of ``measured`` is what it is about."""
    first = measured[0]
    sections = [
        _sts(measured, command),
        _transfer(measured, command),
        _densities(measured, command),
        _geometry(measured),
        _weights(first.name, weights, command),
        _curve(record, command),
    ]
    return PAGE.format(
        title=escape(first.name),
        summary=_summary(measured),
        sections="\n".join(sections),
        command=escape(command),
    )


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
        name: dict(zip(PAPER_STS_COLUMNS, values, strict=True))
        for name, values in PAPER_STS.items()
    }
    columns = [*TASKS, AVERAGE]
    return _section(
        "Semantic textual similarity",
        _score_table(columns, rows, paper),
        "Spearman's correlation × 100 of cosine and people's scores, all subsets of a year ranked "
        "together. Differences are to the first row. The paper's rows are printed numbers of "
        "models on another backbone and corpus, and it prints three of the columns: compare the "
        "gain within a pair of its rows with the gain here, never the scores.",
        _figure(
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
        return _section("Transfer", _absent("Not measured: add --transfer."))
    paper = {
        name: dict(zip(columns, values, strict=True)) for name, values in PAPER_TRANSFER.items()
    }
    return _section(
        "Transfer",
        _score_table(columns, rows, paper),
        "Accuracy × 100 of logistic regression on frozen embeddings. The paper's rows are printed "
        "numbers of another backbone, by SentEval's own classifier on more of SST2.",
        _figure(
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
    return _section(
        "Cosine by gold score",
        _figure(
            plot_densities({m.name: m.groups for m in measured}),
            "How often each cosine occurs among the pairs of STS-B test, one hill for each group "
            "of gold score, the least similar at the bottom; a tick marks the mean. Good: hills "
            "far apart, rising to the right, that hardly share a cosine.",
            command,
        ),
        _table(head, body),
    )


def _geometry(measured: Sequence[Measured]) -> str:
    names = list(measured[0].geometry)
    head = ["", *(name.replace("_", " ") for name in names)]
    body = [[m.name, *(f"{m.geometry[name]:.4f}" for name in names)] for m in measured]
    return _section(
        "Alignment and uniformity",
        _table(head, body),
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
        return _section(title, _absent(why))
    rows = zip(weights.blocks, weights.mean, weights.spread, strict=True)
    body = [
        [f"block {block}", *(f"{v:.4f}" for v in (row.mean(), row.min(), row.max(), spread))]
        for block, row, spread in rows
    ]
    return _section(
        title,
        _figure(
            plot_weights(weights),
            "Left: the weight that each feature (across) takes from each block (down), as a mean "
            "over the sentences of STS-B test. Right: the same weights, counted; the dotted line "
            "is the plain average of the blocks. A block far from the line is preferred or "
            "avoided; a wide hill means that features differ in the block they take.",
            command,
        ),
        _table(["", "mean weight", "least feature", "greatest feature", "sd by sentence"], body),
        "The last column is how much a weight moves from sentence to sentence, averaged over "
        "features: 0 would be a fixed mix that does not depend on what is read.",
    )


def _curve(record: Mapping[str, Any], command: str) -> str:
    dev = record.get("dev")
    curve = dev.get("curve") if isinstance(dev, dict) else None
    if not curve:
        return _section("Dev curve", _absent("No training record tells of one."))
    points = [(float(step), float(value)) for step, value in curve]
    best = max(points, key=lambda point: point[1])
    return _section(
        "Dev curve",
        _figure(
            plot_curve(points, best),
            "Spearman × 100 on STS-B dev while it was trained; the red dot is the best, which is "
            "the step that was kept. A curve that still rises at its end was stopped early.",
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
    return _table(["", *columns], body)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Rows of cells; a row of one cell is a heading across the table."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in body:
        if len(row) == 1:
            lines.append(f'<tr><th class="across" colspan="{len(head)}">{escape(row[0])}</th></tr>')
            continue
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        kind = ' class="difference"' if row[0].startswith("·") else ""
        lines.append(f"<tr{kind}><th>{escape(row[0])}</th>{cells}</tr>")
    return '<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _figure(svg: str, reading: str, command: str) -> str:
    return (
        f"<figure>{svg}<figcaption>{escape(reading)}"
        f"<br><code>{escape(command)}</code></figcaption></figure>"
    )


def _section(title: str, *parts: str) -> str:
    """A heading and its parts; one that is no element yet becomes a paragraph."""
    content = "\n".join(
        part if part.startswith("<") else f"<p>{escape(part)}</p>" for part in parts
    )
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>"


def _absent(why: str) -> str:
    return f'<p class="absent">{escape(why)}</p>'


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>S2Sent report: {title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2024; --page: #fff; --faint: #6a7178; --line: #d9dde1;
  --stripe: #f4f6f8; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e3e6e9; --page: #16191c; --faint: #9aa2aa; --line: #343a40; --stripe: #1e2226; }}
}}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink);
  background: var(--page); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere; }}
h2 {{ margin-top: 3rem; font-size: 1.2rem; border-bottom: 1px solid var(--line); }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  width: 100%; }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }}
th:first-child {{ text-align: left; font-weight: normal; white-space: normal;
  overflow-wrap: anywhere; }}
tr:first-child th {{ font-weight: 600; }}
th.across {{ background: var(--stripe); color: var(--faint); padding-top: .5rem; }}
.difference, .absent, figcaption {{ color: var(--faint); }}
figure {{ margin: 1.5rem 0; }}
figcaption {{ font-size: .9rem; }}
svg {{ width: 100%; height: auto; }}
svg text {{ font-family: system-ui, sans-serif !important; }}
code {{ font-size: .8rem; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
{sections}
<section>
<h2>This file</h2>
<p>Made by <code>{command}</code></p>
</section>
</body>
</html>
"""
