"""The examples of requests in the README and the API's pages answer what these pages show."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.server_process import ServerProcess, running_server

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/api.md"]
REQUEST = r"^\$ (curl .*?')\n(.*?)(?=^\$|\Z)"  # with what is printed up to the next one
MARKS = re.DOTALL | re.MULTILINE
ELIDED = "..."  # stands for what an example leaves out
NUMBER = r"(?<=[\[:,])-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,\]}])"  # not a part of a word


class Example(NamedTuple):
    """A request by curl, and the answer that the page shows for it, without white space."""

    path: str
    headers: dict[str, str]
    body: str
    answer: str


def examples_of(page: str) -> Iterator[Example]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, MARKS):
        for command, shown in re.findall(REQUEST, block, MARKS):
            yield example(command, shown)


def example(command: str, shown: str) -> Example:
    words = iter(shlex.split(command.replace("\\\n", ""))[1:])
    path, headers, body = "", {}, ""
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(words)
        elif word != "-s":
            path = word.removeprefix("localhost:8080")
    return Example(path, headers, body, without_space(shown))


def without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


EXAMPLES = {
    f"{page} {number} {each.path}": each
    for page in PAGES
    for number, each in enumerate(examples_of(page), start=1)
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running_server(DEFAULT_ARTIFACT, "--no-log-requests") as server:
        yield server


def test_every_page_has_examples() -> None:
    assert {name.split()[0] for name in EXAMPLES} == set(PAGES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_answers_what_the_page_shows(server: ServerProcess, name: str) -> None:
    """Words exactly, numbers within 1e-5."""
    path, headers, body, shown = EXAMPLES[name]
    answer = server.client.post(path, content=body.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    found = re.fullmatch(pattern_of(shown), without_space(answer.text), re.DOTALL)
    assert found is not None, f"{shown} is not {answer.text}"
    numbers = [float(number) for number in re.findall(NUMBER, shown)]
    assert [float(number) for number in found.groups()] == pytest.approx(numbers, abs=1e-5)


def pattern_of(shown: str) -> str:
    """What an answer has to match: a group for each number, anything for what is left out."""
    parts = re.split(f"({NUMBER})", shown)
    texts = (re.escape(part).replace(re.escape(ELIDED), ".*?") for part in parts[::2])
    return f"({NUMBER})".join(texts)
