"""The file of API keys: its format, and that a new version takes effect whole or not at all."""

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from s2sent.service.__main__ import app
from s2sent.service.access.api_keys import (
    CHECK_INTERVAL_SECONDS,
    MAX_FILE_BYTES,
    Key,
    KeyFile,
    UnusableKeys,
    digest_of,
    key_line,
    new_key,
    parse_keys,
)

run = CliRunner().invoke
DIGEST = digest_of("a").hex()


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def pass_interval(self) -> None:
        self.seconds += CHECK_INTERVAL_SECONDS


def put(path: Path, content: str) -> None:
    """Puts a new version in place as a careful writer does, with one rename."""
    partial = path.with_name("partial")
    partial.write_text(content)
    partial.replace(path)


def names(file: KeyFile) -> Sequence[str | None]:
    return [key.name for key in file.current()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    put(path, key_line("old", "1"))
    return path


def test_a_line_is_a_name_and_a_digest_beside_comments_and_empty_lines() -> None:
    text = f"# whose\n\n{key_line('a', '1')}  # of team a\r\n\t{key_line('b@x', '2')}\n"
    assert parse_keys(text) == (Key(digest_of("1"), "a"), Key(digest_of("2"), "b@x"))


def test_a_line_may_have_limits() -> None:
    line = key_line("a", "1", requests_per_minute=600, tokens_per_minute=None)
    (key,) = parse_keys(f"{line} tokens_per_minute=100000")
    assert (key.requests_per_minute, key.tokens_per_minute) == (600, 100_000)


def test_a_line_may_name_the_lane_of_requests_that_name_none() -> None:
    (key,) = parse_keys(key_line("a", "1", priority="bulk", tokens_per_minute=5))
    assert (key.priority, key.tokens_per_minute) == ("bulk", 5)


@pytest.mark.parametrize("field", ["priority=fast", "priority", "priority=bulk priority=bulk"])
def test_a_wrong_priority_is_refused(field: str) -> None:
    with pytest.raises(UnusableKeys, match="line 1: write priority= and interactive or bulk, once"):
        parse_keys(f"a {DIGEST} {field}")


@pytest.mark.parametrize(
    "limit",
    [
        *("requests_per_minute", "requests_per_minute=", "requests_per_minute=0", "per_minute=1"),
        *("requests_per_minute=-1", "requests_per_minute=1.5", "requests_per_minute=9999999999"),
        "requests_per_minute=1 requests_per_minute=1",
    ],
)
def test_a_wrong_limit_is_refused(limit: str) -> None:
    with pytest.raises(UnusableKeys, match="line 1: a limit is wrong.*1 to 1000000000, once each"):
        parse_keys(f"a {DIGEST} {limit}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key in it.*Add a line"),
        ("# nothing\n", "no key in it"),
        ("name", "line 1: it has one word"),
        (f"# one\nname {DIGEST} more", "line 2: a limit is wrong"),
        (f"na/me {DIGEST}", "line 1: the name must be"),
        (f"{'n' * 65} {DIGEST}", "line 1: the name must be"),
        (f"name {DIGEST[:-1]}", "line 1: the second word is not 64 lower-case hex digits"),
        (f"name {DIGEST.upper()}", "line 1: the second word is not 64"),
        (f"a {DIGEST}\nb {DIGEST}", "a key stands there twice"),
        (f"a {DIGEST}\na {digest_of('b').hex()}", "a name stands there twice"),
    ],
)
def test_a_text_that_is_no_list_of_keys_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UnusableKeys, match=message):
        parse_keys(text)


@pytest.mark.parametrize("line", ["hunter2", "name hunter2", "name hunter2 x", "hunt/er2 x"])
def test_a_key_written_there_by_mistake_is_not_repeated(line: str) -> None:
    with pytest.raises(UnusableKeys) as caught:
        parse_keys(line)
    assert "hunt" not in str(caught.value)


def test_a_file_that_this_user_may_not_read_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(UnusableKeys, match=r"permission denied\. Let this user read it\.$"):
        KeyFile(tmp_path / "keys")


