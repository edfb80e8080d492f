"""Runs the checks of every family of clients against one real server.

    python -m tests.clients [FAMILY ...]     `make test-clients` installs and runs them

The server embeds with the default model. A second one, with room for a single request, is what
waiting clients are tested with. Ends with 1 when a family fails or is not installed.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.server_process import running_server

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "clients.md"
ENVIRONMENTS = HERE.parents[1] / ".venv" / "clients"
JAVASCRIPT = "javascript"  # one family, whose libraries npm installs
FAMILIES = sorted([*(path.stem for path in (HERE / "requirements").glob("*.txt")), JAVASCRIPT])

# Nothing is looked up, reported or loaded from anywhere: the one peer is the service.
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",  # Chroma
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "*",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# HF_HUB_OFFLINE makes huggingface_hub refuse loopback too.
LEFT_OUT = (
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HUGGINGFACE_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
)


def check(family: str, urls: dict[str, str]) -> bool:
    """Runs one family's checks in its environment; tells whether they passed."""
    installed = ENVIRONMENTS / family / ("node_modules" if family == JAVASCRIPT else "bin/python")
    if not installed.exists():
        sys.stdout.write(f"{family}: {installed} is missing; make test-clients installs it\n")
        return False
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    if family == JAVASCRIPT:  # modules are looked for beside the file that imports them
        checks = shutil.copy(HERE / JAVASCRIPT / "check.mjs", ENVIRONMENTS / family)
        command = ["node", "--test", str(checks)]
    else:
        command = [str(installed), "-m", "pytest", "-q", "-c", "pytest.ini", f"check_{family}.py"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=HERE, env=environment | QUIET | urls, check=False)
    outcome = "passed" if done.returncode == 0 else "FAILED"
    sys.stdout.write(f"{family}: {outcome} in {time.monotonic() - began:.0f} s\n")
    sys.stdout.flush()
    return done.returncode == 0


def main(families: list[str]) -> int:
    """Starts the servers, runs the families, returns the exit code."""
    with ExitStack() as running:
        server = running.enter_context(running_server(DEFAULT_ARTIFACT, "--no-log-requests"))
        busy = running.enter_context(
            running_server(DEFAULT_ARTIFACT, "--no-log-requests", "--max-concurrent-requests", "1")
        )
        urls = {"CLIENTS_URL": server.url, "CLIENTS_BUSY_URL": busy.url, "CLIENTS_PAGE": str(PAGE)}
        outcomes = [check(family, urls) for family in families or FAMILIES]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
