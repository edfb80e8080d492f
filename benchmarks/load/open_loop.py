"""Open-loop load: requests leave at their intended times, whatever the server does meanwhile.

    python -m benchmarks.load.open_loop URL BODIES --rate R --seconds S [--seed N]

Arrivals are exponential with a seed, and a latency counts from the time a request was meant to
leave, so a server that falls behind cannot hide it. `open_loop.c` sends and receives: it takes an
idle connection, or a new one when all are busy. It is compiled when it is first needed, so this
needs a C compiler, `cc`. How late it sent is part of the report, and so is the processor time it
took from a server on the same machine.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load.closed_loop import summarise_ms
from benchmarks.systems.system import ROOT

SOURCE = Path(__file__).with_suffix(".c")
PROGRAM = ROOT / ".bench/open_loop"
COMPILE = ("cc", "-O2", "-std=c11", "-Wall", "-Wextra", "-Werror")
DRAIN_SECONDS = 60
REFUSED = (429, 503)


class GeneratorFailed(Exception):
    """The generator could not be built or did not finish; the message says why."""


@dataclass(frozen=True)
class Request:
    """One arrival, its times in seconds since the start, and its answer's status; 0 for none."""

    intended: float
    sent: float = 0.0
    answered: float = 0.0
    status: int = 0


@dataclass(frozen=True)
class Sent:
    """What became of each request, and what sending them took."""

    requests: list[Request]
    connections: int
    cpu_seconds: float
    nice: int


def schedule(rate: float, seconds: float, seed: int) -> list[float]:
    """The intended times of a Poisson process of ``rate`` per second, from 0 to ``seconds``."""
    choose = random.Random(seed)  # noqa: S311  a reproducible load, not a secret
    times = []
    now = choose.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += choose.expovariate(rate)
    return times


def build_generator() -> Path:
    """The compiled generator, made anew when its source has changed.

    Raises `GeneratorFailed` when it cannot be compiled.
    """
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > SOURCE.stat().st_mtime:
        return PROGRAM
    if not shutil.which(COMPILE[0]):
        raise GeneratorFailed("cc, a C compiler, is not installed; most distributions' gcc has it.")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    unfinished = PROGRAM.with_suffix(f".{os.getpid()}")
    _run([*COMPILE, "-o", str(unfinished), str(SOURCE)])
    return unfinished.replace(PROGRAM)


def send(
    url: str,
    bodies: Sequence[bytes],
    times: Sequence[float],
    drain_seconds: float = DRAIN_SECONDS,
) -> Sent:
    """Send bodies in turns at ``times``, then wait for answers so long.

    Raises `GeneratorFailed` when the generator cannot be built or does not finish.
    """
    parts = urlsplit(url)
    command = [str(build_generator()), parts.hostname or "127.0.0.1", str(parts.port or 80)]
    first, *records = _run(
        command, _load(_messages(url, bodies), times, drain_seconds)
    ).splitlines()
    connections, cpu, nice = map(int, first.split())
    requests = list(map(_read_record, times, records))
    return Sent(requests, connections, cpu / 1e9, nice)


def _messages(url: str, bodies: Sequence[bytes]) -> list[bytes]:
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    return [b"%b%d\r\n\r\n%b" % (head.encode(), len(body), body) for body in bodies]


def _load(messages: Sequence[bytes], times: Sequence[float], drain_seconds: float) -> bytes:
    """What the generator reads; `open_loop.c` says what that is, and what it writes."""
    lines = [
        b"%d\n%d\n%d\n" % (len(messages), len(times), _nanoseconds(drain_seconds)),
        *(b"%d\n%b" % (len(message), message) for message in messages),
        *(b"%d\n" % _nanoseconds(time) for time in times),
    ]
    return b"".join(lines)


def _read_record(intended: float, record: bytes) -> Request:
    sent, answered, status = map(int, record.split())
    return Request(intended, sent / 1e9, answered / 1e9, status)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _run(command: Sequence[str], load: bytes = b"") -> bytes:
    done = subprocess.run(command, input=load, capture_output=True)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise GeneratorFailed(f"{Path(command[0]).name}, code {done.returncode}: {reason}")
    return done.stdout


def summarise(requests: Sequence[Request], seconds: float) -> dict[str, float]:
    """What a load of ``seconds`` came to.

    ``goodput_per_second`` counts the answers that were good and came while the load lasted; the
    latencies are those of all good answers. ``lost`` requests got no answer at all.
    """
    good = [r for r in requests if r.status == 200]
    refused = [r for r in requests if r.status in REFUSED]
    lost = sum(r.status == 0 for r in requests)
    refusal = summarise_ms([r.answered - r.intended for r in refused])
    lateness = summarise_ms([r.sent - r.intended for r in requests])
    return {
        "seconds": seconds,
        "sent": len(requests),
        "good": len(good),
        "refused": len(refused),
        "failed": len(requests) - len(good) - len(refused) - lost,
        "lost": lost,
        "goodput_per_second": sum(r.answered <= seconds for r in good) / seconds,
        **summarise_ms([r.answered - r.intended for r in good]),
        **{f"refusal_{name}": value for name, value in refusal.items()},
        **{f"lateness_{name}": value for name, value in lateness.items()},
    }


def main() -> None:
    """Send one load and print its figures as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("bodies", type=Path, help="one JSON document a line")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bodies = arguments.bodies.read_bytes().splitlines()
    times = schedule(arguments.rate, arguments.seconds, arguments.seed)
    try:
        sent = send(arguments.url, bodies, times)
    except GeneratorFailed as reason:
        sys.exit(str(reason))
    figures = summarise(sent.requests, arguments.seconds) | {
        "rate": arguments.rate,
        "connections": sent.connections,
        "generator_cpu_seconds": sent.cpu_seconds,
        "generator_nice": sent.nice,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
