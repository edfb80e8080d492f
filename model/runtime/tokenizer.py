"""Tokenization: texts to token ids with special tokens or a template, truncated, without padding.

A thin layer over the ``tokenizers`` library (https://huggingface.co/docs/tokenizers). Truncation is
done here because the library keeps it as state of the tokenizer, which requests with different
options share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tokenizers

from s2sent.model.artifact.template import Template
from s2sent.model.runtime.input_errors import InputTooLong, InvalidTokenIds, UnusableInput
from s2sent.model.runtime.special_tokens import is_special, special_tokens_around
from s2sent.model.runtime.token_spans import TokenSpan, spans_of, unknown_id_of
from s2sent.model.runtime.windows import Windows, common_length

TruncationDirection = Literal["left", "right"]

# A text with more characters than this per token that is kept is cut before tokenization, which
# bounds the work for one text. Real text has far fewer characters per WordPiece token.
MAX_CHARACTERS_PER_TOKEN = 250

# Texts per call into the library. The results of a call are created and freed while it holds the
# GIL; a call with thousands of long texts would block the event loop for 0.1 s.
SLICE_TEXTS = 64


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The token ids of one text, special or template tokens included; ``len`` is their number.

    A token that is attended to and not pooled, one of a prompt, is there as ``~id``, below 0.
    ``more`` has the windows after the first, which is ``input_ids``, of a text that was split.
    """

    input_ids: list[int]
    truncated: bool
    more: Sequence[list[int]] = ()

    def __len__(self) -> int:
        return len(self.input_ids) + sum(map(len, self.more))


