"""Client-disconnect callbacks of one connection."""

from collections.abc import Callable

# Key of a connection's signal in the ASGI ``state`` of each of its requests.
DISCONNECT_STATE = "disconnect"


class DisconnectSignal:
    """Fires once, when the connection is lost, and calls every callback added by then.

    ASGI reports a disconnect as a message, which a second task per request would have to await;
    a callback costs no task.
    """

    __slots__ = ("_callbacks", "_fired")

    def __init__(self) -> None:
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

    def fire(self) -> None:
        """Call every callback. Firing again has no effect."""
        self._fired = True
        while self._callbacks:
            self._callbacks.pop()()
