"""The systems that are compared: how each is started, asked, and told from a broken one."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.systems.models import Models
from model.artifact.reader import Artifact

ROOT = Path(__file__).parents[2]
DEFAULT_ARTIFACT = ROOT / "artifacts/default"
LABELS = {"default": "artifacts/default", "int8": "int8 products"}
PORT = "PORT"  # stands in a command for the port it is given

Rows = NDArray[np.float32]  # [n, dim]


@dataclass(frozen=True)
class Route:
    """How a server is asked: where it answers, what it takes, and what it gives."""

    path: str
    ready: str
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

    `PORT` in ``command`` is replaced; its first word is the Python whose ``packages`` are recorded.
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

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        return Path(self.command[0]).parent / "python"


def one_or_all(texts: list[str]) -> str | list[str]:
    """A single text as a string, several as a list: what a client sends."""
    return texts[0] if len(texts) == 1 else texts


SERVICE_ROUTE = Route(
    "/embed", "/ready", lambda texts: {"inputs": one_or_all(texts)}, lambda rows: rows
)


def all_systems(
    models: Models, check_texts: list[str], peers: Path, serve_options: Sequence[str] = ()
) -> list[System]:
    """Every system, ours first; ``peers`` holds one environment for each other project."""
    minilm = Check(check_texts, models.reference)
    canary = Artifact.open(DEFAULT_ARTIFACT).canary
    default = Check([canary.text], np.array([canary.embedding], dtype=np.float32))
    rounded = replace(minilm, min_cosine=0.99)
    return [
        our_service(models.artifact, minilm, options=serve_options, open_loop=True),
        _raw_limit(models.artifact, minilm),
        *_infinity(models, minilm, peers / "infinity/bin/infinity_emb"),
        our_service(DEFAULT_ARTIFACT, default, suffix="default", options=serve_options),
        _raw_limit(DEFAULT_ARTIFACT, default, suffix="default"),
        our_service(models.int8, rounded, suffix="int8", options=serve_options),
        _raw_limit(models.int8, rounded, suffix="int8"),
        *_libraries(models, minilm, peers),
    ]


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
        name=f"s2sent-{suffix}" if suffix else "s2sent",
        label=f"S2Sent, {LABELS[suffix]}" if suffix else "S2Sent",
        command=(
            *(sys.executable, "-m", "service", "serve", "--port", PORT),
            *("--artifact", str(artifact), *options),
        ),
        check=check,
        route=SERVICE_ROUTE,
        packages=("onnxruntime", "tokenizers", "numpy", "uvicorn", "fastapi", "orjson"),
        open_loop=open_loop,
    )


def _raw_limit(artifact: Path, check: Check, *, suffix: str = "") -> System:
    return System(
        name=f"raw-{suffix}" if suffix else "raw",
        label=f"raw limit, {LABELS[suffix]}" if suffix else "raw limit",
        command=(sys.executable, "-m", "benchmarks.systems.worker", "raw", str(artifact)),
        check=check,
        packages=("onnxruntime", "tokenizers", "numpy"),
    )


def _infinity(models: Models, minilm: Check, program: Path) -> Iterator[System]:
    options = "--device cpu --dtype float32 --pooling-method mean --served-model-name bench"
    route = Route(
        "/embeddings",
        "/health",
        lambda texts: {"input": one_or_all(texts), "model": "bench"},
        lambda answer: [item["embedding"] for item in answer["data"]],
    )
    # The optimum engine finds an ONNX file only when the folder is the one it is started in.
    for engine, folder in (("torch", models.checkpoint), ("optimum", models.onnx)):
        yield System(
            name=f"infinity-{engine}",
            label=f"infinity-emb, {engine}",
            command=(
                *(str(program), "v2", "--model-id", ".", "--engine", engine, *options.split()),
                *("--host", "127.0.0.1", "--port", PORT),
            ),
            check=minilm,
            route=route,
            folder=folder,
            environment={
                "DO_NOT_TRACK": "1",
                "INFINITY_ANONYMOUS_USAGE_STATS": "0",
                "INFINITY_HOME": str(models.onnx.parent),
                "HF_HOME": str(models.onnx.parent),
            },
            packages=("infinity-emb", "torch", "transformers", "optimum", "onnxruntime"),
            open_loop=True,
        )


def _libraries(models: Models, minilm: Check, peers: Path) -> Iterator[System]:
    python = str(peers / "sentence-transformers/bin/python")
    packages = ("sentence-transformers", "torch", "transformers", "tokenizers")
    checkpoint = str(models.checkpoint)
    yield System(
        name="fastapi",
        label="sentence-transformers behind FastAPI",
        command=(python, "-m", "benchmarks.systems.fastapi_route", checkpoint, "--port", PORT),
        check=minilm,
        route=Route(
            "/embed", "/health", lambda texts: {"inputs": one_or_all(texts)}, lambda rows: rows
        ),
        packages=(*packages, "fastapi", "uvicorn"),
    )
    yield System(
        name="encode",
        label="sentence-transformers in process",
        command=(python, "-m", "benchmarks.systems.worker", "sentence-transformers", checkpoint),
        check=minilm,
        packages=packages,
    )
    yield System(
        name="fastembed",
        label="fastembed in process",
        command=(
            *(str(peers / "fastembed/bin/python"), "-m", "benchmarks.systems.worker", "fastembed"),
            str(models.onnx),
        ),
        check=minilm,
        packages=("fastembed", "onnxruntime", "tokenizers"),
    )
