"""The texts that every system is asked for: short ones from a file, long ones joined from them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

from s2sent.model.export.parity import parity_sentences
from s2sent.model.runtime.tokenizer import Tokenizer

Kind = Literal["short", "long"]

LONG_TOKENS = (128, 256)  # special tokens included; 256 is where all-MiniLM-L6-v2 cuts
NUM_LONG_TEXTS = 256


@dataclass(frozen=True)
class Texts:
    """What is sent, in a fixed order, and the tokens per text, special tokens included."""

    short: list[str]
    long: list[str]
    tokens: dict[Kind, dict[str, float]]

    def of(self, kind: Kind) -> list[str]:
        """The texts of one kind."""
        return self.short if kind == "short" else self.long


def read_texts(path: Path | None) -> list[str]:
    """One text a line, each once, shuffled with a fixed seed; the export's own without a file.

    The service runs equal texts of a batch once, and others do not.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path else list(parity_sentences())
    texts = [line for line in dict.fromkeys(lines) if line.strip()]
    random.Random(0).shuffle(texts)  # noqa: S311  a reproducible order, not a secret
    return texts


def prepare_texts(path: Path | None, tokenizer: Tokenizer) -> Texts:
    """The short texts and the long ones made of them, with their lengths."""

    def count_tokens(texts: Sequence[str]) -> list[int]:
        return [len(row) for row in tokenizer.tokenize(texts)]

    short = read_texts(path)
    long = join_long_texts(short, count_tokens)
    counts: dict[Kind, list[int]] = {"short": count_tokens(short), "long": count_tokens(long)}
    tokens = {
        kind: {"texts": len(lengths), "mean": mean(lengths), "longest": max(lengths)}
        for kind, lengths in counts.items()
    }
    return Texts(short, long, tokens)


def join_long_texts(
    texts: Sequence[str],
    count_tokens: Callable[[Sequence[str]], list[int]],
    *,
    num_texts: int = NUM_LONG_TEXTS,
    seed: int = 0,
) -> list[str]:
    """Texts of 128 to 256 tokens, each made of whole texts that were drawn with ``seed``.

    ``count_tokens`` gives the tokens of each text with its two special tokens. Raises ValueError
    when no text is short enough to be joined.
    """
    least, most = LONG_TOKENS
    choose = random.Random(seed)  # noqa: S311  as above
    # A piece longer than half of the most could leave a text below the least.
    lengths = zip(texts, (count - 2 for count in count_tokens(texts)), strict=True)
    pieces = [(text, length) for text, length in lengths if 0 < length <= most // 2]
    if not pieces:
        raise ValueError(
            f"No text has {most // 2} tokens or fewer: give --texts with shorter ones."
        )
    long = []
    for _ in range(num_texts):
        target, chosen, total = choose.randint(least, most), list[str](), 2
        while total < target:
            text, length = choose.choice(pieces)
            if total + length > most:
                break
            chosen.append(text)
            total += length
        long.append(" ".join(chosen))
    return long
