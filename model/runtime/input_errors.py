"""The errors of texts that cannot be tokenised or embedded as asked."""

from typing import Self

from s2sent.model.artifact.errors import UserError


class UnusableInput(UserError, ValueError):
    """A text that cannot be tokenised as asked; ``index`` is its position in the call.

    ``complaint`` is the rest of the sentence that begins with "input 3".
    """

    def __init__(self, index: int, complaint: str) -> None:
        super().__init__(f"input {index} {complaint}")
        self.index = index
        self.complaint = complaint


class InputTooLong(UnusableInput):
    """A text does not fit, and truncation was declined."""

    @classmethod
    def of(cls, index: int, found: str, limit: int) -> Self:
        """The error of a text that has more than ``limit`` tokens or characters."""
        complaint = f"has {found}; the limit is {limit}. Shorten it or allow truncation."
        return cls(index, complaint)


class InvalidTokenIds(UnusableInput):
    """A row of token ids has an id outside the vocabulary, or is not in the model's template."""
