"""When a client leaves: told by the connection, to whoever works for the client meanwhile."""

from collections.abc import Callable

# Where `service.http.connection` leaves a connection's in the scope of each of its requests.
DEPARTURE = "s2sent.departure"


class Departure:
    """The end of one connection, and what is called when it comes, or at once where it has come.

    ASGI has this as a message, for which a task of its own would have to wait: that took a
    twentieth of the processor time that a short request takes beside the encoder.
    """

    __slots__ = ("_has_come", "_watchers")

    def __init__(self) -> None:
        self._has_come = False
        self._watchers: set[Callable[[], object]] = set()

    def watch(self, watcher: Callable[[], object]) -> None:
        """Calls ``watcher`` once, unless `unwatch` comes first."""
        if self._has_come:
            watcher()
        else:
            self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], object]) -> None:
        """Forgets a watcher, which may have been called."""
        self._watchers.discard(watcher)

    def come(self) -> None:
        """The connection is lost."""
        self._has_come = True
        while self._watchers:
            self._watchers.pop()()
