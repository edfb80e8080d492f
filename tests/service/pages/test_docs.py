"""The pages for browsers: complete, self-contained, and under a strict Content-Security-Policy."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from s2sent.service.pages.docs import api_page
from tests.support.fake_engine import FakeEngine, client_of

PAGES = ["/", "/docs", "/docs/plain", "/openapi.json"]


class Elements(HTMLParser):
    """The elements of a page and their attributes, and whether each is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def page(path: str = "/docs/plain", **settings: str) -> str:
    return (await client_of(FakeEngine(), **settings).get(path)).text


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", PAGES)
async def test_a_page_says_what_a_browser_may_do_with_it(method: str, path: str) -> None:
    response = await client_of(FakeEngine()).request(method, path)
    assert response.status_code == 200
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_the_policy_allows_the_style_there_is_and_no_other() -> None:
    response = await client_of(FakeEngine()).get("/docs")
    (style,) = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in response.headers["content-security-policy"]
    assert "style=" not in response.text, "the policy would ignore it"


async def test_the_api_page_loads_nothing() -> None:
    """No script, no image, no font, no frame; links lead into the page, home or to /openapi.json.

    So is /docs where scripts are switched off.
    """
    assert await page("/docs", playground="off") == await page()
    elements = Elements(await page()).found
    names = {name for name, _ in elements}
    assert not names & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not [attributes for _, attributes in elements if "src" in attributes]
    links = [attributes["href"] or "" for name, attributes in elements if name == "a"]
    anchors = {f"#{attributes['id']}" for _, attributes in elements if "id" in attributes}
    assert set(links) <= {"/", "/openapi.json", *anchors}


async def test_the_page_with_forms_adds_one_script_of_this_server() -> None:
    added = set((await page("/docs")).splitlines()) - set((await page()).splitlines())
    assert added == {'<script type="module" src="static/try.js"></script>'}
    policy = (await client_of(FakeEngine()).get("/docs")).headers["content-security-policy"]
    assert "script-src 'self'; connect-src 'self';" in policy


async def test_every_route_that_takes_a_body_has_an_example_that_it_answers() -> None:
    client = client_of(FakeEngine())
    document = (await client.get("/openapi.json")).json()
    tried = 0
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if body := operation.get("requestBody"):
                example = body["content"]["application/json"]["example"]
                if path != "/explain":  # the fake has no blocks
                    assert (await client.post(path, json=example)).status_code == 200, path
                tried += 1
    assert (await page("/docs")).count("<textarea") == tried > 5


async def test_the_api_page_has_contents_and_a_way_home() -> None:
    document = (await client_of(FakeEngine()).get("/openapi.json")).json()
    found = Elements(await page()).found
    links = [attributes["href"] for name, attributes in found if name == "a"]
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    routes = sum(map(len, document["paths"].values()))
    contents = links[links.index("/openapi.json") + 1 :][
        : routes + len(document["components"]["schemas"])
    ]
    assert [f"#{one}" for one in ids if one != "contents"] == contents
    assert links[0] == "/"
    assert links[-1] == "#contents"


async def test_the_api_page_has_every_route_and_every_field() -> None:
    document = (await client_of(FakeEngine()).get("/openapi.json")).json()
    text = await page()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in text
    for name, schema in document["components"]["schemas"].items():
        assert f'id="{name}"' in text
        for field in schema.get("properties", {}):
            assert f"<code>{field}</code>" in text


async def test_the_api_page_has_the_header_of_the_lane_and_shows_code_as_code() -> None:
    text = await page()
    assert text.count("<td><code>x-priority</code></td><td><code>interactive</code>") > 3
    assert "index in <code>documents</code> and its cosine" in text
    assert "``" not in text


async def test_the_api_page_is_well_formed() -> None:
    assert Elements(await page()).open == ["html"]  # whose end may be left out


def test_text_of_the_document_is_never_markup() -> None:
    evil = '<script>"&'
    field = {"description": evil, "enum": [evil], "default": evil}
    schema = {"description": evil, "properties": {evil: field}}
    answer = {"description": evil, "content": {evil: {"schema": {"$ref": evil}}}}
    body = {"content": {evil: {"schema": {"type": evil}}}}
    operation = {"description": evil, "requestBody": body, "responses": {evil: answer}}
    document = {
        "info": {"title": evil, "version": evil, "summary": evil},
        "paths": {evil: {evil: operation}},
        "components": {"schemas": {evil: schema}},
    }
    text = api_page(document)
    assert "<script" not in text.lower()
    assert text.count("&lt;script&gt;&quot;&amp;") > 10
