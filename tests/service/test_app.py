"""The application: start, readiness, /info and /metrics, and shutdown."""

import re
from pathlib import Path

import pytest

from s2sent.model.artifact.errors import MissingFile
from s2sent.service.app import create_app
from s2sent.service.engine.types import Readiness
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, client_of

ROOT = Path(__file__).parents[2]

INFO_KEYS = {
    *("model_id", "model_sha", "model_dtype", "served_model_name", "model_type"),
    *("max_concurrent_requests", "max_input_length", "max_batch_tokens", "max_batch_requests"),
    *("max_client_batch_size", "auto_truncate", "tokenization_workers"),
    *("version", "sha", "docker_label"),
}
OUR_INFO_KEYS = {
    *("dim", "depths", "normalize", "prompts", "precision", "provider", "fingerprint", "threads"),
    *("full_depth", "comparable_depths", "default_depth", "default_dimensions", "block_weights"),
    *("default_prompt_name", "roles", "warnings", "unknown_id", "min_cosine"),
}


async def test_info_has_every_key_of_the_contract() -> None:
    info = (await client_of(FakeEngine(), max_client_batch_size=33).get("/info")).json()
    assert set(info) == INFO_KEYS | OUR_INFO_KEYS
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["max_client_batch_size"], info["max_input_length"]) == (33, 128)
    assert (info["model_dtype"], info["precision"]) == ("float32", "weight-int8")
    assert info["tokenization_workers"] == FakeEngine.tokenizer_threads
    assert (info["dim"], info["prompts"]) == (8, {"query": "query: "})


async def test_a_warning_of_the_settings_is_in_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2SENT_API_KEYS", "")
    info = (await client_of(FakeEngine()).get("/info")).json()
    (warning,) = info["warnings"]
    assert "S2SENT_API_KEYS is empty" in warning


async def test_alive_is_not_ready() -> None:
    client = client_of(FakeEngine(state=Readiness(False, "starting")))
    assert (await client.get("/health")).status_code == 200
    ready = await client.get("/ready")
    assert ready.status_code == 503
    assert ready.json() == {"error": "Not ready: starting.", "error_type": "Unhealthy"}
    assert int(ready.headers["retry-after"]) >= 1


async def test_ready_when_the_engine_says_so() -> None:
    assert (await client_of(FakeEngine()).get("/ready")).status_code == 200


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "text/plain"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        ('text/plain; version="0.0.4"', "text/plain"),
        ("application/openmetrics-text; version=abc", "text/plain"),
    ],
)
async def test_metrics_speak_the_format_that_is_asked_for(accept: str, media_type: str) -> None:
    response = await client_of(FakeEngine()).get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"].startswith(media_type)
    assert "s2sent_requests_in_flight 1.0" in response.text
    assert response.text.endswith("# EOF\n") is ("openmetrics" in media_type)


def test_every_metric_is_in_the_documentation() -> None:
    documented = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    families = [family for family in Metrics().registry.collect() if "s2sent" in family.name]
    assert len(families) > 20
    for family in families:
        suffix = "_total" if family.type == "counter" else ""
        row = rf"^\|.*`{family.name}{suffix}({{[a-z_,]+}})?`"
        assert re.search(row, documented, re.MULTILINE), family.name


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_answer(path: str) -> None:
    assert (await client_of(FakeEngine()).get(path)).status_code == 200


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MissingFile("/x is not there. Export again."), "/x is not there. Export again."),
        (RuntimeError("foreign\ntext"), "for the reason logged above"),
    ],
)
async def test_a_failed_start_is_fatal_with_one_sentence(error: Exception, expected: str) -> None:
    reasons: list[str] = []
    engine = FakeEngine(start_error=error)
    app = create_app(Settings(), engine=engine, on_fatal=reasons.append)
    async with app.router.lifespan_context(app):
        await engine.started.wait()
    (reason,) = reasons
    assert expected in reason
    assert "\n" not in reason


async def test_the_engine_is_drained_when_the_application_ends() -> None:
    engine = FakeEngine()
    app = create_app(Settings(drain_timeout_seconds=7), engine=engine)
    async with app.router.lifespan_context(app):
        assert engine.drained_within is None
    assert engine.drained_within == 7
