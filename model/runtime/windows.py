"""Windows of a text that is longer than the model reads: neighbouring sequences that overlap."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Windows:
    """How a text that is too long is split: into at most ``most`` windows of neighbouring tokens.

    Neighbours share ``overlap`` tokens, and half of a window at most.
    """

    most: int
    overlap: int

    def limit(self, room: int) -> int:
        """The tokens that all windows hold, each with room for ``room``."""
        return room + (self.most - 1) * self._step(room)

    def split(self, ids: list[int], room: int) -> list[list[int]]:
        """The windows of at most `limit` ids; the last one ends with the last id."""
        step = self._step(room)
        starts = range(0, max(1, len(ids) - (room - step)), step)
        return [ids[start : start + room] for start in starts]

    def _step(self, room: int) -> int:
        return room - min(self.overlap, room // 2)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of their first ids are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
