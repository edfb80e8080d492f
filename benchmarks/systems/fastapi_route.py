"""sentence-transformers behind a minimal FastAPI route, the way such a service is usually begun.

    python -m benchmarks.systems.fastapi_route FOLDER --port PORT

A sync route, which FastAPI runs in its thread pool, and a lock around `encode`: the tokenizer it
shares refuses to be used by two threads at once.
"""

import argparse
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class EmbedRequest(BaseModel):
    """One text or several."""

    inputs: str | list[str]


def create_app(folder: str) -> FastAPI:
    """The application around the model in ``folder``."""
    app = FastAPI()
    encoder = SentenceTransformer(folder, device="cpu")
    lock = threading.Lock()

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/embed")
    def embed(request: EmbedRequest) -> Any:
        texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        with lock:
            return encoder.encode(texts).tolist()

    return app


def main() -> None:
    """Serve on loopback until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    uvicorn.run(create_app(arguments.folder), host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()
