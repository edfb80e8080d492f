"""The command line of `s2sent embed`. What does the work is imported when it is needed."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
RowsPerShard = Annotated[
    int,
    typer.Option(
        callback=within("--rows-per-shard", 1, MAX_ROWS_PER_SHARD),
        help="Rows of a part: a file, and the unit of resuming; 1 to 1000000000.",
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
    input_format: GivenFormat = None,
    format_: OutputFormat = "parquet",
    rows_per_shard: RowsPerShard = 100_000,
    shard: ShardOfRun = "0/1",
    resume: Resume = False,
    overwrite: Overwrite = False,
    artifact: Artifact = DEFAULT_ARTIFACT,
    dimensions: Dimensions = None,
    depth: Depth = None,
    prompt_name: PromptName = None,
    dtype: StoredType = "float32",
    on_error: OnError = "stop",
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
        format_, dtype, dimensions, depth, prompt_name, text_column, id_column, rows_per_shard
    )
    with _errors_as_sentences() as signals:
        part = Shard.parse(shard)
        check_together(context, part)
        from s2sent.service.bulk.input.files import find_inputs

        names = tuple(find_inputs(inputs))
        named = is_named(context, "text_column")
        null_errors = on_error == "null"
        job = Job(names, output, artifact, options, input_format, threads, null_errors, named)
        run = _Run(job, part, resume, overwrite, progress, signals)
        run.on_ray(ray) if ray is not None else run.here(server, server_key_file)


@contextmanager
def _errors_as_sentences() -> Iterator[StopSignals]:
    try:
        with StopSignals() as signals:
            yield signals
    except Stopped as stopped:
        _say(f"Stopped. Committed parts are kept; go on with: {_resuming_command()}")
        raise typer.Exit(128 + stopped.number) from None
    except BulkError as error:
        _stop(str(error))
    except ModuleNotFoundError as error:
        extra = {"pyarrow": "bulk", "ray": "ray"}.get(str(error.name).partition(".")[0])
        if not extra:
            raise
        _stop(f"{error.name} is not installed. Run: pip install 's2sent[{extra}]'.")


class _Run:
    """A job with how to begin and how to show it."""

    def __init__(
        self,
        job: Job,
        shard: Shard,
        resume: bool,
        overwrite: bool,
        progress: ProgressKind,
        signals: StopSignals,
    ) -> None:
        self._job = job
        self._shard = shard
        self._resume = resume
        self._overwrite = overwrite
        self._progress = _progress(progress)
        self._signals = signals

    def on_ray(self, address: str) -> None:
        from s2sent.service.bulk.ray_job import run_on_ray

        output = run_on_ray(
            self._job, address, self._progress, resume=self._resume, overwrite=self._overwrite
        )
        _report(output)

    def here(self, server: str | None, key_file: Path | None) -> None:
        from s2sent.model.runtime.malloc import share_one_heap
        from s2sent.service.bulk.input.files import scan
        from s2sent.service.bulk.input.first_rows import check_first_rows

        share_one_heap()
        job = self._job
        files = scan(job.inputs, job.options, given=job.input_format)
        check_first_rows(files, job, resume=self._resume, overwrite=self._overwrite)
        # Nothing is shared with other threads yet, and a service may be a long time in answering.
        remote = self._remote(server, key_file) if server is not None else None
        with self._signals.deferred():
            self._embed(files, remote or self._local())

    def _embed(self, files: "list[InputFile]", embedder: "Embedder") -> None:
        from s2sent.service.bulk.output.folder import OutputFolder
        from s2sent.service.bulk.runner import Runner

        job = self._job
        output = OutputFolder(job.output, embedder.model, job.options, files)
        try:
            output.begin(self._shard, resume=self._resume, overwrite=self._overwrite)
            if not output.is_complete:
                runner = Runner(
                    output, embedder, job.null_errors, self._progress, self._signals.check
                )
                runner.run(self._shard)
                output.finish()
            _report(output)
        finally:
            embedder.close()
            self._progress.end()
            output.close()

    def _remote(self, server: str, key_file: Path | None) -> "Embedder":
        from s2sent.service.bulk.embedders.remote import RemoteEmbedder

        return RemoteEmbedder(server, self._job.options, key=read_key(key_file), tell=_say)

    def _local(self) -> "Embedder":
        from s2sent.service.bulk.embedders.local import LocalEmbedder

        return LocalEmbedder(self._job.artifact, self._job.options, threads=self._job.threads)


def _progress(kind: ProgressKind) -> "Progress":
    from s2sent.service.bulk.progress import BarProgress, JsonProgress, Progress

    kinds: dict[ProgressKind, type[Progress]] = {"bar": BarProgress, "json": JsonProgress}
    return kinds.get(kind, Progress)()


def _resuming_command() -> str:
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    return shlex.join(["s2sent", *words, "--resume"])


def _report(output: "OutputFolder") -> None:
    if output.is_complete:
        _say(f"{output.path} is complete: {output.rows} rows in {output.parts} parts.")
    else:
        done = len(output.committed())
        _say(f"{output.path} has {done} of {output.parts} parts; the other shards write the rest.")


def _say(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _stop(sentence: str) -> NoReturn:
    _say(sentence)
    raise typer.Exit(1)
