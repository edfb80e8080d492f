"""What a selector adds in parameters and time: the page of what was measured."""

import json
from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.experiments.tables import write_page


def write_overhead_table(file: Path, command: str) -> Path:
    """Write the table of what was measured beside its file; returns its path.

    Raises `ConfigError` where nothing was measured.
    """
    if not file.is_file():
        raise ConfigError(f"{file} is missing: measure first, without --only-table.")
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
    blocks = content.get("selector", {}).get("num_blocks")
    of = f" over {blocks} blocks" if blocks else ""
    said = f"A selector{of} on {machine.get('gpu', machine['processor'])}, {content['runtime']}"
    if counts:
        said += (
            f": {counts['selector']:,} parameters beside {counts['backbone']:,}, "
            f"{counts['share_percent']:.2f} %"
        )
    head = ["texts x tokens", "rounds", "without, ms", "added, %", "quartiles", "of processor, %"]
    name = Path(content.get("backbone", "artifact")).name.rpartition(":")[2]
    parts = [f"{said}.", markdown_table(head, lines)]
    return write_page(file.with_suffix(".md"), f"What the selector adds to {name}", command, parts)
