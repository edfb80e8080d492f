"""What an HTTP process is given by the engine process, and when it is started again."""

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from s2sent.service.settings import Settings, SettingsError
from s2sent.service.settings_loading import load_settings
from s2sent.service.supervisor import CODE, Supervisor, settings_as_json


def test_settings_cross_to_an_http_process_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are shown to nobody, and whatever its own environment says."""
    settings = load_settings(
        host="::1",
        api_keys="first,second",
        api_keys_file=Path("relative/keys"),
        cors_allow_origins="https://a.example,https://b.example",
        otlp_endpoint="http://127.0.0.1:4318",
        served_name="ein Näme",
        default_depth=3,
        request_timeout_seconds=0.5,
        http_processes=4,
        log_requests=False,
    )
    monkeypatch.setenv("S2SENT_PORT", "1")
    arrived = Settings.model_validate_json(settings_as_json(settings))
    assert arrived == settings
    assert [key.get_secret_value() for key in arrived.api_keys] == ["first", "second"]


def test_the_code_of_an_http_process_is_this_code() -> None:
    assert (CODE / "s2sent" / "service" / "http_process.py").is_file()


@pytest.mark.parametrize(
    ("given", "limit"), [("-1", "greater than or equal to 0"), ("65", "less than or equal to 64")]
)
def test_a_number_of_http_processes_out_of_bounds_is_a_sentence(given: str, limit: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(http_processes=given)
    assert refusal.value.problems == [
        f"http_processes (S2SENT_HTTP_PROCESSES): Input should be {limit} (given: {given!r})."
    ]


class WithoutProcesses(Supervisor):
    """An HTTP process serves from its start until `ended` says so."""

    starts = 0

    async def _run(self, process: int, listener: socket.socket) -> int:
        self.starts += 1
        self._ready.add(process)
        self.ended = asyncio.Event()
        await self.ended.wait()
        return -signal.SIGKILL


async def test_a_process_that_ends_is_started_again_without_a_pause() -> None:
    """Within a few turns of the event loop: none of them waits for a timer."""
    supervisor = WithoutProcesses(Settings(), 1)
    with socket.socket() as listener:
        tending = asyncio.create_task(supervisor._tend(0, listener))
        await asyncio.sleep(0)
        for start in range(1, 20):
            assert supervisor.starts == start
            supervisor.ended.set()
            for _ in range(3):
                await asyncio.sleep(0)
        tending.cancel()
    assert supervisor._metrics.http_restarts._value.get() == 19
