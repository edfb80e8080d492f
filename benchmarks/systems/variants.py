"""A variant of the service: a checkout, a git revision or a command, with an environment."""

import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.systems.ours import our_service
from benchmarks.systems.running import NotMeasured
from benchmarks.systems.system import NO_CHECK, PORT, ROOT, SERVICE_ROUTE, System


@dataclass(frozen=True)
class Variant:
    """One side: what was given for it on the command line."""

    name: str
    given: str
    options: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def open(self, artifact: Path, scratch: Path) -> System:
        """The system to start; a git revision is written into ``scratch`` first.

        Raises `NotMeasured` when it is neither a folder, a command nor a revision.
        """
        words = shlex.split(self.given)
        if PORT in words:
            return System(
                self.name,
                self.given,
                tuple(words),
                NO_CHECK,
                replace(SERVICE_ROUTE, ready=""),  # other servers have other paths
                environment=self.environment,
            )
        folder = Path(self.given)
        if not folder.is_dir():
            folder = write_revision(self.given, scratch / self.name)
        options = shlex.split(self.options)
        service = our_service(artifact.resolve(), options=options)
        return System(
            self.name,
            f"{self.given} {self.options}".strip(),
            service.command,
            NO_CHECK,
            SERVICE_ROUTE,
            folder=folder.resolve(),
            environment=self.environment,
        )


def write_revision(revision: str, folder: Path) -> Path:
    """The files of a git revision of this repository, in ``folder``.

    Raises `NotMeasured` when there is no such revision.
    """
    folder.mkdir(parents=True)
    archive = folder / "archive.tar"
    command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", revision]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotMeasured(f"{revision} is no folder, no command with {PORT} and no git revision.")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    archive.unlink()
    return folder


def read_environment(pairs: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE words as a mapping; exits with a message at any other word."""
    split = [pair.partition("=") for pair in pairs]
    wrong = [key for key, sign, _ in split if not (key and sign)]
    if wrong:
        sys.exit(f"{wrong[0]!r} is not KEY=VALUE.")
    return {key: value for key, _, value in split}
