"""FastAPI's route around stored embeddings: what HTTP, pydantic and JSON cost without a model.

    python -m benchmarks.systems.http_alone --port PORT

It neither tokenises nor runs anything, and answers in the event loop's thread: a lower bound for
services that use FastAPI, pydantic and uvicorn in their plain form.
"""

import argparse

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Response

from benchmarks.systems.plain_fastapi import EmbedBody

WIDTH = 384  # of all-MiniLM-L6-v2


def create_app() -> FastAPI:
    """The application: each request is answered with as many embeddings as it has texts."""
    app = FastAPI()
    stored = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32)
    stored /= np.linalg.norm(stored)

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/embed")
    async def embed(body: EmbedBody) -> Response:
        count = 1 if isinstance(body.inputs, str) else len(body.inputs)
        rows = np.tile(stored, (count, 1))
        content = orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    return app


def main() -> None:
    """Serve on loopback until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    uvicorn.run(
        create_app(), host="127.0.0.1", port=options.port, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
