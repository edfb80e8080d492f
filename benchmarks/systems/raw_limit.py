"""The raw limit: tokenizers and one ONNX Runtime session, no server and nothing of this project."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import tokenizers
from numpy.typing import NDArray

BATCH_SIZE = 32
MAX_TOKENS = 256


class RawSession:
    """An artifact's graph on as many threads as there are cores, over batches of equal lengths."""

    def __init__(self, artifact: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(artifact / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        options = ort.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        path = str(artifact / "onnx/model.onnx")
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._output = self._session.get_outputs()[0]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings [n, dim] in the order of ``texts``, tokenised in one call, run by length."""
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        embeddings = np.empty((len(rows), self._output.shape[1]), dtype=np.float32)
        for start in range(0, len(order), BATCH_SIZE):
            indices = order[start : start + BATCH_SIZE]
            embeddings[indices] = self._run([rows[index] for index in indices])
        return embeddings

    def _run(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        longest = len(rows[-1])
        input_ids = np.zeros((len(rows), longest), dtype=np.int64)
        attention_mask = np.zeros_like(input_ids)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = row
            attention_mask[index, : len(row)] = 1
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": np.zeros_like(input_ids),
        }
        embeddings: NDArray[np.float32] = self._session.run([self._output.name], inputs)[0]
        return embeddings
