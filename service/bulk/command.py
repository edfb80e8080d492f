"""The command line of `s2sent embed`. What does the work is imported when it is needed."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from s2sent.service.bulk.command_options import (
    MAX_ROWS_PER_SHARD,
    MAX_THREADS,
    check_together,
    is_named,
    read_key,
    within,
)
from s2sent.service.bulk.job import (
    MAX_FAILED,
    BulkError,
    Dtype,
    Format,
    InputFormat,
    Job,
    Options,
    Shard,
    Stopped,
)
from s2sent.service.bulk.signals import StopSignals
from s2sent.service.settings import DEFAULT_ARTIFACT, environment_name

if TYPE_CHECKING:
    from s2sent.service.bulk.input.files import InputFile
    from s2sent.service.bulk.job import Embedder
    from s2sent.service.bulk.output.folder import OutputFolder
    from s2sent.service.bulk.progress import Progress

ProgressKind = Literal["bar", "json", "none"]

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files of texts (.txt .csv .tsv .jsonl .parquet, each also .gz), globs, or -.",
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Folder for the embeddings.")]
TextColumn = Annotated[str, typer.Option(help="Column or key of the text.")]
IdColumn = Annotated[
    str | None, typer.Option(help="Column or key of an id to keep beside each embedding.")
]
GivenFormat = Annotated[
    InputFormat | None, typer.Option(help="By default what a file's name ends with.")
]
OutputFormat = Annotated[Format, typer.Option("--format", help="Format of the output.")]
Keep = Annotated[
    list[str],
    typer.Option(metavar="COLUMN", help="Carry a column into the output, as text; once for each."),
]
RowsPerShard = Annotated[
    int | None,
    typer.Option(
        callback=within("--rows-per-shard", 1, MAX_ROWS_PER_SHARD),
        help="Rows of a part: a file, and the unit of resuming; 1 to 1000000000. By default 1000"
        " to 10000, the fewer the longer rows are.",
        show_default=False,
    ),
]
ShardOfRun = Annotated[str, typer.Option(help="Do only this of n shards, as in 0/4.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a run was cut.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete what the output folder holds.")
]
Artifact = Annotated[
    Path, typer.Option(envvar=environment_name("artifact"), help="Folder of the model.")
]
Dimensions = Annotated[int | None, typer.Option(help="Keep only the first components, 1 or more.")]
Depth = Annotated[
    int | None, typer.Option(help="Stop after this block, one of the model's depths.")
]
PromptName = Annotated[
    str | None,
    typer.Option(help="A prompt of the model, put before every text; an empty name is none."),
]
StoredType = Annotated[Dtype, typer.Option(help="Type of the stored components.")]
OnError = Annotated[
    Literal["stop", "null"],
    typer.Option(help="At a row that cannot be embedded: stop, or leave its embedding out."),
]
MaxFailed = Annotated[
    float,
    typer.Option(
        callback=within("--max-failed", 0, 1),
        help="With --on-error null: stop where a larger share of the texts cannot be embedded.",
    ),
]
Server = Annotated[
    str | None, typer.Option(help="Embed by the service at this URL instead of here.")
]
KeyFile = Annotated[Path | None, typer.Option(help="File with the API key for --server.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Run on the Ray cluster at this address; local starts one.")
]
Threads = Annotated[
    int,
    typer.Option(
        callback=within("--threads", 0, MAX_THREADS),
        help="Cores to use, at most 512; 0 for all that this process may use.",
    ),
]
ShownProgress = Annotated[ProgressKind, typer.Option(help="How progress is shown.")]


def embed(
    context: typer.Context,
    inputs: Inputs,
    output: Output,
    text_column: TextColumn = "text",
    id_column: IdColumn = None,
    keep: Keep = [],  # noqa: B006  # typer reads it
    input_format: GivenFormat = None,
    format_: OutputFormat = "parquet",
    rows_per_shard: RowsPerShard = None,
    shard: ShardOfRun = "0/1",
    resume: Resume = False,
    overwrite: Overwrite = False,
    artifact: Artifact = DEFAULT_ARTIFACT,
    dimensions: Dimensions = None,
    depth: Depth = None,
    prompt_name: PromptName = None,
    dtype: StoredType = "float32",
    on_error: OnError = "stop",
    max_failed: MaxFailed = MAX_FAILED,
    server: Server = None,
    server_key_file: KeyFile = None,
    ray: RayAddress = None,
    threads: Threads = 0,
    progress: ShownProgress = "bar",
) -> None:
    """Embed files of texts into files of embeddings, resumable."""
    # numpy is here for small sums; its threads would be started at once and spin for work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = Options(
        format=format_,
        dtype=dtype,
        dimensions=dimensions,
        depth=depth,
        prompt_name=prompt_name,
        text_column=text_column,
        id_column=id_column,
        rows_per_shard=rows_per_shard or 0,
        keep=tuple(dict.fromkeys(keep)),
    )
    shown = _progress(progress)
    with _errors_as_sentences(shown) as signals:
        part = Shard.parse(shard)
        check_together(context, part)
        from s2sent.service.bulk.input.files import find_inputs

        job = Job(
            tuple(find_inputs(inputs, tell=_tell)),
            output,
            artifact,
            options,
            input_format,
            threads,
            null_errors=on_error == "null",
            max_failed=max_failed,
            names_text_column=is_named(context, "text_column"),
        )
        run = _Run(job, part, resume, overwrite, shown, signals)
        run.on_ray(ray) if ray is not None else run.here(server, server_key_file)


@contextmanager
def _errors_as_sentences(progress: "Progress") -> Iterator[StopSignals]:
    try:
        with StopSignals() as signals:
            yield signals
    except Stopped as stopped:
        _tell(f"Stopped. {progress.kept()} Go on with: {_resuming_command()}")
        raise typer.Exit(128 + stopped.number) from None
    except BulkError as error:
        _stop(str(error))
    except ModuleNotFoundError as error:
        package = {"pyarrow": "pyarrow", "ray": "'ray[data]'"}.get(str(error.name).split(".")[0])
        if not package:
            raise
        python = shlex.quote(sys.executable)
        _stop(f"{error.name} is not installed. Run: {python} -m pip install {package}")


@dataclass
class _Run:
    """A job with how to begin and how to show it."""

    job: Job
    shard: Shard
    resume: bool
    overwrite: bool
    progress: "Progress"
    signals: StopSignals

    def on_ray(self, address: str) -> None:
        from s2sent.service.bulk.ray_job import run_on_ray

        output = run_on_ray(
            self.job, address, self.progress, resume=self.resume, overwrite=self.overwrite
        )
        _report(output)

    def here(self, server: str | None, key_file: Path | None) -> None:
        from s2sent.model.runtime.malloc import share_one_heap
        from s2sent.service.bulk.input.files import scan, with_part_rows
        from s2sent.service.bulk.input.first_rows import check_first_rows

        share_one_heap()
        files = scan(self.job.inputs, self.job.options, given=self.job.input_format)
        job = self.job = with_part_rows(self.job, files)
        check_first_rows(files, job, resume=self.resume, overwrite=self.overwrite)
        # Nothing is shared with other threads yet, and a service may be a long time in answering.
        remote = self._remote(server, key_file) if server is not None else None
        with self.signals.deferred():
            self._embed(files, remote or self._local())

    def _embed(self, files: "list[InputFile]", embedder: "Embedder") -> None:
        from s2sent.service.bulk.output.folder import OutputFolder
        from s2sent.service.bulk.runner import Runner

        job = self.job
        output = OutputFolder(job.output, embedder.model, job.options, files)
        try:
            output.begin(self.shard, resume=self.resume, overwrite=self.overwrite)
            if not output.is_complete:
                stop = self.signals.check
                runner = Runner(
                    output, embedder, job.null_errors, self.progress, stop, job.max_failed
                )
                runner.run(self.shard)
                output.finish()
            _report(output)
        finally:
            embedder.close()
            self.progress.end()
            output.close()

    def _remote(self, server: str, key_file: Path | None) -> "Embedder":
        from s2sent.service.bulk.embedders.remote import RemoteEmbedder

        return RemoteEmbedder(server, self.job.options, key=read_key(key_file), tell=_tell)

    def _local(self) -> "Embedder":
        from s2sent.service.bulk.embedders.local import LocalEmbedder

        return LocalEmbedder(self.job.artifact, self.job.options, threads=self.job.threads)


def _progress(kind: ProgressKind) -> "Progress":
    from s2sent.service.bulk.progress import BarProgress, JsonProgress, Progress

    kinds: dict[ProgressKind, type[Progress]] = {"bar": BarProgress, "json": JsonProgress}
    return kinds.get(kind, Progress)()


def _resuming_command() -> str:
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    return shlex.join(["s2sent", *words, "--resume"])


def _report(output: "OutputFolder") -> None:
    if output.is_complete:
        failed = f", {output.failed} of them without an embedding" if output.failed else ""
        _tell(f"{output.path} is complete: {output.rows} rows in {output.parts} parts{failed}.")
    else:
        done = len(output.committed())
        _tell(f"{output.path} has {done} of {output.parts} parts; the other shards write the rest.")


def _tell(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _stop(sentence: str) -> NoReturn:
    _tell(sentence)
    raise typer.Exit(1)