class Tokenizer:
    """Turns texts into at most ``max_seq_length`` token ids each. Safe to share between threads.

    With a template each text stands between its tokens instead of special ones; truncation cuts
    the text, never the template, and special tokens spelled out in a text are text.
    """

    def __init__(
        self,
        source: str | Path | bytes,
        max_seq_length: int,
        template: Template | None = None,
        *,
        pools_prompts: bool = True,
    ) -> None:
        """``source`` is the path of a tokenizer.json, or what it holds.

        Without ``pools_prompts`` the tokens of a prompt, and the special ones before it, are marked
        as not pooled.
        Raises ValueError where special tokens or template leave no room for a text.
        """
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.max_seq_length = max_seq_length
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.unknown_id = unknown_id_of(self._tokenizer, content)
        self._pools_prompts = pools_prompts
        self._prompts: dict[str, tuple[list[int], int]] = {}
        self._template = template
        if template:
            self._tokenizer.encode_special_tokens = True
            self._prefix, self._suffix = [*template.prefix], [*template.suffix]
        else:
            self._prefix, self._suffix = special_tokens_around(self._tokenizer)
        self._room = max_seq_length - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise ValueError(
                f"max_seq_length {max_seq_length} leaves no room beside"
                f" {max_seq_length - self._room} {'template' if template else 'special'} tokens;"
                " raise it."
            )

    def tokenize(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        prompt: str = "",
        truncate: bool = True,
        truncation_direction: TruncationDirection = "right",
        windows: Windows | None = None,
    ) -> list[TokenizedText]:
        """Token ids per text, in order.

        ``windows`` splits a string that is too long instead of cutting it; one that is longer than
        all windows is cut. Each window has the prompt, as far as its tokens are the text's first.

        ``prompt`` is put before every string. A row that is already a list of token ids is taken
        as it is: no prompt and no special tokens are added, and where there is a template the row
        must begin and end with it. A text has no ids where none would be pooled. Raises
        `InputTooLong` when a text does not fit and ``truncate`` is false, `UnusableInput` for a
        string behind a prompt that fills the row, unless it is cut on the left, and
        `InvalidTokenIds` for ids outside the vocabulary or not in the template.
        """
        cut_left = truncation_direction == "left"
        most = windows.most if windows else 1
        strings: list[str] = []
        cut: list[int] = []  # the texts of which not all characters are tokenised
        for index, text in enumerate(texts):
            if isinstance(text, str):
                if prompt and not cut_left:
                    self._require_room(prompt, index)
                framed = self._framed(prompt + text)
                strings.append(self._bounded(framed, index, most, truncate, cut_left))
                if len(strings[-1]) < len(framed):
                    cut.append(index)
        encoded = iter(self._encode(strings))
        asked, left_out = self._of_prompt(prompt)
        rows = [
            self._fitted(next(encoded), index, asked, left_out, windows, truncate, cut_left)
            if isinstance(text, str)
            else self._cut(*self._checked(text, index), truncate, cut_left)
            for index, text in enumerate(texts)
        ]
        for index in cut:
            rows[index] = replace(rows[index], truncated=True)
        return rows

    def row_length(self, prompt: str) -> int:
        """The tokens of a prompt without a text, special or template tokens included."""
        return self.max_seq_length - self._room + len(self._of_prompt(prompt)[0])

    def token_spans(self, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
        """Every token of a text, which is not truncated; a template's are special too."""
        if not (self._template and add_special_tokens):
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return spans_of(encoding, text, text, 0)
        prefix, suffix = (
            [TokenSpan(id_, self._tokenizer.id_to_token(id_), True, None, None) for id_ in ids]
            for ids in (self._prefix, self._suffix)
        )
        kept = text if self._template.clean_up == "none" else text.rstrip()
        framed = self._framed(text)
        encoding = self._tokenizer.encode(framed, add_special_tokens=False)
        return [*prefix, *spans_of(encoding, framed, kept, len(self._template.space)), *suffix]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids; all must be in the vocabulary."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it; all ids must be in the vocabulary."""
        return [self._tokenizer.id_to_token(token_id) for token_id in ids]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if len(texts) == 1:  # the batch call's thread pool costs more than one short text
            return [self._tokenizer.encode(texts[0], add_special_tokens=False).ids]
        rows: list[list[int]] = []
        for start in range(0, len(texts), SLICE_TEXTS):
            part = texts[start : start + SLICE_TEXTS]
            encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            rows += [encoding.ids for encoding in encodings]
        return rows

    def _framed(self, text: str) -> str:
        """The text as it is tokenised: cleaned, with what is part of its first token."""
        return self._template.text(text) if self._template else text

    def _cut(
        self,
        ids: list[int],
        index: int,
        prefix: list[int],
        suffix: list[int],
        truncate: bool,
        cut_left: bool,
    ) -> TokenizedText:
        """A row of ``ids`` between prefix and suffix, which are never cut.

        It is empty where a template's prefix is all there would be, or tokens that are not pooled:
        no token is left to read.
        """
        if self._template and not ids and not suffix:
            return TokenizedText([], truncated=False)
        room = self.max_seq_length - len(prefix) - len(suffix)
        truncated = len(ids) > room
        if truncated:
            if not truncate:
                own = f", {self._template.length} of them the template's" if self._template else ""
                found = f"{len(prefix) + len(ids) + len(suffix)} tokens{own}"
                raise InputTooLong.of(index, found, self.max_seq_length)
            ids = ids[-room:] if cut_left else ids[:room]
        row = [*prefix, *ids, *suffix]
        if row and row[-1] < 0:  # as are all before it
            return TokenizedText([], truncated=False)
        return TokenizedText(row, truncated)

    def _fitted(
        self,
        ids: list[int],
        index: int,
        prompt: list[int],
        left_out: int,
        windows: Windows | None,
        truncate: bool,
        cut_left: bool,
    ) -> TokenizedText:
        """A text's ids with the tokens around them: as they are, in windows, or cut."""
        prefix, inside = _not_pooled(self._prefix, left_out), left_out - len(self._prefix)
        ids = _not_pooled(ids, inside)
        if windows is None or len(ids) <= self._room:
            return self._cut(ids, index, prefix, self._suffix, truncate, cut_left)
        lead = ids[: common_length(_not_pooled(prompt, inside), ids)]
        room = self._room - len(lead)
        if room < 1:
            return self._cut(ids, index, prefix, self._suffix, truncate, cut_left)
        rest, limit = ids[len(lead) :], windows.limit(room)
        truncated = len(rest) > limit
        if truncated:
            if not truncate:
                limit += len(self._prefix) + len(lead) + len(self._suffix)
                raise InputTooLong(
                    index,
                    f"has {len(ids) + len(self._prefix) + len(self._suffix)} tokens; {windows.most}"
                    f" windows hold {limit}. Shorten it or allow truncation.",
                )
            rest = rest[-limit:] if cut_left else rest[:limit]
        first, *more = (
            [*prefix, *lead, *window, *self._suffix] for window in windows.split(rest, room)
        )
        return TokenizedText(first, truncated, more)

    def _of_prompt(self, prompt: str) -> tuple[list[int], int]:
        """The ids of a prompt alone, and how many tokens of a row that has it are not pooled.

        They are as sentence-transformers counts them: without one special token at the end.
        https://github.com/huggingface/sentence-transformers (Transformer._get_prompt_length)
        """
        if not prompt:
            return [], 0
        if prompt not in self._prompts:
            (ids,) = self._encode([self._framed(prompt)])
            row = [*self._prefix, *ids[: self._room], *self._suffix]
            end = self._suffix or [each for each in row[-1:] if is_special(self._tokenizer, each)]
            left_out = 0 if self._pools_prompts else len(row) - bool(end)
            self._prompts[prompt] = ids, left_out
        return self._prompts[prompt]

    def _bounded(self, text: str, index: int, most: int, truncate: bool, cut_left: bool) -> str:
        limit = MAX_CHARACTERS_PER_TOKEN * self.max_seq_length * most
        if len(text) <= limit:
            return text
        if not truncate:
            raise InputTooLong.of(index, f"{len(text)} characters", limit)
        return text[-limit:] if cut_left else text[:limit]

    def _require_room(self, prompt: str, index: int) -> None:
        if (length := self.row_length(prompt)) >= self.max_seq_length:
            raise UnusableInput(
                index,
                f"stands behind a prompt that has {length} tokens with the special ones; the limit"
                f" for both is {self.max_seq_length}. Choose another prompt, or none.",
            )

    def _checked(
        self, ids: Sequence[int], index: int
    ) -> tuple[list[int], int, list[int], list[int]]:
        """What `_cut` takes of a row of ids: the ids that may be cut, and what stands around."""
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidTokenIds(
                    index,
                    f"has the token id {token_id}; this vocabulary has ids 0 to"
                    f" {self.vocab_size - 1}. Send the text instead.",
                )
        if not self._template:
            return list(ids), index, [], []
        start, stop = len(self._prefix), len(ids) - len(self._suffix)
        if start > stop or [*ids[:start], *ids[stop:]] != self._prefix + self._suffix:
            raise InvalidTokenIds(
                index,
                "does not begin and end with the tokens of this model's template. Send the text,"
                " or the ids that /tokenize answers.",
            )
        return list(ids[start:stop]), index, self._prefix, self._suffix


def _not_pooled(ids: list[int], count: int) -> list[int]:
    """The ids, the first ``count`` of them marked as not pooled."""
    return [*(~token for token in ids[:count]), *ids[count:]] if count > 0 else ids
