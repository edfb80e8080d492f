"""Clients that go on until a server is stopped, and what became of each of their requests."""

import http.client
import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

Connect = Callable[[], http.client.HTTPConnection]

TEXTS = [f"Sentence {number} of a request that takes a while to answer." for number in range(8)]


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """One request; returns the status and the JSON of the answer."""
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, {"Content-Type": "application/json"} | (headers or {}))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


class Load:
    """Clients that each send one request after the other on new connections.

    ``outcomes`` maps the id of each request that was sent to its status, or to the name of what
    broke it. ``in_flight`` has the ids of those that waited for their answer when `stopping` was
    called.
    """

    def __init__(self, connect: Connect, *, clients: int) -> None:
        self.outcomes: dict[str, int | str] = {}
        self.in_flight: set[str] = set()
        self._connect = connect
        self._waiting: set[str] = set()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send_on) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def stopping(self) -> None:
        """Called just before the server is told to stop."""
        self.in_flight = set(self._waiting)

    def finish(self) -> None:
        """Wait until every client has noticed that the server is gone."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _send_on(self) -> None:
        while not self._stopped.is_set():
            connection = self._connect()
            try:
                connection.connect()
            except OSError:
                return  # nobody listens any more, and nothing was sent
            outcome = self._send(connection)
            connection.close()
            if outcome != 200:
                time.sleep(0.05)  # do not keep a draining server busy with refusing

    def _send(self, connection: http.client.HTTPConnection) -> int | str:
        request_id = uuid.uuid4().hex
        self._waiting.add(request_id)
        outcome: int | str
        try:
            headers = {"X-Request-Id": request_id}
            outcome, _ = exchange(connection, "POST", "/embed", {"inputs": TEXTS}, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            outcome = type(error).__name__
        self.outcomes[request_id] = outcome
        self._waiting.discard(request_id)
        return outcome


def compare(load: Load, log: list[dict[str, Any]]) -> str:
    """What clients got against what the server logged; raises AssertionError where they differ."""
    logged = {line["request_id"]: line["status"] for line in log if line["message"] == "request"}
    lost = {key: status for key, status in logged.items() if load.outcomes.get(key) != status}
    unknown = {key: got for key, got in load.outcomes.items() if key not in logged}
    assert not lost, f"answers in the log that no client got: {lost}"
    assert not unknown, f"requests that are not in the log: {unknown}"
    broken = {load.outcomes[key] for key in load.in_flight} - {200}
    assert not broken, f"requests in flight at the stop ended with {broken}"
    accepted = list(logged.values()).count(200)
    answered = list(load.outcomes.values()).count(200)
    refused = list(load.outcomes.values()).count(503)
    return (
        f"{accepted} accepted, {answered} answered, {len(load.in_flight)} of them in flight"
        f" at the stop; {refused} refused with 503"
    )
