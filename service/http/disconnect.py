"""The end of one connection: callbacks for when its client leaves, and a way to cut it off."""

import asyncio
from collections.abc import Callable

# Key of a connection's signal in the ASGI ``state`` of each of its requests.
DISCONNECT_STATE = "disconnect"


class DisconnectSignal:
    """Fires once, when the connection is lost, and calls every callback added by then.

    ASGI reports a disconnect as a message, which a second task per request would have to await;
    a callback costs no task.
    """

    __slots__ = ("_abort", "_callbacks", "_fired")

    def __init__(self, abort: Callable[[], None] = lambda: None) -> None:
        """``abort`` ends the connection at once, whatever is unsent, which fires the signal."""
        self._abort = abort
        self._fired = False
        self._callbacks: set[Callable[[], object]] = set()

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the signal fires; at once if it has fired already."""
        if self._fired:
            callback()
        else:
            self._callbacks.add(callback)

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Forget a callback; one that was called already, or never added, is ignored."""
        self._callbacks.discard(callback)

    async def cut_off(self) -> None:
        """End the connection, and wait until it has ended."""
        ended = asyncio.Event()
        self.add_callback(ended.set)
        self._abort()
        await ended.wait()

    def fire(self) -> None:
        """Call every callback. Firing again has no effect."""
        self._fired = True
        while self._callbacks:
            self._callbacks.pop()()
