"""The ``s2sent`` command: serve, embed, info, settings, hash-key, healthcheck.

The flags of ``serve`` are made from the fields of `service.settings.Settings`.
"""

import http.client
import inspect
import io
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

import s2sent
from s2sent.service.bulk.command import embed
from s2sent.service.process import end_process, tune_process
from s2sent.service.settings import Settings, SettingsError
from s2sent.service.settings_loading import load_settings
from s2sent.service.settings_reference import describe_fields, settings_table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _flags() -> inspect.Signature:
    """One optional keyword per setting. All but switches are text: Settings knows the types."""
    parameters = []
    for field in describe_fields():
        option = typer.Option(
            f"{field.flag}/{field.opposite_flag}" if field.opposite_flag else field.flag,
            help=f"{field.description} ({field.variable}, default: {field.default or 'none'})",
            rich_help_panel=field.group,
            metavar=_metavar(field.kind),
            show_default=False,
        )
        kind = bool if field.kind == "boolean" else str
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, option],
            )
        )
    return inspect.Signature(parameters)


def _metavar(kind: str) -> str | None:
    """What help shows for a value: choices as they are written, other kinds in capitals."""
    if kind == "boolean":
        return None
    return kind if "|" in kind else kind.upper()


def _with_settings(command: Callable[[Settings], None]) -> Callable[..., None]:
    """A command line around a command that takes Settings; exits 2 when they are wrong."""

    def run(**flags: object) -> None:
        # As from a shell's variable that is not set: --host "" would be every address.
        if empty := [field.flag for field in describe_fields() if flags[field.name] == ""]:
            _stop(
                *(f"{flag} is empty. Give it a value, or leave it out." for flag in empty), code=2
            )
        try:
            settings = load_settings(**{k: v for k, v in flags.items() if v is not None})
        except SettingsError as error:
            _stop(*error.problems, code=2)
        command(settings)

    signature = _flags()
    run.__doc__ = command.__doc__
    run.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it from any callable
    run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return run


def _serve(settings: Settings) -> None:
    """Serve embeddings and similarity until SIGTERM or Ctrl-C."""
    tune_process()
    from s2sent.service.engine.inference.parallelism import http_processes
    from s2sent.service.telemetry.logs import logging_to
    from s2sent.service.threads import NoMoreThreads

    try:
        processes = http_processes(settings)
    except SettingsError as error:
        end_process(_print_errors(*error.problems, code=2))
    name = "engine" if processes > 1 else None
    # The threads that open the model log too.
    try:
        with logging_to(sys.stdout, settings.log_level, process=name):
            code = _open_and_serve(settings, processes)
    except NoMoreThreads as error:
        code = _print_errors(str(error), code=1)
    end_process(code)


def _open_and_serve(settings: Settings, processes: int) -> int:
    # Imported here, so that --help is instant, and in this order, so that the artifact is verified
    # and the model opened in threads while the rest is imported.
    from s2sent.model.artifact.reader import Artifact
    from s2sent.service.engine.inference.served_artifact import open_artifact
    from s2sent.service.engine.inference.served_model import artifact_of
    from s2sent.service.threads import in_background

    def opened() -> Artifact:
        made = {"artifact": artifact_of(settings.model)} if settings.model else {}
        return open_artifact(settings.model_copy(update=made))

    artifact = in_background(opened, name="open")
    import s2sent.model.runtime.encoder  # noqa: F401  # ONNX Runtime, while the artifact is read
    from s2sent.service.engine.inference.model import LoadedModel

    model = LoadedModel.open_in_background(settings, artifact)
    from s2sent.service.server import CannotListen, serve

    try:
        if processes == 1:
            return serve(settings, model)
        from s2sent.service.supervisor import serve_processes

        return serve_processes(settings, processes, model)
    except CannotListen as error:
        return _print_errors(str(error), code=1)
    except SettingsError as error:
        return _print_errors(*error.problems, code=2)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Sentence embeddings and similarity over HTTP."""
    if version:
        typer.echo(f"s2sent {s2sent.__version__}")
        raise typer.Exit


app.command("serve")(_with_settings(_serve))
app.command("embed")(embed)


@app.command("settings")
def settings_command() -> None:
    """Print every setting as a Markdown table, as it stands in docs/settings.md."""
    typer.echo(settings_table())


@app.command()
def info(artifact: Annotated[str, typer.Argument(help="The folder of an exported model.")]) -> None:
    """Print what an artifact is: name, size, dimensions, depths, precisions, scores."""
    from s2sent.model.artifact.errors import ArtifactError
    from s2sent.model.artifact.facts import facts_of, scores_of
    from s2sent.model.artifact.reader import Artifact

    try:
        manifest = Artifact.open(artifact).manifest
    except ArtifactError as error:
        _stop(str(error), code=1)
    scores = scores_of(manifest) or [("scores", "not measured")]
    heading = [("", ""), ("Spearman x 100", "")]
    for name, value in [*facts_of(manifest), *heading, *scores]:
        typer.echo(f"{name:14} {value}".rstrip())


@app.command("hash-key")
def hash_key(
    name: Annotated[str, typer.Argument(help="Whose key it is; log lines have it.")],
    from_stdin: Annotated[
        bool, typer.Option("--from-stdin", help="Take the key from standard input.")
    ] = False,
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Requests it may send in a minute; by default any number.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Tokens it may embed in a minute; by default any number.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(help="Lane of its requests that name none: interactive or bulk.")
    ] = None,
) -> None:
    """Make an API key: it goes to standard error, its line for api_keys_file to standard output."""
    from s2sent.service.access.api_keys import UnusableKeys, key_line, new_key

    stdin = sys.stdin or io.StringIO()  # None where it is closed
    key = stdin.readline().strip() if from_stdin else new_key()
    if not key:
        _stop("Standard input has no key. Write one line to it.", code=2)
    try:
        line = key_line(
            name,
            key,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            priority=priority,
        )
    except UnusableKeys as error:
        _stop(f"No line was made: {error}", code=2)
    if not from_stdin:
        typer.echo(key, err=True)
    typer.echo(line)


@app.command()
def healthcheck(
    path: Annotated[str, typer.Option(help="/ready, or /health for being alive only.")] = "/ready",
    timeout_seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="Time to wait.")] = 5.0,
) -> None:
    """Exit 0 when the server of the same settings answers 200, else 1."""
    try:
        settings = load_settings()
    except SettingsError as error:
        _stop(*error.problems, code=2)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104  # compared, not bound
    connect = partial(http.client.HTTPConnection, host, settings.port, timeout=timeout_seconds)
    try:
        with closing(connect()) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read().decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        _stop(f"No answer from {host}:{settings.port}: {error or type(error).__name__}.", code=1)
    if response.status != http.client.OK:
        _stop(f"{path} answered {response.status}: {body}", code=1)
    typer.echo(body)


def _print_errors(*sentences: str, code: int) -> int:
    for sentence in sentences:
        typer.echo(sentence, err=True)
    return code


def _stop(*sentences: str, code: int) -> NoReturn:
    raise typer.Exit(_print_errors(*sentences, code=code))


def main(arguments: list[str] | None = None) -> Any:
    return app(arguments)


if __name__ == "__main__":
    main()
