"""Two variants in turns: what they may be, the order, the ratios, and the table."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import turns
from benchmarks.load.texts import Texts
from benchmarks.load.window import Window
from benchmarks.systems.running import NotMeasured, running
from benchmarks.systems.system import DEFAULT_ARTIFACT, PORT, ROOT
from benchmarks.systems.variants import Variant, read_environment
from benchmarks.turns import Plan, to_markdown
from tests.support import http_embedder

TEXTS = Texts(["one", "two"], ["long"], {})
FAKE = f"{sys.executable} {http_embedder.__file__} --port {PORT}"


def test_a_folder_is_a_checkout_whose_service_is_started(tmp_path: Path) -> None:
    variant = Variant("a", str(ROOT), "--threads 1", {"S2SENT_PORT": "1"})
    system = variant.open(DEFAULT_ARTIFACT, tmp_path)
    assert system.folder == ROOT
    assert system.command[1:4] == ("-m", "s2sent.service", "serve")
    assert system.command[-2:] == ("--threads", "1")
    assert system.environment == {"S2SENT_PORT": "1"}


def test_a_command_with_a_port_is_started_as_it_stands(tmp_path: Path) -> None:
    system = Variant("b", "server --port PORT").open(DEFAULT_ARTIFACT, tmp_path)
    assert system.command == ("server", "--port", "PORT")


def test_a_command_is_ready_when_it_embeds_a_text(tmp_path: Path) -> None:
    """A service that is up may still load its model, and answers 503 until then."""
    system = Variant("b", f"{FAKE} --loading 2").open(DEFAULT_ARTIFACT, tmp_path)
    with running(system, tmp_path / "log") as started:
        np.testing.assert_allclose(started.embed(["a text"]), [[0.6, 0.8]], rtol=1e-6)


def test_a_command_that_refuses_a_text_is_not_waited_for(tmp_path: Path) -> None:
    system = Variant("b", f"{FAKE} --status 422").open(DEFAULT_ARTIFACT, tmp_path)
    with (
        pytest.raises(NotMeasured, match="/embed answers 422"),
        running(system, tmp_path / "log"),
    ):
        pass


def test_a_revision_is_written_out(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("This needs git and the repository's history.")
    system = Variant("b", "HEAD").open(DEFAULT_ARTIFACT, tmp_path)
    assert (system.folder / "service/__main__.py").is_file()
    assert system.folder.is_relative_to(tmp_path.resolve())


def test_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="nowhere is no folder, no command with PORT and no git"):
        Variant("b", "nowhere").open(DEFAULT_ARTIFACT, tmp_path)


def test_an_environment_is_keys_and_values() -> None:
    assert read_environment(["A=1", "B=x=y"]) == {"A": "1", "B": "x=y"}
    with pytest.raises(SystemExit, match="'A' is not KEY=VALUE"):
        read_environment(["A"])


def test_the_ratio_is_taken_within_a_turn() -> None:
    """The ratio of the medians would be 1: a slow spell hits both sides of a turn."""
    table = to_markdown({"1 x 1, texts/s": [(1, 2), (2, 4), (4, 2)], "once": [(200, 100)]})
    assert "| 1 x 1, texts/s | 2.00 (1.00 to 4.00) | 2.00 (2.00 to 4.00) | 2.000 |" in table
    assert "| once | 200 (200 to 200) | 100 (100 to 100) | 0.500 | 0.500 to 0.500 | 1 |" in table


def test_large_requests_have_twice_the_time(tmp_path: Path) -> None:
    plan = Plan(["c1", "batch"], 7, 0, Window(4, 20, 4, 1), TEXTS, tmp_path)
    assert plan.window_of("c1").seconds == 4
    assert plan.window_of("batch").seconds == 8
    assert plan.expected_seconds == 2 * 7 * (2 * 5.5 + 4 + 4)


@pytest.mark.usefixtures("any_machine_is_idle")
def test_two_commands_are_compared_from_start_to_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which("wrk"):
        pytest.skip("Loads are sent by wrk.")
    out = tmp_path / "turns.json"
    turns.main(
        f"--loads c1 --turns 1 --starts 1 --seconds 1 --answers 1 --warm-up 1 --json {out}".split()
        + ["--a", FAKE, "--env-b", "KEY=VALUE"]
    )
    printed = capsys.readouterr().out
    samples = json.loads(out.read_text())["samples"]
    assert "KEY=VALUE" in printed
    assert "smallest cosine of A's to B's vectors: 1.000000" in printed
    assert len(samples["start to ready, s"]) == 1
    assert len(samples["1 connection x 1 text, p50, ms"]) == 1
