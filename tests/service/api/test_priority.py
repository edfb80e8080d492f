"""Which lane a request takes: that of its header, else of its key, else by its number of texts."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from s2sent.service.access.api_keys import key_line
from tests.support.fake_engine import FakeEngine, client_of

FEW, MANY = ["a", "b"], ["a", "b", "c"]


def bodies(texts: list[str]) -> list[tuple[str, dict[str, Any]]]:
    pairs = [[texts[0], other] for other in texts[1:]]
    return [
        ("/embed", {"inputs": texts}),
        ("/v1/embeddings", {"input": texts}),
        ("/similarity", {"inputs": {"pairs": pairs}}),
    ]


@pytest.mark.parametrize(("texts", "lane"), [(FEW, "interactive"), (MANY, "bulk")])
async def test_without_a_header_the_number_of_texts_decides(texts: list[str], lane: str) -> None:
    engine = FakeEngine()
    client = client_of(engine, interactive_texts=2)
    for path, body in bodies(texts):
        assert (await client.post(path, json=body)).status_code == 200
    assert [call.lane for call in engine.calls] == [lane] * 3


@pytest.mark.parametrize("lane", ["interactive", "bulk"])
async def test_a_header_decides_whatever_the_number(lane: str) -> None:
    engine = FakeEngine()
    client = client_of(engine, interactive_texts=2)
    for texts in (FEW, MANY):
        for path, body in bodies(texts):
            await client.post(path, json=body, headers={"X-Priority": lane})
    assert [call.lane for call in engine.calls] == [lane] * 6


@pytest.mark.parametrize("value", ["urgent", "", "Bulk", "bulk, interactive", "x" * 5000])
async def test_another_priority_is_refused_and_told_in_few_characters(value: str) -> None:
    engine = FakeEngine()
    response = await client_of(engine).post(
        "/embed", json={"inputs": "a"}, headers={"x-priority": value}
    )
    assert response.status_code == 422
    assert response.json() == {
        "error": f"x-priority is {value[:80]!r}; it can be interactive or bulk."
        " Leave it out for the default.",
        "error_type": "Validation",
    }
    assert engine.calls == []


async def test_a_keys_lane_decides_where_no_header_does(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    lines = [key_line("job", "1", priority="bulk"), key_line("app", "2")]
    keys.write_text("\n".join(lines))
    engine = FakeEngine()
    client = client_of(engine, api_keys_file=keys, interactive_texts=2)

    async def lane(key: str, texts: list[str], **headers: str) -> str:
        headers["Authorization"] = f"Bearer {key}"
        response = await client.post("/embed", json={"inputs": texts}, headers=headers)
        assert response.status_code == httpx.codes.OK
        return engine.calls[-1].lane

    assert await lane("1", FEW) == "bulk"
    assert await lane("1", FEW, **{"x-priority": "interactive"}) == "interactive"
    assert await lane("2", FEW) == "interactive"
    assert await lane("2", MANY) == "bulk"


async def test_the_log_tells_the_lane(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await client_of(FakeEngine()).post(
        "/embed", json={"inputs": "a"}, headers={"x-priority": "bulk"}
    )
    (line,) = [vars(record)["fields"] for record in caplog.records if record.message == "request"]
    assert line["lane"] == "bulk"
