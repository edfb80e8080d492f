"""The latency that a selector adds: measured once a backbone, and its section of the tables."""

import json
import logging
from pathlib import Path
from statistics import median

from s2sent.training.backbones import resolve
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.overhead.measurement import measure_torch
from s2sent.training.evaluation.overhead.rounds import Protocol
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.experiments.arms.configurations import BUDGETS, S2SENT, misfit
from s2sent.training.experiments.engine import Series, size_of
from s2sent.training.files.record import write_json

log = logging.getLogger(__name__)

OVERHEAD_FILE = "overhead.json"  # in the folder of a backbone's results


def measure_latency(series: Series, *, required: bool) -> None:
    """Measure what a selector of three blocks adds on the backbone, unless it has been measured.

    A backbone with too few blocks is left out, or where it is ``required`` raises `ConfigError`;
    what is no backbone raises `EncoderError`.
    """
    import torch  # takes seconds to import, and tables are built without it

    file = series.folder / OVERHEAD_FILE
    if file.exists():
        log.info("latency has been measured: %s", file)
        return
    blocks, width = size_of(resolve(series.backbone))
    if reason := misfit(S2SENT, blocks=blocks, width=width):
        if required:
            raise ConfigError(f"Latency of {series.backbone} cannot be measured: {reason}.")
        log.info("left out: latency, as %s", reason)
        return
    protocol = Protocol(
        **BUDGETS[series.budget].latency, device="cuda" if torch.cuda.is_available() else "cpu"
    )
    write_json(file, measure_torch(series.backbone, S2SENT.selector or {}, protocol))


def latency_section(folder: Path) -> list[str]:
    """Markdown about the parameters and the time that a selector adds; empty if not measured."""
    file = folder / OVERHEAD_FILE
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    lines = []
    for cell in content["cells"]:
        added = cell["selector"]
        reach = f"{added['lower_quartile_percent']:+.2f} to {added['upper_quartile_percent']:+.2f}"
        processor = added["processor_median_percent"]
        lines.append(
            [
                f"{cell['precision']}, {cell['batch_size']} x {cell['length']}",
                str(cell["rounds"]),
                f"{cell['median_ms']['plain']:.1f}",
                f"{added['median_percent']:+.2f}",
                reach,
                "" if processor is None else f"{processor:+.2f}",
            ]
        )
    machine, counts = content["machine"], content.get("parameters")
    said = f"Last3 2D on {machine.get('gpu', machine['processor'])}, {content['runtime']}"
    if counts:
        said += (
            f": {counts['selector']:,} parameters beside {counts['backbone']:,}, "
            f"{counts['share_percent']:.2f} %"
        )
    head = ["texts x tokens", "rounds", "without, ms", "added, %", "quartiles", "of processor, %"]
    return ["## What the selector adds", f"{said}.", markdown_table(head, lines)]


def read_overhead(folder: Path) -> dict[str, float | None]:
    """The measured shares of parameters and of time in percent; empty if not measured.

    Of time: the median over cells of the median and of both quartiles over rounds.
    """
    file = folder / OVERHEAD_FILE
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    added = [cell["selector"] for cell in content["cells"]]
    counts = content.get("parameters", {})  # not counted in exported artifacts
    return {
        "parameters": counts.get("share_percent"),
        "latency": median(cell["median_percent"] for cell in added),
        "latency_lower": median(cell["lower_quartile_percent"] for cell in added),
        "latency_upper": median(cell["upper_quartile_percent"] for cell in added),
    }
