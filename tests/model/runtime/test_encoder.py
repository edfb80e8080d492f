"""The session that serves: rows keep order and values, and nothing is said to anyone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model.artifact.reader import Artifact
from model.runtime.encoder import KEPT_TOKENS, OnnxEncoder

DEFAULT_ARTIFACT = Path(__file__).parents[3] / "artifacts" / "default"
TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city", "a red car"]


@pytest.fixture(scope="module")
def encoder(tiny_artifact: Artifact) -> OnnxEncoder:
    return OnnxEncoder(tiny_artifact, intra_op_num_threads=1)


def test_the_embedded_artifact_gives_its_canary() -> None:
    """It was exported before the code moved to its packages, and opens as it is."""
    artifact = Artifact.open(DEFAULT_ARTIFACT)
    embedding = OnnxEncoder(artifact).encode([artifact.canary.text])[0]
    np.testing.assert_allclose(embedding, artifact.canary.embedding, atol=1e-5)


def test_encode_keeps_the_order_of_the_texts(encoder: OnnxEncoder) -> None:
    """Lengths are sorted inside; row i is still for text i, whatever the batch size."""
    rows = encoder.encode(TEXTS, batch_size=2)
    for row, text in zip(rows, TEXTS, strict=True):
        np.testing.assert_allclose(row, encoder.encode([text])[0], atol=1e-6)


def test_run_gives_what_encode_normalises(encoder: OnnxEncoder) -> None:
    """`run` is the pooled embedding; its direction is the embedding."""
    pooled = encoder.run([row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)])
    assert pooled.dtype == np.float32
    assert pooled.shape == (len(TEXTS), encoder.dim)
    lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=1e-3)
    np.testing.assert_allclose(pooled / lengths, encoder.encode(TEXTS), atol=1e-6)


def test_a_large_batch_is_embedded_on_one_thread(encoder: OnnxEncoder) -> None:
    """Its session has no memory arena, which a run must not ask to shrink."""
    row = encoder.tokenizer.tokenize(["a " * 10 * encoder.max_seq_length])[0].input_ids
    batch = [row] * (1 + KEPT_TOKENS // len(row))
    np.testing.assert_allclose(encoder.run(batch), encoder.run([row] * len(batch), exclusive=False))


def test_a_text_of_the_longest_length_is_embedded(encoder: OnnxEncoder) -> None:
    """The last position the tokenizer can give is one the graph knows."""
    rows = encoder.encode(["a " * 10 * encoder.max_seq_length])
    assert np.isfinite(rows).all()


EMBED = """
import sys
from model.artifact.reader import Artifact
from model.runtime.encoder import OnnxEncoder
OnnxEncoder(Artifact.open(sys.argv[1])).encode(['a'])
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(EMBED, id="embedding"),
        pytest.param("import model.export.graph", id="exporting"),
        pytest.param("import model.export.int8.products", id="rounding"),
    ],
)
def test_the_runtime_reports_nothing_and_writes_nothing(
    tiny_artifact: Artifact, tmp_path: Path, code: str
) -> None:
    """With a home folder of its own, a process that embeds or exports leaves that folder empty."""
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, str(tiny_artifact.path)]
    subprocess.run(command, check=True, env=environment)
    assert list(tmp_path.iterdir()) == []
