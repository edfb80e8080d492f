"""The command ``s2sent-train overhead``: what a selector adds in parameters and latency."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from s2sent.training.commands.options import some_whole_numbers

if TYPE_CHECKING:
    from s2sent.training.evaluation.overhead.rounds import Protocol

OnlyTable = Annotated[
    bool, typer.Option("--only-table", help="Only make the table of what was measured.")
]
Backbone = Annotated[str | None, typer.Option(help="Measure in torch, on this backbone's weights.")]
WithSelector = Annotated[
    Path | None, typer.Option(help="Measure exported artifacts: the one with a selector.")
]
Plain = Annotated[Path | None, typer.Option(help="The artifact of the same backbone without one.")]


def overhead(
    output: Annotated[Path, typer.Option(help="JSON file for what was measured.")],
    backbone: Backbone = None,
    artifact: WithSelector = None,
    plain: Plain = None,
    num_blocks: Annotated[int, typer.Option(help="Blocks that the selector weighs.")] = 3,
    batch_sizes: Annotated[str, typer.Option(help="Texts at once.")] = "1,32,128",
    lengths: Annotated[str, typer.Option(help="Tokens of a text.")] = "32,128",
    precisions: Annotated[str, typer.Option(help="In torch: fp32, bf16.")] = "fp32,bf16",
    warm_ups: Annotated[int, typer.Option(help="Rounds that do not count.")] = 20,
    repeats: Annotated[int, typer.Option(help="Rounds that count.")] = 200,
    seconds_per_cell: Annotated[float, typer.Option(help="At most; 0 sets no limit.")] = 0.0,
    threads: Annotated[int, typer.Option(help="Of the CPU; 0 leaves it to the library.")] = 0,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")] = "cpu",
    only_table: OnlyTable = False,
) -> None:
    """Measure what a selector adds: parameters, and latency with and without it in turns.

    The table is written beside the JSON file, and of overhead.json in the folder of a backbone's
    results the experiments say whether the paper's share holds.
    """
    from s2sent.training.evaluation.overhead import measurement
    from s2sent.training.evaluation.overhead.rounds import Protocol
    from s2sent.training.evaluation.results.output import require_writable
    from s2sent.training.experiments.overhead import write_overhead_table
    from s2sent.training.files.record import write_json

    require_writable(output)
    command = shlex.join(["overhead", "--output", str(output), "--only-table"])
    if only_table:
        typer.echo(write_overhead_table(output, command))
        return
    protocol = Protocol(
        batch_sizes=tuple(some_whole_numbers(batch_sizes, "batch sizes")),
        lengths=tuple(some_whole_numbers(lengths, "lengths")),
        precisions=tuple(part.strip() for part in precisions.split(",")),
        warm_ups=warm_ups,
        repeats=repeats,
        seconds_per_cell=seconds_per_cell,
        threads=threads,
        device=device,
    )
    found = _measured(backbone, artifact, plain, num_blocks, protocol)
    write_json(output, found)
    typer.echo(write_overhead_table(output, command))
    if "parameters" in found:
        typer.echo(measurement.share_of_parameters(found["parameters"]))


def _measured(
    backbone: str | None,
    artifact: Path | None,
    plain: Path | None,
    num_blocks: int,
    protocol: "Protocol",
) -> dict[str, Any]:
    from s2sent.training.evaluation.overhead import measurement

    if artifact and plain and not backbone:
        return measurement.measure_artifacts(artifact, plain, protocol)
    if backbone and not (artifact or plain):
        return measurement.measure_torch(backbone, {"num_blocks": num_blocks}, protocol)
    raise typer.BadParameter("Give either --backbone, or --artifact and --plain.")
