"""Long texts: the same vectors as torch's, in little memory, whatever stands beside them."""

import threading
from pathlib import Path

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions
from s2sent.model.export.parity import parity_sentences
from s2sent.model.network.encoder import build_plain_encoder, load_encoder
from s2sent.model.runtime.encoder import LONG_TEXT, OnnxEncoder
from tests.support.tiny import tiny_backbone

# Of transformers' module of ModernBERT.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

LONGEST = 2_048
SCORES = 2 * LONGEST**2 * 4  # bytes of all scores of one text, in two heads
MOST_SCORES = {"bert": 2, "modernbert": 4}  # of so many texts; eight would take 8


@pytest.fixture(scope="module", params=MOST_SCORES)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A tiny model of long texts, with early exit."""
    folder = tmp_path_factory.mktemp(request.param)
    backbone = tiny_backbone(
        folder / "backbone", request.param, num_layers=2, max_positions=LONGEST
    )
    encoder = build_plain_encoder(backbone, max_seq_length=LONGEST)
    encoder.save(str(folder / "checkpoint"))
    options = ExportOptions(depths=(1,), sentences=parity_sentences()[:4])
    return export_checkpoint(folder / "checkpoint", folder / "artifact", options)


def peak_bytes() -> int:
    """The most memory the process had since its peak was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def test_a_long_text_has_torchs_vector_alone_and_beside_others(artifact: Artifact) -> None:
    texts = ["dog " * 3_000, "the cat sings", "a red house " * 400, "bird " * 1_000]
    encoder = load_encoder(artifact.path.parent / "checkpoint")
    served = OnnxEncoder(artifact)
    rows = [row.input_ids for row in served.tokenizer.tokenize(texts)]
    assert [len(row) > LONG_TEXT for row in rows] == [True, False, True, False]
    together = served.encode(texts)
    np.testing.assert_allclose(together, encoder.encode(texts), atol=1e-5)
    alone = np.concatenate([served.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_eight_texts_of_the_maximum_length_take_less_memory_than_the_scores_of_a_few(
    artifact: Artifact, request: pytest.FixtureRequest
) -> None:
    """At one time, each in a run of its own, as inference threads make them."""
    family = request.node.callspec.params["artifact"]
    served = OnnxEncoder(artifact, intra_op_num_threads=1)
    row = list(np.random.default_rng(0).integers(5, 90, LONGEST))
    expected = served.run([row])
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = peak_bytes()
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(served.run([row]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peak_bytes() - before < MOST_SCORES[family] * SCORES
    assert len(found) == 8
    assert all(np.array_equal(each, expected) for each in found)
