"""The session that serves: rows keep order and values, and nothing is said to anyone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import KEPT_TOKENS, OnnxEncoder
from s2sent.model.runtime.input_errors import UnusableInput
from s2sent.model.runtime.tokenizer import TokenizedText

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


def test_a_text_without_tokens_is_refused(
    encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a template's prefix alone: its row would be read from its neighbours."""
    rows = encoder.tokenizer.tokenize(TEXTS[:2])
    rows[1] = TokenizedText([], truncated=False)
    monkeypatch.setattr(encoder.tokenizer, "tokenize", lambda *_, **__: rows)
    with pytest.raises(UnusableInput, match="^input 1 has no tokens to pool. Leave it out.$"):
        encoder.encode(TEXTS[:2])


def test_a_vector_of_zeros_has_no_direction_and_stays(
    encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "run", lambda rows, **_: np.zeros((len(rows), encoder.dim)))
    assert not encoder.encode(TEXTS[:2]).any()


def test_full_depth_is_a_depth_and_another_is_refused_with_those_there_are(
    exits_artifact: Artifact,
) -> None:
    encoder, manifest = OnnxEncoder(exits_artifact), exits_artifact.manifest
    whole = encoder.encode(TEXTS, depth=manifest.full_depth)
    np.testing.assert_array_equal(whole, encoder.encode(TEXTS))
    known = ", ".join(map(str, manifest.all_depths))
    with pytest.raises(ValueError, match=f"^depth is 99; the artifact can stop at {known}.$"):
        encoder.encode(TEXTS, depth=99)


def test_run_gives_what_encode_normalises(encoder: OnnxEncoder) -> None:
    """`run` is the pooled embedding; its direction is the embedding."""
    pooled = encoder.run([row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)])
    assert pooled.dtype == np.float32
    assert pooled.shape == (len(TEXTS), encoder.dim)
    lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=1e-3)
    np.testing.assert_allclose(pooled / lengths, encoder.encode(TEXTS), atol=1e-6)


def test_memory_of_other_runs_changes_no_bit(tiny_artifact: Artifact, encoder: OnnxEncoder) -> None:
    """Neither what a session kept from other batches nor that it gave it back."""
    fresh = OnnxEncoder(tiny_artifact, intra_op_num_threads=1)
    row = encoder.tokenizer.tokenize(["a " * 10 * encoder.max_seq_length])[0].input_ids
    rows = [each.input_ids for each in encoder.tokenizer.tokenize(TEXTS)]
    expected = fresh.run(rows)
    for larger in ([row], [row] * 2, [row] * (1 + KEPT_TOKENS // len(row))):
        encoder.run(larger)
        np.testing.assert_array_equal(encoder.run(rows), expected)
    encoder.return_memory()
    np.testing.assert_array_equal(encoder.run(rows), expected)


MEMORY = """
import sys
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import KEPT_TOKENS, OnnxEncoder
from s2sent.model.runtime.malloc import return_freed_memory

def resident_mb():
    return_freed_memory()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

encoder = OnnxEncoder(Artifact.open(sys.argv[1]), intra_op_num_threads=1)
encoder.run([[0] * 64])
print(resident_mb())
encoder.run([[0] * 64] * (KEPT_TOKENS // 64))
print(resident_mb())
encoder.return_memory()
print(resident_mb())
encoder.run([[0] * 64] * (1 + KEPT_TOKENS // 64))
print(resident_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_batch_keeps_memory_for_the_next_until_it_is_to_be_returned() -> None:
    """A larger one returns its memory itself."""
    command = [sys.executable, "-c", MEMORY, str(DEFAULT_ARTIFACT)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    before, kept, returned, larger = (float(line) for line in lines)
    assert kept > before + 8, lines
    assert returned < before + 6, lines
    assert larger < before + 6, lines


def test_a_text_of_the_longest_length_is_embedded(encoder: OnnxEncoder) -> None:
    """The last position the tokenizer can give is one the graph knows."""
    rows = encoder.encode(["a " * 10 * encoder.max_seq_length])
    assert np.isfinite(rows).all()


EMBED = """
import sys
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
OnnxEncoder(Artifact.open(sys.argv[1])).encode(['a'])
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(EMBED, id="embedding"),
        pytest.param("import s2sent.model.export.graph", id="exporting"),
        pytest.param("import s2sent.model.export.int8.products", id="rounding"),
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
