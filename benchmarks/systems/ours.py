"""The service, what is built on the same artifact, and what HTTP takes without a model."""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.systems.system import NO_CHECK, PORT, SERVICE_ROUTE, Check, System, embed_route

LABELS = {"": "", "default": ", artifacts/default", "int8": ", int8"}
RUNTIME = ("onnxruntime", "tokenizers", "numpy")
SERVER = ("uvicorn", "fastapi", "orjson")


def our_service(
    artifact: Path,
    check: Check = NO_CHECK,
    *,
    suffix: str = "",
    options: Sequence[str] = (),
    open_loop: bool = False,
) -> System:
    """`s2sent serve` on an artifact, with its default settings but for ``options``."""
    return System(
        name=_name("s2sent", suffix),
        label=f"S2Sent{LABELS[suffix]}",
        command=(
            *(sys.executable, "-m", "s2sent.service", "serve", "--port", PORT),
            *("--artifact", str(artifact), *options),
        ),
        check=check,
        route=SERVICE_ROUTE,
        packages=(*RUNTIME, *SERVER),
        open_loop=open_loop,
    )


def raw_limit(artifact: Path, check: Check, *, suffix: str = "") -> System:
    """The artifact's graph and tokenizer alone, in the fastest of several simple ways."""
    return System(
        name=_name("raw", suffix),
        label=f"raw limit{LABELS[suffix]}",
        command=(sys.executable, "-m", "benchmarks.systems.worker", "raw", str(artifact)),
        check=check,
        packages=RUNTIME,
    )


def plain_fastapi(artifact: Path, check: Check, *, suffix: str = "") -> System:
    """FastAPI and one worker thread on the artifact's graph."""
    return System(
        name=_name("plain-fastapi", suffix),
        label=f"plain FastAPI, one thread{LABELS[suffix]}",
        command=(
            *(sys.executable, "-m", "benchmarks.systems.plain_fastapi"),
            *(str(artifact), "--port", PORT),
        ),
        check=check,
        route=embed_route("/health"),
        packages=(*RUNTIME, *SERVER),
    )


def http_alone() -> System:
    """FastAPI with stored embeddings, which belong to no text: there is nothing to check."""
    return System(
        name="http",
        label="HTTP alone, no model",
        command=(sys.executable, "-m", "benchmarks.systems.http_alone", "--port", PORT),
        check=NO_CHECK,
        route=embed_route("/health"),
        packages=("numpy", *SERVER),
        is_reference=True,
    )


def _name(name: str, suffix: str) -> str:
    return f"{name}-{suffix}" if suffix else name
