"""The parity check of an export: ONNX embeddings against torch's, on real text in mixed batches."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.errors import UserError
from s2sent.model.runtime.encoder import OnnxEncoder

Embeddings = NDArray[np.float32]  # [n, dim], L2-normalised
Encode = Callable[[Sequence[str]], Embeddings]

# fp32 kernels of two libraries, or for two shapes, differ in the last bits only.
MAX_ABS_DIFF = 1e-5
# The precisions whose difference to torch is bounded by it: those that do not round activations.
SAME_AS_TORCH = frozenset(("fp32", "weight-int8"))
# The precisions whose difference between batches is: fp16 sums depend on the order of summation.
SAME_IN_ANY_BATCH = SAME_AS_TORCH | {"int8"}
# The least cosine to the unrounded model, at the worst sentence.
MIN_COSINE = {"fp32": 0.99999, "fp16": 0.9995, "weight-int8": 0.997, "int8": 0.99}
LEAST_TOKENS = 4  # of a sentence, in the mean, for which a vocabulary has the letters
_CHOOSE = (
    "The graph does not compute what the checkpoint does: choose a backbone of a family in"
    " docs/encoders.md with the usual settings."
)


class ParityError(UserError):
    """The graph does not give torch's vectors, or nothing shows it; nothing is written."""


@dataclass(frozen=True)
class ParityReport:
    """The result of a parity check, as the manifest records it.

    sentences: how many were compared.
    max_abs_diff: ONNX against torch with the same weights, after rounding where they were rounded.
    batch_max_abs_diff: a text alone against the same text in mixed batches.
    min_cosine, mean_cosine: against the model before any rounding.
    """

    sentences: int
    max_abs_diff: float
    batch_max_abs_diff: float
    min_cosine: float
    mean_cosine: float


@cache
def parity_sentences() -> tuple[str, ...]:
    """The sentences an export is checked on unless it is given others: short, long and foreign."""
    text = (
        resources.files("s2sent.model.export")
        .joinpath("parity_sentences.txt")
        .read_text(encoding="utf-8")
    )
    return tuple(line for line in text.splitlines() if line)


def sentences_for(tokenizer: Any) -> tuple[str, ...]:
    """The built-in sentences, or texts of a vocabulary's own tokens where it has few for those.

    ``tokenizer`` is one of the library tokenizers, which drops letters that it does not have, or
    gives the same token for all of them.
    """
    built_in = parity_sentences()
    found = Counter[int]()
    for encoding in tokenizer.encode_batch(list(built_in), add_special_tokens=False):
        found.update(compress(encoding.ids, encoding.attention_mask))  # not of padding
    if found.total() > LEAST_TOKENS * len(built_in) and max(found.values()) < found.total() / 2:
        return built_in
    choose = random.Random(0)  # noqa: S311  # reproducible, not a secret
    ids = sorted(tokenizer.get_vocab().values())
    lengths = [choose.randint(1, 40) for _ in built_in]
    texts = tokenizer.decode_batch([choose.choices(ids, k=length) for length in lengths])
    return tuple(filter(None, texts)) or built_in


def checked_prompt_name(served: OnnxEncoder) -> str | None:
    """The prompt of the sentences that parity is checked on: the default one.

    Where prompts are left out of the pooling it is the shortest one with a text. Raises
    `ParityError` where it leaves no room for a sentence.
    """
    manifest = served.artifact.manifest
    left_out = {} if manifest.pools_prompts else manifest.prompts
    lengths = {name: len(prompt) for name, prompt in left_out.items() if prompt}
    name = min(lengths, key=lengths.__getitem__, default=manifest.default_prompt_name)
    prompt, limit = manifest.prompt(name), manifest.max_seq_length
    if prompt and (tokens := served.tokenizer.row_length(prompt)) >= limit:
        raise ParityError(
            f"the prompt {name!r} has {tokens} tokens with the special ones, and max_seq_length is"
            f" {limit}, which leaves no room for a text: shorten the prompt, or export with"
            f" --max-seq-length above {tokens}."
        )
    return name


def in_mixed_batches(encode: Encode, sentences: Sequence[str], *, seed: int = 0) -> Embeddings:
    """Encode in random batches of 1 to 33 sentences of any length; rows in the given order."""
    choose = random.Random(seed)  # noqa: S311  a reproducible shuffle, not a secret
    order = list(range(len(sentences)))
    choose.shuffle(order)
    rows: list[Embeddings] = []
    start = 0
    while start < len(order):
        batch = order[start : start + choose.randint(1, 33)]
        rows.append(encode([sentences[index] for index in batch]))
        start += len(batch)
    embeddings = np.empty((len(order), rows[0].shape[1]), dtype=np.float32)
    embeddings[order] = np.concatenate(rows)
    return embeddings


def check_parity(
    precision: str,
    sentences: Sequence[str],
    *,
    onnx: Encode,
    torch: Embeddings,
    unrounded: Embeddings,
) -> ParityReport:
    """Compare and report; raises `ParityError` naming the figure and its bound.

    ``torch`` are the embeddings of the weights that were exported, ``unrounded`` those of the
    checkpoint. In fp16 torch has no such weights, so only the cosine bound applies; in int8 that
    bound and the one between batches.
    """
    mixed = in_mixed_batches(onnx, sentences)
    alone = np.concatenate([onnx([sentence]) for sentence in sentences])
    cosines = np.sum(mixed * unrounded, axis=1)
    report = ParityReport(
        sentences=len(sentences),
        max_abs_diff=float(np.abs(mixed - torch).max()),
        batch_max_abs_diff=float(np.abs(mixed - alone).max()),
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
    )
    # NaN fails every comparison, so each bound is written as the condition to meet.
    if not report.min_cosine >= MIN_COSINE[precision]:
        worst = sentences[int(np.argmin(np.nan_to_num(cosines)))]
        raise ParityError(
            f"cosine to the checkpoint is {report.min_cosine:.6f} at worst; {precision} must reach"
            f" {MIN_COSINE[precision]} (sentence: {worst[:60]!r}). {_cure(precision)}"
        )
    bounded = [report.max_abs_diff] * (precision in SAME_AS_TORCH)
    bounded += [report.batch_max_abs_diff] * (precision in SAME_IN_ANY_BATCH)
    if not all(difference <= MAX_ABS_DIFF for difference in bounded):
        raise ParityError(
            f"ONNX differs from torch by {report.max_abs_diff:.2e} and from itself in another batch"
            f" by {report.batch_max_abs_diff:.2e}; the bound is {MAX_ABS_DIFF:.0e}. "
            f"{_cure(precision)}"
        )
    return report


def _cure(precision: str) -> str:
    if precision == "fp32":  # nothing was rounded
        return _CHOOSE
    return "Export it as fp32, or check it on sentences such as yours with --sentences FILE."


def parity_by_depth(
    depths: Sequence[int], compare: Callable[[int | None], ParityReport]
) -> dict[str, Any]:
    """The manifest's ``parity``: of full depth (None), and under ``depths`` of the others."""
    parity = asdict(compare(None))
    if depths:
        parity["depths"] = {str(depth): asdict(compare(depth)) for depth in depths}
    return parity
