"""Other projects: text-embeddings-inference, infinity-emb, sentence-transformers, fastembed."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.systems.models import Models
from benchmarks.systems.system import (
    PORT,
    SECOND_PORT,
    Check,
    Route,
    System,
    embed_route,
    one_or_all,
)

TEI_PROGRAM = "text-embeddings-router"
TEI_INT8_MIN_COSINE = 0.95  # plain dynamic quantisation loses 0.03 at the worst text


def text_embeddings_inference(models: Models, minilm: Check, program: str) -> Iterator[System]:
    """TEI on ONNX Runtime, in float32 and quantised dynamically; ``program`` is its router."""
    options = "--hostname 127.0.0.1 --dtype float32 --pooling mean --max-client-batch-size 64"
    library = find_onnxruntime_library()
    for suffix, label, folder, check in (
        ("", "", models.tei, minilm),
        ("-int8", ", int8", models.tei_int8, replace(minilm, min_cosine=TEI_INT8_MIN_COSINE)),
    ):
        yield System(
            name=f"tei{suffix}",
            label=f"text-embeddings-inference{label}",
            command=(
                *(program, "--model-id", str(folder), *options.split()),
                *("--port", PORT, "--prometheus-port", SECOND_PORT),
            ),
            check=check,
            route=embed_route("/health"),
            environment={"ORT_DYLIB_PATH": str(library)} if library else {},
            install="Give the path of text-embeddings-inference's router with --tei.",
        )


def find_onnxruntime_library() -> Path | None:
    """The shared library of the installed onnxruntime, for programs that load one at run time.

    ORT_DYLIB_PATH in the environment stands above it; None where there is neither.
    """
    if given := os.environ.get("ORT_DYLIB_PATH"):
        return Path(given)
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent / "capi").glob("libonnxruntime.so*"))
    return found[-1] if found else None


def infinity(models: Models, minilm: Check, peers: Path) -> Iterator[System]:
    """infinity-emb with its two engines for a CPU."""
    options = "--device cpu --dtype float32 --pooling-method mean --served-model-name bench"
    route = Route(
        "/embeddings",
        "/health",
        lambda texts: {"input": one_or_all(texts), "model": "bench"},
        lambda answer: [item["embedding"] for item in answer["data"]],
    )
    program = str(peers / "infinity/bin/infinity_emb")
    cache = str(models.onnx.parent)
    # The optimum engine finds an ONNX file only when the folder is the one it is started in.
    for engine, folder in (("torch", models.checkpoint), ("optimum", models.onnx)):
        yield System(
            name=f"infinity-{engine}",
            label=f"infinity-emb, {engine}",
            command=(
                *(program, "v2", "--model-id", ".", "--engine", engine, *options.split()),
                *("--host", "127.0.0.1", "--port", PORT),
            ),
            check=minilm,
            route=route,
            folder=folder,
            environment={
                "DO_NOT_TRACK": "1",
                "INFINITY_ANONYMOUS_USAGE_STATS": "0",
                "INFINITY_HOME": cache,
                "HF_HOME": cache,
            },
            packages=("infinity-emb", "torch", "transformers", "optimum", "onnxruntime"),
            open_loop=True,
        )


def libraries(models: Models, minilm: Check, peers: Path) -> Iterator[System]:
    """sentence-transformers behind a FastAPI route and in process, and fastembed in process."""
    python = str(peers / "sentence-transformers/bin/python")
    packages = ("sentence-transformers", "torch", "transformers", "tokenizers")
    checkpoint, worker = str(models.checkpoint), ("-m", "benchmarks.systems.worker")
    yield System(
        name="fastapi",
        label="sentence-transformers behind FastAPI",
        command=(python, "-m", "benchmarks.systems.fastapi_route", checkpoint, "--port", PORT),
        check=minilm,
        route=embed_route("/health"),
        packages=(*packages, "fastapi", "uvicorn"),
    )
    yield System(
        name="encode",
        label="sentence-transformers in process",
        command=(python, *worker, "sentence-transformers", checkpoint),
        check=minilm,
        packages=packages,
        all_loads=False,
    )
    yield System(
        name="fastembed",
        label="fastembed in process",
        command=(
            *(str(peers / "fastembed/bin/python"), *worker),
            *("fastembed", str(models.onnx)),
        ),
        check=minilm,
        packages=("fastembed", "onnxruntime", "tokenizers"),
        all_loads=False,
    )
