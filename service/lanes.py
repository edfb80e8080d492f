"""The lanes of the queue: ``interactive`` for people who wait, ``bulk`` for work that may wait."""

from typing import Literal, get_args

from s2sent.service.errors import InvalidInput

Lane = Literal["interactive", "bulk"]
LANES: tuple[Lane, ...] = get_args(Lane)

HEADER = "x-priority"


def lane_of(asked: str | None, texts: int, *, key: Lane | None, interactive_texts: int) -> Lane:
    """The lane of a request: that of its header, else of its API key, else by its texts.

    Raises InvalidInput for a header that names no lane.
    """
    if asked is None:
        return key or ("interactive" if texts <= interactive_texts else "bulk")
    for lane in LANES:
        if asked == lane:
            return lane
    raise InvalidInput(
        f"{HEADER} is {asked[:80]!r}; it can be {' or '.join(LANES)}. Leave it out for the default."
    )
