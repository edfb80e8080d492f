"""A server that asks for a key, a browser, and the playground with that key given."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from s2sent.model.artifact.reader import Artifact
from tests.support.browser import clean_page, open_browser
from tests.support.playground import KEY, unlock
from tests.support.server_process import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(exits_artifact: Artifact) -> Iterator[ServerProcess]:
    with running_server(exits_artifact.path, "--api-keys", KEY, "--no-log-requests") as server:
        server.client.headers["Authorization"] = f"Bearer {KEY}"
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    """The playground with the key given and its example embedded."""
    with clean_page(browser, server.url) as page:
        unlock(page)
        yield page
