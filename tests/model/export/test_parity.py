"""The parity gate passes what is equal and names what is not."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.export.parity import (
    MIN_COSINE,
    ParityError,
    check_parity,
    in_mixed_batches,
    parity_sentences,
)

Embeddings = NDArray[np.float32]
SENTENCES = [f"sentence number {index}" for index in range(70)]


def embed(sentences: Sequence[str], *, dim: int = 8) -> Embeddings:
    """A stand-in encoder: each text has its own reproducible unit vector."""
    seeds = [sum(map(ord, sentence)) * 31 + len(sentence) for sentence in sentences]
    rows = np.stack([np.random.default_rng(seed).normal(size=dim) for seed in seeds])
    unit: Embeddings = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def test_equal_encoders_pass_with_zero_difference() -> None:
    """The report says how many sentences were compared."""
    right = embed(SENTENCES)
    report = check_parity("fp32", SENTENCES, onnx=embed, torch=right, unrounded=right)
    assert (report.sentences, report.max_abs_diff, report.batch_max_abs_diff) == (70, 0, 0)
    assert report.min_cosine == pytest.approx(1)


def test_mixed_batches_give_rows_back_in_order() -> None:
    """Batches of many sizes are used, and their rows return to their sentences."""
    sizes = []

    def watched(sentences: Sequence[str]) -> Embeddings:
        sizes.append(len(sentences))
        return embed(sentences)

    np.testing.assert_array_equal(in_mixed_batches(watched, SENTENCES), embed(SENTENCES))
    assert len(set(sizes)) > 1


def test_a_difference_to_torch_is_refused() -> None:
    """One component off by 2e-5 at one sentence is enough."""
    right = embed(SENTENCES)
    torch = right.copy()
    torch[41, 3] += 2e-5
    with pytest.raises(ParityError, match=r"differs from torch by 2\.0.e-05"):
        check_parity("fp32", SENTENCES, onnx=embed, torch=torch, unrounded=right)


def test_rounded_activations_need_not_be_torchs() -> None:
    """In fp16 and int8 the bound is the cosine's."""
    right = embed(SENTENCES)
    torch = right.copy()
    torch[41, 3] += 2e-5
    for precision in ("fp16", "int8"):
        report = check_parity(precision, SENTENCES, onnx=embed, torch=torch, unrounded=right)
        assert report.max_abs_diff > 1e-5


@pytest.mark.parametrize("precision", ["fp32", "weight-int8", "int8"])
def test_an_embedding_that_depends_on_its_batch_is_refused(precision: str) -> None:
    """Even when every mixed batch agrees with torch."""

    def dependent(sentences: Sequence[str]) -> Embeddings:
        return embed(sentences) + (np.float32(3e-5) if len(sentences) == 1 else np.float32(0))

    right = embed(SENTENCES)
    with pytest.raises(ParityError, match=r"from itself in another batch by 3"):
        check_parity(precision, SENTENCES, onnx=dependent, torch=right, unrounded=right)


@pytest.mark.parametrize("precision", MIN_COSINE)
def test_a_low_cosine_to_the_checkpoint_names_the_sentence(precision: str) -> None:
    """The bound depends on the precision; a wrong direction fails all of them."""
    right = embed(SENTENCES)
    unrounded = right.copy()
    unrounded[17] *= -1
    with pytest.raises(ParityError, match="sentence number 17"):
        check_parity(precision, SENTENCES, onnx=embed, torch=right, unrounded=unrounded)


def test_vectors_that_are_not_numbers_are_refused() -> None:
    """NaN compares false with every bound, and must not pass for it."""
    right = embed(SENTENCES)

    def broken(sentences: Sequence[str]) -> Embeddings:
        return embed(sentences) * np.float32(np.nan)

    with pytest.raises(ParityError):
        check_parity("fp16", SENTENCES, onnx=broken, torch=right, unrounded=right)


def test_built_in_sentences_are_of_very_different_lengths() -> None:
    """Mixed lengths are what makes padding matter."""
    lengths = [len(sentence) for sentence in parity_sentences()]
    assert min(lengths) < 10
    assert max(lengths) > 300
    assert len(set(parity_sentences())) == len(parity_sentences())
