"""A template as token ids: what stands before and after each sentence, and which token is read.

The tokenizer cuts the sentence and never the template. Training writes templates into checkpoints,
export writes them into the manifest, and the service puts sentences into them with this module.
Only the standard library is imported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

CleanUp = Literal["none", "full_stop", "statement"]
CLEAN_UPS = get_args(CleanUp)

SENTENCE_ENDS = (".", "?", '"', "'")  # a text that ends in one of these gets no full stop


@dataclass(frozen=True)
class Template:
    """What stands around a sentence.

    prefix, suffix: token ids, the tokenizer's special tokens included.
    read: the place in the row of the token whose state is the sentence's, counted from the end if
        negative; None where all tokens are pooled.
    space: what parts prefix and sentence; byte-level tokenizers make it part of the next token.
    clean_up: what is done to a sentence first. "full_stop" ends it with a full stop unless it ends
        in . ? " or ' (PromptBERT's evaluation); "statement" also turns " into ' and a question
        mark at the end into a full stop (CSE-SFP's).
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    read: int | None
    space: str = ""
    clean_up: CleanUp = "none"

    @property
    def length(self) -> int:
        """The number of tokens of the template without a sentence."""
        return len(self.prefix) + len(self.suffix)

    def text(self, sentence: str) -> str:
        """What is given to the tokenizer, without special tokens, for a sentence."""
        return self.space + _CLEANED[self.clean_up](sentence)

    def row(self, ids: Sequence[int]) -> list[int]:
        """The token ids of a sentence inside the template."""
        return [*self.prefix, *ids, *self.suffix]


def with_full_stop(text: str) -> str:
    """A text with a full stop unless it has an end; PromptBERT's evaluation (arXiv 2201.04337)."""
    text = text.rstrip()
    return text if not text or text.endswith(SENTENCE_ENDS) else f"{text}."


def as_statement(text: str) -> str:
    """A text as CSE-SFP embeds it: with a full stop, ' for ", and no question mark at the end."""
    text = with_full_stop(text).replace('"', "'")
    return f"{text[:-1]}." if text.endswith("?") else text


_CLEANED: dict[CleanUp, Callable[[str], str]] = {
    "none": lambda text: text,
    "full_stop": with_full_stop,
    "statement": as_statement,
}