def test_a_file_that_is_not_there_or_not_text_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableKeys, match="nowhere cannot be read: no such file.*Put the file"):
        KeyFile(tmp_path / "nowhere")
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(UnusableKeys, match="is not UTF-8 text"):
        KeyFile(tmp_path / "keys")
    (tmp_path / "keys").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(UnusableKeys, match=f"more than {MAX_FILE_BYTES} bytes"):
        KeyFile(tmp_path / "keys")


def test_a_new_version_takes_effect_within_a_second(path: Path) -> None:
    clock = Clock()
    file = KeyFile(path, clock=clock)
    put(path, key_line("new", "2"))
    assert names(file) == ["old"], "it was looked at just now"
    clock.pass_interval()
    assert names(file) == ["new"]


def test_a_file_written_in_place_is_read_again(path: Path) -> None:
    clock = Clock()
    file = KeyFile(path, clock=clock)
    with path.open("a") as writer:
        writer.write("\n" + key_line("more", "2"))
    clock.pass_interval()
    assert names(file) == ["old", "more"]


def test_a_mounted_secret_changes_with_its_link(tmp_path: Path) -> None:
    """As the kubelet does it: keys -> ..data/keys, ..data -> a folder per version."""
    for version in ("old", "new"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "keys").write_text(key_line(version, version))
    (tmp_path / "..data").symlink_to("..old")
    (tmp_path / "keys").symlink_to("..data/keys")
    clock = Clock()
    file = KeyFile(tmp_path / "keys", clock=clock)
    assert names(file) == ["old"]
    (tmp_path / "..data_tmp").symlink_to("..new")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    clock.pass_interval()
    assert names(file) == ["new"]


def test_a_version_that_cannot_be_used_changes_nothing_and_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    file = KeyFile(path, clock=clock)
    for content in ("hunter2", None):
        if content is None:
            path.unlink()
        else:
            put(path, content)
        caplog.clear()
        for _ in range(3):
            clock.pass_interval()
            assert names(file) == ["old"]
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "the API keys stay as they were" in record.getMessage()
        assert "hunter2" not in record.getMessage()
    put(path, key_line("new", "2"))
    clock.pass_interval()
    assert names(file) == ["new"]


def test_a_file_that_has_not_changed_is_not_read_again(path: Path) -> None:
    clock = Clock()
    file = KeyFile(path, clock=clock)
    before = file.current()
    clock.pass_interval()
    assert file.current() is before


def test_a_new_key_is_random_and_its_line_opens_the_file() -> None:
    result = run(app, ["hash-key", "alice"])
    key = result.stderr.strip()
    assert key.startswith("s2s_")
    assert len({key, new_key(), new_key()}) == 3
    assert parse_keys(result.stdout) == (Key(digest_of(key), "alice"),)


def test_a_new_key_can_have_limits() -> None:
    arguments = ["alice", "--requests-per-minute", "60", "--tokens-per-minute", "6000"]
    (key,) = parse_keys(run(app, ["hash-key", *arguments]).stdout)
    assert (key.requests_per_minute, key.tokens_per_minute) == (60, 6000)


def test_a_key_there_is_can_be_hashed_and_is_not_printed() -> None:
    result = run(app, ["hash-key", "alice", "--from-stdin"], input="hunter2\n")
    assert parse_keys(result.stdout) == (Key(digest_of("hunter2"), "alice"),)
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    "arguments", [["a b"], ["a", "--requests-per-minute", "0"], ["a", "--from-stdin"]]
)
def test_what_makes_no_line_is_a_sentence_and_exit_2(arguments: list[str]) -> None:
    result = run(app, ["hash-key", *arguments], input="\n")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_the_digest_is_what_sha256sum_prints() -> None:
    """So a line can be made without this program: printf %s KEY | sha256sum."""
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of("abc").hex() == expected


def test_bytes_that_are_not_text_are_a_key_like_any_other() -> None:
    assert digest_of(os.fsdecode(b"\xff")) != digest_of("")
