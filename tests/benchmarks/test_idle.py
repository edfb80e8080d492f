"""A load is timed only when the server is idle again, and a cell needs enough answers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from benchmarks.load import window as windows
from benchmarks.load.closed_loop import BY_NAME, Load
from benchmarks.load.idle import measure_idle_ms, wait_until_idle
from benchmarks.load.texts import Texts
from benchmarks.load.window import Window, call_window, run_window
from benchmarks.systems.running import NotMeasured, Running
from benchmarks.systems.system import NO_CHECK, SERVICE_ROUTE, System
from tests.support.http_embedder import EmbedderServer
from tests.support.serving import serving

SYSTEM = System("fake", "fake", ("python",), NO_CHECK, SERVICE_ROUTE)


@pytest.fixture
def server() -> Iterator[EmbedderServer]:
    with serving(EmbedderServer()) as server:
        yield server


@pytest.fixture
def fake(server: EmbedderServer) -> Running:
    return Running(SYSTEM, cast(psutil.Popen, psutil.Process()), 0.0, server.origin)


def test_the_idle_latency_is_that_of_lone_requests(fake: Running) -> None:
    assert measure_idle_ms(fake) > 0


def test_a_slow_server_is_waited_for(server: EmbedderServer, fake: Running) -> None:
    """Its first five answers take longer than an idle one's would; the rest do not."""
    server.delays = [0.3] * 5
    assert wait_until_idle(fake, idle_ms=200, timeout_seconds=30) > 1.4
    assert not server.delays


def test_a_server_that_stays_slow_is_not_measured_and_says_why(fake: Running) -> None:
    with pytest.raises(NotMeasured, match=r"not idle again after 0.1 s: .* took -1.0 ms before"):
        wait_until_idle(fake, idle_ms=-1, timeout_seconds=0.1)


def test_a_server_that_does_not_answer_in_time_is_not_measured(
    server: EmbedderServer, fake: Running
) -> None:
    server.delays = [1.0]
    with pytest.raises(NotMeasured, match="a lone request failed: TimeoutError"):
        wait_until_idle(fake, idle_ms=5, timeout_seconds=0.1)


def test_an_error_is_no_answer(server: EmbedderServer, fake: Running) -> None:
    server.status = 500
    with pytest.raises(NotMeasured, match="answered with 500"):
        measure_idle_ms(fake)


@pytest.mark.parametrize(
    ("rate", "seconds"), [(100, 15), (200 * 1.1 / 15, 15), (10, 22), (1, 60)], ids=str
)
def test_a_window_is_as_long_as_its_answers_need(rate: float, seconds: float) -> None:
    window = Window(seconds=15, answers=200, most_seconds=60)
    assert window.seconds_at(rate) == pytest.approx(seconds)


def a_run(answers: list[float], lengths: list[float]) -> object:
    """Stands for wrk: gives so many answers, and notes how long it was asked to run."""

    def run(_running: Running, _load: Load, _bodies: Path, seconds: float) -> dict[str, float]:
        lengths.append(seconds)
        return {"answers": answers.pop(0), "seconds": seconds}

    return run


def test_the_warm_up_is_the_load_that_follows_and_gives_the_length(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[float] = []
    monkeypatch.setattr(windows, "run_load", a_run([20, 220], lengths))
    figures = run_window(fake, BY_NAME["batch"], Path(), 1e3, Window(15, 200, 60, 2))
    assert lengths == pytest.approx([2, 22])
    assert figures["answers"] == 220
    assert 0 <= figures["others_share"] <= 1
    assert figures["waited_seconds"] >= 0


def test_a_warm_up_without_answers_is_longer_the_next_time(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[float] = []

    def run(running: Running, load: Load, bodies: Path, seconds: float) -> dict[str, float]:
        lengths.append(seconds)
        if seconds < 8:
            raise NotMeasured("no request was answered.")
        return {"answers": 400, "seconds": seconds}

    monkeypatch.setattr(windows, "run_load", run)
    run_window(fake, BY_NAME["batch"], Path(), 1e3, Window(15, 200, 60, 2))
    assert lengths == [2, 8, 15]


def test_a_server_that_never_answers_is_given_up(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(running: Running, load: Load, bodies: Path, seconds: float) -> dict[str, float]:
        raise NotMeasured("no request was answered.")

    monkeypatch.setattr(windows, "run_load", run)
    with pytest.raises(NotMeasured, match="no request was answered"):
        run_window(fake, BY_NAME["batch"], Path(), 1e3, Window(15, 200, 60, 2))


def test_a_cell_with_too_few_answers_is_not_measured(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "run_load", a_run([2, 60], []))
    with pytest.raises(NotMeasured, match="60 answers in 60 s at 4 connections x 32 texts"):
        run_window(fake, BY_NAME["batch"], Path(), 1e3, Window(15, 200, 60, 2))


def test_a_window_that_was_too_short_is_timed_again_and_longer(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that is slower than in its warm-up is not left out."""
    lengths: list[float] = []
    monkeypatch.setattr(windows, "run_load", a_run([20, 110, 210], lengths))
    figures = run_window(fake, BY_NAME["batch"], Path(), 1e3, Window(15, 200, 60, 2))
    assert lengths == pytest.approx([2, 22, 44])
    assert figures["answers"] == 210


def test_so_is_one_of_a_library(fake: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[float] = []
    monkeypatch.setattr(windows, "run_calls", a_run([20, 199, 210], lengths))
    call_window(fake, BY_NAME["batch"], Texts([], [], {}), Window(15, 200, 60, 2))
    assert lengths == pytest.approx([2, 22, 26.4])  # longer by a fifth at least


def test_wrk_s_answers_are_counted(fake: Running, tmp_path: Path) -> None:
    if not shutil.which("wrk"):
        pytest.skip("This load is sent by wrk.")
    bodies = tmp_path / "bodies"
    bodies.write_text('{"inputs": "a"}\n')
    figures = run_window(fake, BY_NAME["c1"], bodies, 1e3, Window(1, 1, 1, 1))
    assert figures["answers"] >= 1
