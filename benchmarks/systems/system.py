"""What a system of the comparison is: how it is started, asked, and told from a broken one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
DEFAULT_ARTIFACT = ROOT / "artifacts/default"
PORT = "PORT"  # stands in a command for the port it is given
SECOND_PORT = "SECOND_PORT"  # for another one, that nothing is sent to

Rows = NDArray[np.float32]  # [n, dim]


@dataclass(frozen=True)
class Route:
    """How a server is asked: where it answers, what it takes, and what it gives."""

    path: str
    ready: str  # a path that answers 200 when it is ready; empty: it is when it embeds a text
    body: Callable[[list[str]], Any]
    rows: Callable[[Any], list[list[float]]]


@dataclass(frozen=True)
class Check:
    """Texts and the embeddings [n, dim] that sentence-transformers gives them, L2-normalised, and
    what cosine a system must reach to be measured."""

    texts: list[str]
    embeddings: Rows
    min_cosine: float = 0.9999


NO_CHECK = Check([], np.empty((0, 0), dtype=np.float32))


@dataclass(frozen=True)
class System:
    """One line of the comparison. Without a ``route`` it is a `benchmarks.systems.worker`.

    `PORT` and `SECOND_PORT` in ``command`` are replaced; its first word is the Python whose
    ``packages`` are recorded.
    """

    name: str
    label: str
    command: tuple[str, ...]
    check: Check
    route: Route | None = None
    folder: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    open_loop: bool = False
    all_loads: bool = True  # False for a library, which one caller asks
    install: str = "`make peers` installs it."  # what to do where the command is not there
    is_reference: bool = False  # measured for study: in no table of the report

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        return Path(self.command[0]).parent / "python"


def one_or_all(texts: list[str]) -> str | list[str]:
    """A single text as a string, several as a list: what a client sends."""
    return texts[0] if len(texts) == 1 else texts


def embed_route(ready: str) -> Route:
    """POST /embed with ``inputs``, answered with a list of embeddings."""
    return Route("/embed", ready, lambda texts: {"inputs": one_or_all(texts)}, lambda rows: rows)


SERVICE_ROUTE = embed_route("/ready")
