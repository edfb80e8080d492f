"""Limits on the number of JSON values in a body, counted while it arrives and before it is parsed.

Parsing time grows with the number of objects, not of bytes: eight megabytes hold two thousand long
texts, or two million one-element lists that keep orjson busy for more than a second. orjson holds
the GIL throughout, so a thread would not help; such a body has to be refused before it is parsed.
"""

from typing import Self

from s2sent.service.errors import PayloadTooLarge
from s2sent.service.settings import Settings

# Strings, lists and objects allowed for each text of the largest request: a text may come with a
# few fields that are ignored. OTHER_PARTS is for the request's own fields.
PARTS_PER_TEXT = 16
OTHER_PARTS = 1_024
# Bytes of the largest body for each value allowed: token ids have five digits and a comma.
BYTES_PER_VALUE = 8


class JsonBudget:
    """Counts the parts (strings, keys, lists, objects) and values of one body against limits."""

    def __init__(self, *, max_parts: int, max_values: int) -> None:
        self._max_parts = max_parts
        self._max_values = max_values
        self._quotes = self._brackets = self._commas = 0
        self._backslash = b""
        # A part or a value takes a byte at least: fewer bytes than a limit need not be counted.
        self._safe_bytes = min(max_parts, max_values)
        self._uncounted = b""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The budget of one body under these settings."""
        return cls(
            max_parts=PARTS_PER_TEXT * settings.max_client_batch_size + OTHER_PARTS,
            max_values=settings.max_body_bytes // BYTES_PER_VALUE,
        )

    def feed(self, chunk: bytes) -> None:
        """Count the next chunk of the body; raises PayloadTooLarge above a limit.

        The counts of a body that is not JSON mean nothing; parsing it fails later.
        """
        chunk = self._uncounted + chunk
        if len(chunk) < self._safe_bytes:
            self._uncounted = chunk
            return
        self._safe_bytes, self._uncounted = 0, b""
        # Without escapes every quote begins or ends a string. A backslash that ends a chunk is
        # kept for the next one.
        chunk = (self._backslash + chunk).replace(rb"\\", b"").replace(rb"\"", b"")
        self._backslash = b"\\" if chunk.endswith(b"\\") else b""
        in_string = self._quotes % 2
        self._quotes += chunk.count(b'"')
        self._check()  # bounds the number of strings that the next line creates
        outside = b"".join(chunk.split(b'"')[in_string::2])
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
