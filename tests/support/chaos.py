"""Clients of every kind against a server that goes wrong: is each request answered, and rightly?

    python -m tests.support.chaos --minutes 20          # make soak

Each text has a number and each number a vector that is known beforehand, so an answer that belongs
to another request is seen. Clients leave, dawdle, send nonsense and come all at once; the encoder
fails, stalls and dies; the file of API keys is replaced and read again; the process is stopped
under load and started again. Counted are requests sent, answers by status, and three things that
must stay 0: requests without an answer, answers nobody may give, and wrong vectors.
"""

import argparse
import asyncio
import math
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from s2sent.model.artifact.reader import Artifact
from s2sent.service.access.api_keys import key_line, new_key
from tests.support.chaos_clients import (
    PATIENCE_SECONDS,
    PROBE_STATUSES,
    Clients,
    Sentences,
    Tally,
)
from tests.support.server_process import ServerProcess, running_server

REQUEST_TIMEOUT_SECONDS = 5.0
KEY_LIFE_SECONDS = 10.0
CLIENT_LEFT = 499  # in the server's log


class Keys:
    """The server's file of API keys, and the key that clients use now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.current = new_key()
        self._write(self.current)

    async def replace(
        self, client: httpx.AsyncClient, tally: Tally, *, every_seconds: float
    ) -> None:
        """Until cancelled: let clients use a new key, which the file has had for a whole turn.

        A key goes when no client waits any more that sent it: a server under load may read a
        request that late.
        """
        turns = math.ceil(PATIENCE_SECONDS / every_seconds)
        used, successor = deque([self.current], maxlen=turns), new_key()
        while True:
            self._write(*used, self.current, successor)
            client.headers["authorization"] = f"Bearer {self.current}"
            await asyncio.sleep(every_seconds)
            used.append(self.current)
            self.current, successor = successor, new_key()
            tally.reloads += 1

    def _write(self, *keys: str) -> None:
        lines = [key_line(f"key-{number}", key) for number, key in enumerate(dict.fromkeys(keys))]
        written = self.path.with_suffix(".new")
        written.write_text("".join(f"{line}\n" for line in lines))
        written.replace(self.path)


@dataclass
class Sample:
    """What the server takes at one moment."""

    seconds: float
    megabytes: float
    files: int
    threads: int


@dataclass
class Watch:
    """Samples of one process, taken while it is under load."""

    samples: list[Sample] = field(default_factory=list)

    async def over(self, pid: int, *, every_seconds: float) -> None:
        """Sample until cancelled."""
        process, began = psutil.Process(pid), time.perf_counter()
        while True:
            await asyncio.sleep(every_seconds)
            with process.oneshot():
                sample = Sample(
                    time.perf_counter() - began,
                    process.memory_info().rss / 1e6,
                    process.num_fds(),
                    process.num_threads(),
                )
            self.samples.append(sample)

    def slope(self) -> float:
        """MB per minute over the second half, by least squares; 0 for too few samples."""
        half = self.samples[len(self.samples) // 2 :]
        if len(half) < 3:
            return 0.0
        minutes = [sample.seconds / 60 for sample in half]
        return float(np.polyfit(minutes, [sample.megabytes for sample in half], 1)[0])


async def load(
    server: ServerProcess,
    clients: Clients,
    keys: Keys,
    *,
    count: int,
    seconds: float,
    enough: Callable[[Tally], bool],
    watch: Watch,
) -> int:
    """Run clients that long and until there is ``enough``, then stop the server under them.

    Returns its exit code.
    """
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    clients.stopped = False
    async with httpx.AsyncClient(
        base_url=server.url, trust_env=False, timeout=PATIENCE_SECONDS, limits=limits
    ) as client:
        watching = asyncio.create_task(watch.over(server.process.pid, every_seconds=seconds / 40))
        every_seconds = min(KEY_LIFE_SECONDS, seconds / 4)
        replacing = asyncio.create_task(
            keys.replace(client, clients.tally, every_seconds=every_seconds)
        )
        await asyncio.sleep(0)  # the first key is given out
        running = asyncio.create_task(clients.run(client, count))
        await asyncio.sleep(seconds)
        while not enough(clients.tally):
            await asyncio.sleep(0.05)
        for task in (watching, replacing):
            task.cancel()
        await asyncio.gather(watching, replacing, return_exceptions=True)
        stopping = asyncio.create_task(asyncio.to_thread(server.stop, signal.SIGTERM))
        code = await stopping
        clients.stopped = True
        await running
    return code


def reconcile(tally: Tally, got: Counter[int], left: int, log: list[dict[str, Any]]) -> list[str]:
    """Where the server's own account of a round differs from what its clients saw.

    ``got`` are the answers of the round by status, ``left`` the clients that did not wait for
    theirs. A request whose connection broke was lost if the server's log has it; else it was sent
    into a connection that was just being closed, and never read.
    """
    logged = {line["request_id"]: line["status"] for line in log if line["message"] == "request"}
    tally.unanswered += [
        f"{what} (the log has {logged[key]})" for key, what in tally.broken.items() if key in logged
    ]
    served = Counter(logged.values())
    for status in PROBE_STATUSES:  # probes are not logged
        served.pop(status, None)
    missing = sum((Counter({k: v for k, v in got.items() if k in served}) - served).values())
    extra = sum((served - got).values()) - served[CLIENT_LEFT]
    problems = [f"{missing} answers that clients got are not in the log"] if missing else []
    if extra > left:
        problems.append(f"{extra} answers in the log reached nobody, but only {left} clients left")
    return problems


def run(
    artifact: Path,
    *,
    seconds: float,
    rounds: int,
    clients: int,
    faults: float,
    seed: int,
    enough: Callable[[Tally], bool] = bool,  # at once
) -> tuple[Tally, list[Watch], list[str]]:
    """Rounds of load, each ended by SIGTERM; returns the tally, the samples and what went wrong."""
    tally, watches, problems = Tally(), [], []
    crowd = Clients(Sentences(Artifact.open(artifact)), tally, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(Path(folder) / "keys")
        for number in range(rounds):
            flags = ["--seed", str(seed + number), "--faults", str(faults)]
            flags += ["--max-queue-tokens", "2048", "--max-concurrent-requests", "64"]
            flags += ["--request-timeout-seconds", str(REQUEST_TIMEOUT_SECONDS)]
            flags += ["--api-keys-file", str(keys.path)]
            before, left_before = tally.answered.copy(), tally.left
            with running_server(artifact, *flags, module="tests.support.faulty_server") as server:
                watches.append(Watch())
                loading = load(
                    server,
                    crowd,
                    keys,
                    count=clients,
                    seconds=seconds,
                    enough=enough,
                    watch=watches[-1],
                )
                code = asyncio.run(loading)
                if code != 0:
                    problems.append(f"round {number}: the server ended with {code}")
            got, left = tally.answered - before, tally.left - left_before
            problems += [f"round {number}: {p}" for p in reconcile(tally, got, left, server.log)]
    return tally, watches, problems + tally.failures


def report(tally: Tally, watches: list[Watch], problems: list[str]) -> str:
    """The whole as text."""
    waits = sorted(tally.latencies)
    lines = [
        f"requests sent: {sum(tally.sent.values())} {dict(tally.sent)}",
        f"answers by status: {dict(sorted(tally.answered.items()))}",
        f"left on purpose: {tally.left}; nobody listened (restart): {tally.not_connected}",
        f"sent into a closing connection: {len(tally.broken) - len(tally.unanswered)}",
        f"unanswered: {len(tally.unanswered)}; wrong answers: {len(tally.wrong)}; "
        f"vectors compared: {tally.vectors}",
        f"Retry-After seconds: {dict(sorted(tally.retry_after.items()))}",
        f"replacements of the API key: {tally.reloads}",
    ]
    if waits:
        p50, p99 = (1e3 * waits[int(share * (len(waits) - 1))] for share in (0.5, 0.99))
        lines.append(f"latency of 200s: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    for number, watch in enumerate(watches):
        middle, last = watch.samples[len(watch.samples) // 2], watch.samples[-1]
        lines.append(
            f"round {number}: {middle.megabytes:.0f} MB half-way, {last.megabytes:.0f} at the end "
            f"({watch.slope():+.2f} MB/min); open files {middle.files} -> {last.files}; "
            f"threads {middle.threads} -> {last.threads}"
        )
    return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in problems[:20])])


def main() -> int:
    """The long form, by hand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=Path("artifacts/default"))
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--faults", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally, watches, problems = run(
        given.artifact,
        seconds=given.minutes * 60 / given.rounds,
        rounds=given.rounds,
        clients=given.clients,
        faults=given.faults,
        seed=given.seed,
    )
    sys.stdout.write(report(tally, watches, problems) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
