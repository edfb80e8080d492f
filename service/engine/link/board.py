"""What HTTP processes and the engine process read of each other at any time, in shared memory.

Numbers are 64 bits wide and aligned, so that a reader sees an old or a new one, never half of each.
"""

import mmap
from typing import Self

from s2sent.service.lanes import LANES, Lane

_TIMED: tuple[Lane | None, ...] = (*LANES, None)
_ROW = 16  # numbers; the first row is the engine process's
NUMBERS = 65_536  # of parts that a process knows apart; later ones take the place of earlier ones


class Board:
    """The engine's load, how many requests each process works on, and which parts have started."""

    def __init__(self, memory: mmap.mmap, processes: int) -> None:
        self._processes = processes
        rows = 8 * _ROW * (1 + processes)
        view = memoryview(memory)
        self._numbers = view[:rows].cast("d")
        self._started = view[rows:]

    @classmethod
    def of(cls, descriptor: int, processes: int) -> Self:
        """The board in the file of a descriptor, whose `size` must be right."""
        return cls(mmap.mmap(descriptor, cls.size(processes)), processes)

    @staticmethod
    def size(processes: int) -> int:
        """Bytes of a board; what is never written to takes no memory."""
        return 8 * _ROW * (1 + processes) + NUMBERS * processes

    def publish(self, tokens: dict[Lane, int], seconds: dict[Lane | None, float]) -> None:
        """Write what waits in each lane, and how long each lane takes, and all of it."""
        for at, lane in enumerate(LANES):
            self._numbers[at] = tokens[lane]
        for at, which in enumerate(_TIMED, len(LANES)):
            self._numbers[at] = seconds[which]

    def tokens_in(self, lane: Lane) -> int:
        return int(self._numbers[LANES.index(lane)])

    def seconds_to_empty(self, lane: Lane | None = None, more_tokens: int = 0) -> float:
        """How long what waits in a lane, or in both, will take; what is to come is not known."""
        return self._numbers[len(LANES) + _TIMED.index(lane)]

    @property
    def in_flight(self) -> int:
        return int(sum(self._numbers[_ROW * (1 + at)] for at in range(self._processes)))

    def set_in_flight(self, process: int, requests: int) -> None:
        self._numbers[_ROW * (1 + process)] = requests

    def set_started(self, process: int, number: int, started: bool) -> None:
        """Write whether a part of a process has been handed to the encoder."""
        self._started[NUMBERS * process + number % NUMBERS] = started

    def has_started(self, process: int, number: int) -> bool:
        return bool(self._started[NUMBERS * process + number % NUMBERS])
