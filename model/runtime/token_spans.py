"""Token spans: which bytes of a text each of its tokens covers; the token of what is unknown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray


@dataclass(slots=True)
class TokenSpan:
    """A token and the bytes [start, stop) of the text in UTF-8 it covers; none if it is special.

    A token of the model's template is special too.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def spans_of(encoding: tokenizers.Encoding, framed: str, text: str, ahead: int) -> list[TokenSpan]:
    """The tokens of ``framed``, which has ``ahead`` characters more than ``text`` in front.

    What cleaning has added behind the text is special.
    """
    byte, end = _byte_offsets(text), ahead + len(text)
    columns = (encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask)
    spans = []
    for id_, token, (start, stop), special in zip(*columns, strict=True):
        if special or start >= end:
            spans.append(TokenSpan(id_, token, True, None, None))
        else:
            first, last = (max(min(place, end) - ahead, 0) for place in (start, stop))
            spans.append(TokenSpan(id_, framed[start:stop], False, byte[first], byte[last]))
    return spans


def unknown_id_of(tokenizer: tokenizers.Tokenizer, content: bytes) -> int | None:
    """The token of what the vocabulary lacks, such as ``[UNK]``; None where it lacks nothing.

    ``content`` is the tokenizer.json: of a Unigram model the library does not give the id.
    """
    name = getattr(tokenizer.model, "unk_token", None)
    if name is not None:
        known: int | None = tokenizer.token_to_id(name)
        return known
    given = re.search(rb'"unk_id"\s*:\s*(\d+)', content)
    return int(given[1]) if given else None


def _byte_offsets(text: str) -> Sequence[int]:
    """Where each character begins in UTF-8, and where the text ends: ``len(text) + 1`` numbers."""
    if text.isascii():
        return range(len(text) + 1)
    code_points: NDArray[np.uint32] = np.frombuffer(text.encode("utf-32-le"), "<u4")
    widths = 1 + sum((code_points >= first).astype(int) for first in (0x80, 0x800, 0x10000))
    offsets: list[int] = np.concatenate(([0], np.cumsum(widths))).tolist()
    return offsets
