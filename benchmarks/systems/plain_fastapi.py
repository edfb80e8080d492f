"""The plainest service on an artifact: FastAPI, pydantic, one worker thread, default session.

    python -m benchmarks.systems.plain_fastapi ARTIFACT --port PORT

No batching, limits, deadlines or metrics: what a service adds to a lone request is told from this.
"""

import argparse
import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import orjson
import tokenizers
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

MAX_TOKENS = 256


class EmbedBody(BaseModel):
    """One text or several."""

    inputs: str | list[str]
    normalize: bool = True
    truncate: bool = True


class PlainEncoder:
    """A tokenizer and a session with ONNX Runtime's default options."""

    def __init__(self, artifact: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(artifact / "tokenizer.json"))
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        path = str(artifact / "onnx/model.onnx")
        self._session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

    def embed(self, texts: Sequence[str], normalize: bool = True) -> bytes:
        """The embeddings of ``texts`` as a JSON array [n, dim]."""
        encodings = self._tokenizer.encode_batch(list(texts))
        ids = np.array([each.ids for each in encodings], dtype=np.int64)
        mask = np.array([each.attention_mask for each in encodings], dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        used = {name: value for name, value in feeds.items() if name in self._inputs}
        rows = self._session.run([self._output], used)[0]
        if normalize:
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)


def create_app(artifact: Path) -> FastAPI:
    """The application around ``artifact``."""
    app = FastAPI()
    encoder = PlainEncoder(artifact)
    worker = ThreadPoolExecutor(max_workers=1)

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/embed")
    async def embed(body: EmbedBody) -> Response:
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        loop = asyncio.get_running_loop()
        content = await loop.run_in_executor(worker, encoder.embed, texts, body.normalize)
        return Response(content, media_type="application/json")

    return app


def main() -> None:
    """Serve on loopback until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    app = create_app(options.artifact)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
