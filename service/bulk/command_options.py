"""Checks of what `s2sent embed` is given on its command line, before anything is read."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

from s2sent.service.bulk.job import BulkError, Shard

MAX_ROWS_PER_SHARD = 1_000_000_000
MAX_THREADS = 512  # as the service's setting has it
OUTPUT_COLUMNS = ("row", "id", "embedding", "tokens", "truncated", "error")


Number = TypeVar("Number", int, float, int | None)


def within(flag: str, least: int, most: int) -> Callable[[Number], Number]:
    """A check of an option's number, which exits 2 with one sentence."""

    def check(value: Number) -> Number:
        if value is not None and not least <= value <= most:
            sentence = (
                f"{flag} is {value}; it may be {least} to {most}. Give a number in that range."
            )
            typer.echo(sentence, err=True)
            raise typer.Exit(2)
        return value

    return check


def check_together(context: typer.Context, shard: Shard) -> None:
    """Raise BulkError for options that exclude each other."""
    given = context.params
    if given["resume"] and given["overwrite"]:
        raise BulkError("--resume keeps what --overwrite deletes. Give one of them.")
    if given["overwrite"] and shard.count > 1:
        raise BulkError(
            f"--overwrite with --shard {shard} would delete what other shards have written."
            " Delete the folder first."
        )
    if taken := sorted({*given["keep"]} & {*OUTPUT_COLUMNS}):
        raise BulkError(
            f"--keep {taken[0]} is the name of a column that every output has. Rename the column,"
            " or name it by --id-column."
        )
    by_server, by_ray = given["server"] is not None, given["ray"] is not None
    if by_ray and (by_server or shard.count > 1 or "-" in given["inputs"]):
        raise BulkError(
            "--ray divides the work itself and reads files. Leave out --server, --shard and -."
        )
    if by_ray and not given["ray"]:
        raise BulkError("--ray is ''; write the address of a cluster, auto or local.")
    if given["server_key_file"] and not by_server:
        raise BulkError("--server-key-file is for --server. Add --server, or leave it out.")
    named = is_named(context, "artifact")  # a container's environment has one, too
    if by_server and (named or given["threads"]):
        raise BulkError(
            "--server embeds with a service's model and cores. Leave out --artifact and --threads."
        )


def is_named(context: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def read_key(path: Path | None) -> str | None:
    """The key in a file; None where no file is named. Raises BulkError for one without a key."""
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise BulkError(f"--server-key-file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        key = ""
    if not key or not key.isprintable():
        raise BulkError(
            f"--server-key-file {path} does not hold a key, which is one line of UTF-8. Write"
            " the key alone to it."
        )
    return key
