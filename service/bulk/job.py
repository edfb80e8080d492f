"""What a bulk run is told: its options, their checks, and the errors it stops with."""

import sys
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

if TYPE_CHECKING:  # the command line should not wait for numpy
    import numpy as np
    from numpy.typing import NDArray

Format = Literal["parquet", "npy", "jsonl"]
Dtype = Literal["float32", "float16", "int8", "binary", "ubinary"]  # service.encodings.Numbers
BITS = ("binary", "ubinary")
MAX_FAILED = 0.5  # of the texts that are given to the model
InputFormat = Literal["txt", "csv", "tsv", "jsonl", "parquet"]


class BulkError(Exception):
    """A run that cannot go on; the message names the file, the place in it and the cure."""


class InputError(BulkError):
    """An input, or a row of it, cannot be embedded."""


class OutputError(BulkError):
    """The output cannot be written, or belongs to another run."""


class Stopped(KeyboardInterrupt):
    """SIGTERM or Ctrl-C; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class Model:
    """The encoder of a run, from an artifact's manifest or a service's /info.

    max_characters: of a text; what stands behind them is not read.
    """

    name: str
    fingerprint: str
    dim: int
    depths: tuple[int, ...]
    prompts: dict[str, str]
    max_characters: int = sys.maxsize


@dataclass(frozen=True)
class Options:
    """What decides the bytes of the output, with the model and the input.

    rows_per_shard: 0 only until the input is known (`service.bulk.input.files.with_part_rows`).
    keep: columns of the input that the output has as well.
    prompt_name: None is the model's default, "" is no prompt unless the model has one of that name.
    """

    format: Format = "parquet"
    dtype: Dtype = "float32"
    dimensions: int | None = None
    depth: int | None = None
    prompt_name: str | None = None
    text_column: str = "text"
    id_column: str | None = None
    rows_per_shard: int = 10_000
    keep: tuple[str, ...] = ()

    def check(self, model: Model) -> None:
        """Raise BulkError for an option that the model does not have."""
        if self.dimensions is not None and not 1 <= self.dimensions <= model.dim:
            raise BulkError(
                f"--dimensions is {self.dimensions}; {model.name} has {model.dim}. Ask for 1 to"
                f" {model.dim} of them, or leave it out for all."
            )
        if self.dtype in BITS and self.components(model) % 8:
            raise BulkError(
                f"--dtype {self.dtype} packs eight components into a byte and there are"
                f" {self.components(model)}. Choose --dimensions that 8 divides."
            )
        if self.depth is not None and self.depth not in model.depths:
            known = ", ".join(map(str, model.depths)) or "none"
            raise BulkError(
                f"--depth is {self.depth}; {model.name} can stop at {known}. Leave it out for full"
                " depth."
            )
        if self.prompt_name and self.prompt_name not in model.prompts:
            known = ", ".join(sorted(model.prompts)) or "none"
            raise BulkError(
                f'--prompt-name is {self.prompt_name!r}; {model.name} has {known}. Write "" for no'
                " prompt, or leave it out for the model's default."
            )

    def components(self, model: Model) -> int:
        """Components of an embedding."""
        return self.dimensions or model.dim

    def stored_width(self, model: Model) -> int:
        """Stored numbers of an embedding: its components, or its bytes where they are bits."""
        return self.components(model) // (8 if self.dtype in BITS else 1)


@dataclass(frozen=True)
class Job:
    """A whole run: what is embedded, by what, and where the embeddings go.

    inputs: files, as `service.bulk.input.files.find_inputs` gives them.
    threads: cores to use; 0 is all that the process may use.
    null_errors: keep a row that cannot be embedded, without an embedding.
    max_failed: the share of the texts that may fail before the run stops, where errors are kept.
    names_text_column: the text column was named, be it by its default.
    """

    inputs: tuple[str, ...]
    output: Path
    artifact: Path
    options: Options = Options()
    input_format: InputFormat | None = None
    threads: int = 0
    null_errors: bool = False
    max_failed: float = MAX_FAILED
    names_text_column: bool = False


@dataclass(frozen=True)
class Shard:
    """One of ``count`` runs over the same input: it takes the parts k with k % count = index."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """``i/n`` with 0 <= i < n; raises BulkError."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise BulkError(f"--shard is {text!r}; write i/n, counted from 0, as in 0/4.")
        return cls(int(index), int(count))

    def parts(self, total: int) -> range:
        """The numbers of its parts among ``total``."""
        return range(self.index, total, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One text of the input, or the reason why there is none; ``place`` says where it stands.

    kept: its values of the columns that the output has as well.
    """

    text: str
    id: str | None
    place: str
    error: str | None = None
    kept: tuple[str | None, ...] = ()

    @property
    def characters(self) -> int:
        """How much memory it takes, about."""
        return sum(len(value or "") for value in (self.text, self.id, *self.kept))


@dataclass(frozen=True)
class Embedded:
    """Embeddings [n, dim] float32, not normalised, and what is known of each text.

    ``tokens`` are after truncation, special tokens included. -1 tokens: not known.
    ``errors`` has a sentence for each text without an embedding.
    """

    vectors: "NDArray[np.float32]"
    tokens: "NDArray[np.int32]"
    truncated: "NDArray[np.bool_]"
    errors: dict[int, str]


@dataclass(frozen=True)
class Pending:
    """Texts that are being embedded: ``runs`` fill ``embedded``."""

    embedded: Embedded
    runs: list[Future[None]]

    def wait(self, seconds: float) -> bool:
        """Whether all runs are done within so many seconds; raises what one has failed with."""
        done, waiting = wait(self.runs, seconds, FIRST_EXCEPTION)
        for run in done:
            run.result()
        return not waiting


class Embedder(Protocol):
    """Where texts are embedded: in this process or by a service."""

    @property
    def model(self) -> Model: ...

    def start(self, texts: list[str]) -> Pending:
        """Begin to embed texts, none of them empty; called by one thread."""
        ...

    def close(self) -> None:
        """Stop, and drop what has not begun."""
        ...
