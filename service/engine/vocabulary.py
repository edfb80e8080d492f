"""The model's vocabulary as clients look at it: the pieces of a text, and the text of token ids."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from model.runtime.tokenizer import Tokenizer
from service.errors import InvalidInput


class Piece(TypedDict):
    """A token and its place in the text, in bytes of UTF-8; special tokens have no place."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Vocabulary:
    """Takes texts apart and puts them together. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def pieces(self, text: str, *, add_special_tokens: bool) -> list[Piece]:
        """Every token of a text, however long it is."""
        byte = _byte_offsets(text)
        return [
            Piece(id=id_, text=token, special=True, start=None, stop=None)
            if special
            else Piece(id=id_, text=text[a:b], special=False, start=byte[a], stop=byte[b])
            for id_, token, (a, b), special in self._tokenizer.token_spans(
                text, add_special_tokens=add_special_tokens
            )
        ]

    def text(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids. Raises InvalidInput for an id that is not of this vocabulary."""
        size = self._tokenizer.vocab_size
        if max(ids) >= size:
            raise InvalidInput(
                f"ids has {max(ids)}; this vocabulary has ids 0 to {size - 1}.", param="ids"
            )
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def _byte_offsets(text: str) -> Sequence[int]:
    """Where each character begins in UTF-8, and where the text ends: ``len(text) + 1`` numbers."""
    if text.isascii():
        return range(len(text) + 1)
    code_points: NDArray[np.uint32] = np.frombuffer(text.encode("utf-32-le"), "<u4")
    widths = 1 + sum((code_points >= first).astype(int) for first in (0x80, 0x800, 0x10000))
    offsets: list[int] = np.concatenate(([0], np.cumsum(widths))).tolist()
    return offsets
