"""Models that people pick: tiny random ones with the module lists and settings of the real ones."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions, Precision
from s2sent.model.export.parity import parity_sentences
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support import models_of_2026
from tests.support.models_of_2026 import MODELS, save_model

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

FEW = parity_sentences()[:12]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "saved", request.param)


LONG = "two happy dogs read books in the green city at night " * 2
EQUAL = ["the cat sings in the house", "the house sings in the cat"]
TEXTS = [*EQUAL, LONG, "a"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_gives_the_librarys_vectors_in_any_batch_with_each_prompt(
    model: Path, precision: Precision, tmp_path: Path
) -> None:
    options = ExportOptions(precision=precision, sentences=FEW)
    exported = export_checkpoint(model, tmp_path / "artifact", options)
    assert (exported.manifest.packed, sum(exported.manifest.fused.values()) >= 2) == (True, True)
    served = OnnxEncoder(exported)
    library: SentenceTransformer = SentenceTransformer(str(model), device="cpu")
    first, second = (len(row.input_ids) for row in served.tokenizer.tokenize(EQUAL))
    assert first == second
    for prompt in {"": "", **library.prompts}.values():
        texts = [f"{prompt}{text}" for text in TEXTS]
        expected = library.encode(TEXTS, prompt=prompt, batch_size=1, normalize_embeddings=True)
        together = served.encode(texts)
        alone = np.concatenate([served.encode([text]) for text in texts])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        np.testing.assert_allclose(served.encode(texts[:2]), alone[:2], atol=1e-5)
        worst = (together * expected).sum(1).min()
        assert worst > (0.98 if precision == "int8" else 1 - 1e-5)  # int8 of random weights


def test_a_wide_head_gives_the_same_bits_beside_a_longer_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scores are sums of more products than ONNX Runtime adds in one block."""
    monkeypatch.setattr(models_of_2026, "WIDE", {"harrier 270m": {"head_dim": 256}})
    saved = save_model(tmp_path / "saved", "harrier 270m", wide=True)
    served = OnnxEncoder(
        export_checkpoint(saved, tmp_path / "artifact", ExportOptions(sentences=FEW))
    )
    choose = np.random.default_rng(0)
    longer, *texts = ([int(i) for i in choose.integers(5, 99, n)] for n in (100, 3, 31, 64, 65))
    for text in texts:
        np.testing.assert_array_equal(served.run([text, longer])[0], served.run([text])[0])
