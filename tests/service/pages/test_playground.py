"""The playground's files and the start page as they are served: complete, unchanged, no others."""

import hashlib
import html
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from s2sent.service.engine.types import Readiness
from s2sent.service.pages.playground import static_files
from tests.support.fake_engine import FakeEngine, client_of

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "service" / "pages"
STATIC = PAGES / "static"
VENDORED = [STATIC / "vendor", ROOT / "tests" / "support" / "vendor"]
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def own_files(*endings: str) -> Iterator[tuple[str, str]]:
    for file in sorted(STATIC.iterdir()):
        if file.suffix in endings:
            yield file.name, file.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.parent.name)
def test_a_library_is_as_its_maker_published_it_with_its_licence(folder: Path) -> None:
    sums = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    files = {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
    assert files == set(sums)
    assert any("LICENSE" in name for name in files)
    for name, expected in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected, name


def test_the_wheel_takes_every_file_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["s2sent.service.pages"]
    for file in (file for file in STATIC.rglob("*") if file.is_file()):
        name = file.relative_to(PAGES).as_posix()
        assert any(
            fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns
        ), name


def test_every_file_that_is_named_is_served() -> None:
    """Scripts, styles and imported modules; nothing of another host, and nothing inline."""
    for name, text in own_files(".html", ".js"):
        named = re.findall(r'(?:src|href)="(static/[^"]+)"|from "\./([^"]+)"', text)
        for absolute, relative in named:
            assert absolute.removeprefix("static/") + relative in static_files(), name
    page = (STATIC / "playground.html").read_text(encoding="utf-8")
    assert not re.search(r'https?://|<style|\sstyle=|\son\w+="', page)
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)


def test_no_script_makes_markup_of_text() -> None:
    for name, text in own_files(".js"):
        unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        assert not re.search(unsafe, text), name


@pytest.mark.parametrize(
    "path", ["/playground", "/static/playground.js", "/static/vendor/uplot.js"]
)
async def test_a_file_may_be_kept_and_is_asked_for_again(path: str) -> None:
    client = client_of(FakeEngine())
    response = await client.get(path)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-cache"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
    assert "unsafe" not in policy
    again = await client.get(path, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name", ["nothing.js", "../home.py", "%2e%2e/home.py", "vendor/", "vendor/SHA256SUMS"]
)
async def test_no_other_file_is_served(name: str) -> None:
    response = await client_of(FakeEngine()).get(f"/static/{name}")
    assert response.status_code == 404
    assert set(response.json()) == {"error", "error_type"}


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, 200),
        ({"host": "::1"}, 200),
        ({"host": "192.0.2.1"}, 404),
        ({"host": "192.0.2.1", "playground": "on"}, 200),
        ({"playground": "off"}, 404),
    ],
)
async def test_the_playground_is_served_on_loopback_or_where_it_is_switched_on(
    settings: dict[str, Any], status: int
) -> None:
    client = client_of(FakeEngine(), **settings)
    response = await client.get("/playground")
    assert response.status_code == status
    if status == 404:
        assert "S2SENT_PLAYGROUND=on" in response.json()["error"]
    start = (await client.get("/", headers=BROWSER)).text
    assert ('href="playground"' in start) is (status == 200)
    for name in ("playground.js", "try.js"):
        assert (await client.get(f"/static/{name}")).status_code == status


@pytest.mark.parametrize(("setting", "host"), [("off", "127.0.0.1"), ("auto", "192.0.2.1")])
@pytest.mark.parametrize("path", ["/playground", "/static/playground.js", "/static/nothing.js"])
async def test_a_file_that_is_not_served_says_which_setting_is_why(
    setting: str, host: str, path: str
) -> None:
    client = client_of(FakeEngine(), playground=setting, host=host)
    response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"] == (
        f"The playground and its files are not served: S2SENT_PLAYGROUND is {setting}, and auto"
        " serves them on loopback only. Set S2SENT_PLAYGROUND=on."
    )
    assert "/static/" not in (await client.get("/docs")).text


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
async def test_programs_get_json_from_the_start_page(accept: str) -> None:
    response = await client_of(FakeEngine()).get("/", headers={"Accept": accept})
    assert response.json() == {"name": "s2sent", "docs": "/docs", "info": "/info"}
    assert response.headers["vary"] == "Accept"


async def test_the_start_page_tells_what_the_server_is() -> None:
    engine = FakeEngine()
    engine.artifact.manifest.scores["STS12"] = 73.074
    began_with = {"name": "sentence-transformers/all-MiniLM-L6-v2"}
    first = {"backbone": began_with}
    last = {"backbone": {"name": "runs/2"}, "began_from": first}
    engine.artifact.manifest.training.update(last)
    client = client_of(engine)
    await client.post("/embed", json={"inputs": "a"})
    response = await client.get("/", headers=BROWSER)
    assert response.headers["content-type"].startswith("text/html")
    facts = dict(re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', response.text))
    assert facts["name"] == "tiny-s2sent"
    assert facts["backbone"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert facts["device"] == "CPU, 2 threads"
    assert (facts["state"], facts["requests now"]) == ("ready", "0")
    assert facts["STS12"] == "73.07"


@pytest.mark.parametrize(("precision", "is_told"), [("int8", True), ("fp32", False)])
async def test_the_start_page_tells_that_a_conversion_has_no_scores(
    precision: str, is_told: bool
) -> None:
    """Those of the model it was made from are not its own (`model.export.int8.conversion`)."""
    engine = FakeEngine()
    manifest = replace(engine.artifact.manifest, precision=precision, scores={})
    engine.artifact = replace(engine.artifact, manifest=manifest)
    page = (await client_of(engine).get("/", headers=BROWSER)).text
    assert ("not measured on this int8 conversion" in page) is is_told
    assert ("Quality" in page) is is_told


async def test_the_start_page_says_why_a_server_is_not_ready() -> None:
    engine = FakeEngine(state=Readiness(False, "engine thread died"))
    assert "engine thread died" in (await client_of(engine).get("/", headers=BROWSER)).text


async def test_where_keys_are_needed_the_start_page_tells_nothing_of_the_model() -> None:
    response = await client_of(FakeEngine(), api_keys="k").get("/", headers=BROWSER)
    assert response.status_code == 200
    assert "asks for an API key. Give it in the playground, or in the header" in response.text
    assert "tiny-s2sent" not in response.text
    alone = await client_of(FakeEngine(), api_keys="k", playground="off").get("/", headers=BROWSER)
    assert "asks for an API key. Give it in the header" in alone.text


@pytest.mark.parametrize("key", ["", "k"])
async def test_the_start_page_has_a_command_that_this_server_answers(key: str) -> None:
    client = client_of(FakeEngine(), api_keys=key)
    text = (await client.get("/", headers=BROWSER)).text
    (command,) = re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)
    words = shlex.split(html.unescape(command))
    headers = dict(words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H")
    assert headers.get("Authorization", "") == ("Bearer $S2SENT_API_KEY" if key else "")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    body = words[words.index("-d") + 1]
    assert (await client.post(words[2], content=body, headers=headers)).status_code == 200


async def test_other_methods_of_a_file_are_refused_with_those_it_has() -> None:
    response = await client_of(FakeEngine()).post("/static/playground.js")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
