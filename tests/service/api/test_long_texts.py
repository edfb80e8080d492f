"""What a request for windows asks of the engine, on every route that embeds."""

from typing import Any

import pytest

from s2sent.model.runtime.windows import Windows
from tests.support.fake_engine import MAX_TOKENS, FakeEngine, client_of

ASKED = {"long_texts": "mean_of_windows"}


def routes(options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A request to each route, with options where it takes them."""
    return [
        ("/embed", {"inputs": "a", **options}),
        ("/v1/embeddings", {"input": "a", **options}),
        ("/similarity", {"inputs": {"pairs": [["a", "b"]]}, "parameters": options}),
    ]


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({}, None),
        ({"long_texts": "truncate", "window_overlap": 5}, None),
        (ASKED, Windows(7, MAX_TOKENS // 8)),
        (ASKED | {"window_overlap": 0}, Windows(7, 0)),
        (ASKED | {"window_overlap": MAX_TOKENS // 2}, Windows(7, MAX_TOKENS // 2)),
    ],
)
async def test_every_route_asks_for_the_windows_of_its_request(
    options: dict[str, Any], windows: Windows | None
) -> None:
    engine = FakeEngine()
    client = client_of(engine, max_windows=7)
    for path, body in routes(options):
        assert (await client.post(path, json=body)).status_code == 200
    assert [call.windows for call in engine.calls] == [windows] * 3


@pytest.mark.parametrize("asked", [ASKED, {}], ids=["windows", "truncate"])
@pytest.mark.parametrize("overlap", [MAX_TOKENS // 2 + 1, 10**30, -1, 1.5, "1"])
async def test_an_overlap_that_cannot_be_is_refused(overlap: object, asked: dict[str, Any]) -> None:
    """Also where no text would be split, so that the mistake is not found by the first long one."""
    engine = FakeEngine()
    options = asked | {"window_overlap": overlap}
    for path, body in routes(options):
        response = await client_of(engine).post(path, json=body)
        assert response.status_code == (400 if path.startswith("/v1") else 422)
        assert "window_overlap" in response.text
    assert engine.calls == []


async def test_details_tell_the_windows_where_they_were_asked_for() -> None:
    client = client_of(FakeEngine())
    for options, windows in ((ASKED, 1), ({}, None)):
        body = {"inputs": ["a"], "details": True, **options}
        answer = (await client.post("/embed", json=body)).json()
        assert answer["details"]["texts"][0].get("windows") == windows
