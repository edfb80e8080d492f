"""Debian's Chromium, driven by Playwright, and what a page must not do in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
# --no-sandbox: containers have no user namespaces. The others keep it from asking the network.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WAIT_MILLISECONDS = 60_000  # of an expectation, on a busy machine

with_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium (Debian: chromium) is not installed"
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium with a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def clean_page(browser: Browser, base_url: str, **options: Any) -> Iterator[Page]:
    """A page that breaks no rule of its policy, asks nobody else, and raises no error."""
    context = browser.new_context(base_url=base_url, **options)
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: _note(problems, message.type, message.text))
    page.on("request", lambda request: _note_elsewhere(problems, request.url, base_url))
    try:
        yield page
        assert problems == []
    finally:
        context.close()


def _note(problems: list[str], kind: str, text: str) -> None:
    # An answer with an error status is a line of the console too, and not a problem of the page.
    if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
        problems.append(text)


def _note_elsewhere(problems: list[str], url: str, base_url: str) -> None:
    if not url.startswith(base_url):
        problems.append(f"asks {url}")


def violations(page: Page) -> list[str]:
    """What axe-core finds on the page as it is, with the elements."""
    source = Path(__file__).with_name("vendor") / "axe.min.js"
    page.evaluate(source.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{violation['id']}: {node['target']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]
