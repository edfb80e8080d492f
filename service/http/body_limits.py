"""How much a JSON body is made of, counted while it arrives and before an object is made of it.

What costs time is not bytes but objects: eight megabytes hold two thousand long texts, or two
million lists of one number, which would keep the interpreter, and everybody's requests with it, for
more than a second. orjson holds Python's lock from the first byte to the last, so a thread would
not help; only not beginning does.
"""

from typing import Self

from service.errors import PayloadTooLarge
from service.settings import Settings

# Strings, lists and objects of a request, for each text it may have: a text may come with a few
# fields that are not ours and are ignored. The rest is for the request's own fields.
PARTS_PER_TEXT = 16
OTHER_PARTS = 1_024
# Bytes of the largest body for each value it may have: token ids have five digits and a comma.
BYTES_PER_VALUE = 8


class Structure:
    """The parts (strings, keys, lists, objects) and the values of one body, within limits."""

    def __init__(self, *, max_parts: int, max_values: int) -> None:
        self._max_parts = max_parts
        self._max_values = max_values
        self._quotes = self._brackets = self._commas = 0
        self._backslash = b""

    @classmethod
    def allowed_by(cls, settings: Settings) -> Self:
        """A body's structure within what the settings allow."""
        return cls(
            max_parts=PARTS_PER_TEXT * settings.max_client_batch_size + OTHER_PARTS,
            max_values=settings.max_body_bytes // BYTES_PER_VALUE,
        )

    def add(self, piece: bytes) -> None:
        """Count the next piece of the body; raises PayloadTooLarge when there is too much.

        What is not JSON is counted somehow: reading it will fail.
        """
        # Without escapes every quote begins or ends a string. A backslash before the cut waits.
        piece = (self._backslash + piece).replace(rb"\\", b"").replace(rb"\"", b"")
        self._backslash = b"\\" if piece.endswith(b"\\") else b""
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        self._check()  # so that the next line never makes many strings
        outside = b"".join(piece.split(b'"')[in_string::2])
        self._brackets += outside.count(b"[") + outside.count(b"{")
        self._commas += outside.count(b",")
        self._check()

    def _check(self) -> None:
        if self._quotes // 2 + self._brackets > self._max_parts:
            raise PayloadTooLarge(
                f"The body has more than {self._max_parts} strings, lists and objects. "
                "Send fewer texts at once."
            )
        if self._commas >= self._max_values:
            raise PayloadTooLarge(
                f"The body has more than {self._max_values} values. Send fewer token ids at once."
            )
