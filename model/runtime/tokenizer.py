"""Tokenization: texts to token ids with special tokens and truncation, without padding.

A thin layer over the ``tokenizers`` library (https://huggingface.co/docs/tokenizers). Truncation is
done here because the library keeps it as state of the tokenizer, which requests with different
options share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

TruncationDirection = Literal["left", "right"]

# A text with more characters than this per token that is kept is cut before tokenization, which
# bounds the work for one text. Real text has far fewer characters per WordPiece token.
MAX_CHARACTERS_PER_TOKEN = 250

# Texts per call into the library. The results of a call are created and freed while it holds the
# GIL; a call with thousands of long texts would block the event loop for 0.1 s.
SLICE_TEXTS = 64


class UnusableInput(ValueError):
    """A text that cannot be tokenised as asked; ``index`` is its position in the call.

    ``complaint`` is the rest of the sentence that begins with "input 3".
    """

    def __init__(self, index: int, complaint: str) -> None:
        super().__init__(f"input {index} {complaint}")
        self.index = index
        self.complaint = complaint


class InputTooLong(UnusableInput):
    """A text does not fit, and truncation was declined."""


class InvalidTokenIds(UnusableInput):
    """A row of token ids has an id outside the vocabulary."""


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The token ids of one text, special tokens included; ``len`` is the number of tokens."""

    input_ids: list[int]
    truncated: bool

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(slots=True)
class TokenSpan:
    """A token and the bytes [start, stop) of the text in UTF-8 it covers; none if it is special."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Tokenizer:
    """Turns texts into at most ``max_seq_length`` token ids each. Safe to share between threads."""

    def __init__(self, source: str | Path | bytes, max_seq_length: int) -> None:
        """``source`` is the path of a tokenizer.json, or what it holds."""
        self._tokenizer = (
            tokenizers.Tokenizer.from_buffer(source)
            if isinstance(source, bytes)
            else tokenizers.Tokenizer.from_file(str(source))
        )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.max_seq_length = max_seq_length
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._prefix, self._suffix = self._special_tokens()
        self._room = max_seq_length - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise ValueError(
                f"max_seq_length {max_seq_length} leaves no room beside"
                f" {max_seq_length - self._room} special tokens; raise it."
            )

    def tokenize(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        prompt: str = "",
        truncate: bool = True,
        truncation_direction: TruncationDirection = "right",
    ) -> list[TokenizedText]:
        """Token ids per text, in order.

        ``prompt`` is put before every string. A row that is already a list of token ids is taken
        as it is: no prompt and no special tokens are added. Raises `InputTooLong` when a text does
        not fit and ``truncate`` is false, and `InvalidTokenIds` for ids outside the vocabulary.
        """
        keep_left = truncation_direction == "left"
        strings = [
            self._bounded(prompt + text, index, truncate, keep_left)
            for index, text in enumerate(texts)
            if isinstance(text, str)
        ]
        encoded = iter(self._encode(strings))
        rows = []
        for index, text in enumerate(texts):
            if isinstance(text, str):
                ids, room = next(encoded), self._room
            else:
                ids, room = self._checked(text, index), self.max_seq_length
            truncated = len(ids) > room
            if truncated:
                if not truncate:
                    raise self._too_long(index, len(ids) + self.max_seq_length - room)
                ids = ids[-room:] if keep_left else ids[:room]
            if isinstance(text, str):
                ids = [*self._prefix, *ids, *self._suffix]
            rows.append(TokenizedText(ids, truncated))
        return rows

    def token_spans(self, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
        """Every token of a text, which is not truncated."""
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        byte = _byte_offsets(text)
        columns = (encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask)
        return [
            TokenSpan(id_, token, True, None, None)
            if special
            else TokenSpan(id_, text[start:stop], False, byte[start], byte[stop])
            for id_, token, (start, stop), special in zip(*columns, strict=True)
        ]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids; all must be in the vocabulary."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if len(texts) == 1:  # the batch call's thread pool costs more than one short text
            return [self._tokenizer.encode(texts[0], add_special_tokens=False).ids]
        rows: list[list[int]] = []
        for start in range(0, len(texts), SLICE_TEXTS):
            part = texts[start : start + SLICE_TEXTS]
            encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            rows += [encoding.ids for encoding in encodings]
        return rows

    def _bounded(self, text: str, index: int, truncate: bool, keep_left: bool) -> str:
        limit = MAX_CHARACTERS_PER_TOKEN * self.max_seq_length
        if len(text) <= limit:
            return text
        if not truncate:
            raise InputTooLong(
                index,
                f"has {len(text)} characters; the limit is {limit}."
                " Shorten it or allow truncation.",
            )
        return text[-limit:] if keep_left else text[:limit]

    def _too_long(self, index: int, num_tokens: int) -> InputTooLong:
        return InputTooLong(
            index,
            f"has {num_tokens} tokens; the limit is {self.max_seq_length}."
            " Shorten it or allow truncation.",
        )

    def _checked(self, ids: Sequence[int], index: int) -> list[int]:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidTokenIds(
                    index,
                    f"has the token id {token_id}; this vocabulary has ids 0 to"
                    f" {self.vocab_size - 1}. Send the text instead.",
                )
        return list(ids)

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """The ids the tokenizer puts before and after a single text, found with a probe."""
        probe = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(probe) + 1):
            if whole[start : start + len(probe)] == probe:
                return whole[:start], whole[start + len(probe) :]
        raise ValueError("the tokenizer changes a text's ids when it adds special tokens")


def _byte_offsets(text: str) -> Sequence[int]:
    """Where each character begins in UTF-8, and where the text ends: ``len(text) + 1`` numbers."""
    if text.isascii():
        return range(len(text) + 1)
    code_points: NDArray[np.uint32] = np.frombuffer(text.encode("utf-32-le"), "<u4")
    widths = 1 + sum((code_points >= first).astype(int) for first in (0x80, 0x800, 0x10000))
    offsets: list[int] = np.concatenate(([0], np.cumsum(widths))).tolist()
    return offsets
