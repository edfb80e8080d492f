"""The file of API keys: names and SHA-256 digests, reloaded when the file changes.

A line has a name, the SHA-256 of the key in hex and, optionally, ``limit=number`` fields and
``priority=lane``, the lane of requests that name none. Text after a # is a comment.
"""

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sent.service.lanes import LANES, Lane

logger = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 1.0
MAX_FILE_BYTES = 1_048_576

# A fixed prefix, by which scanners find a key that leaked into a repository or a log.
KEY_PREFIX = "s2s_"
KEY_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
LIMITS = ("requests_per_minute", "tokens_per_minute")
MAX_LIMIT = 1_000_000_000
_LIMIT = re.compile(rf"({'|'.join(LIMITS)})=([0-9]{{1,10}})")
_LINE = "name sha256 (s2sent hash-key writes one)"


class UnusableKeys(ValueError):
    """The file cannot be used; the message says where and why, without quoting its content."""


@dataclass(frozen=True)
class Key:
    """An accepted key, as its SHA-256 digest.

    ``name`` is None for a key from the settings; a limit of None is no limit. ``priority`` is the
    lane of requests that name none; None is the service's default.
    """

    digest: bytes
    name: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    priority: Lane | None = None


class KeyFile:
    """The keys of a file. Not thread-safe.

    The constructor raises UnusableKeys when the file cannot be used. If a later version of the
    file cannot be used, an error is logged and the previous keys stay in force.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._checked = clock()
        self._version, self._keys = _read(path)

    def current(self) -> tuple[Key, ...]:
        """The file's keys, as checked at most CHECK_INTERVAL_SECONDS ago."""
        now = self._clock()
        if now - self._checked >= CHECK_INTERVAL_SECONDS:
            self._checked = now
            self._reload_if_changed()
        return self._keys

    def latest(self) -> tuple[Key, ...]:
        """The file's keys, as checked now."""
        self._reload_if_changed()
        return self._keys

    def _reload_if_changed(self) -> None:
        version = _version_at(self._path)
        if version == self._version:
            return
        try:
            self._version, self._keys = _read(self._path)
        except UnusableKeys as error:
            self._version = version  # so that the error is logged once
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("the API keys were read again: %d", len(self._keys))


def digest_of(key: str | bytes) -> bytes:
    """The SHA-256 of a key in UTF-8; bytes are hashed as they are."""
    sent = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    return hashlib.sha256(sent).digest()


def new_key() -> str:
    """A random key of 256 bits, long enough that its digest needs no slow hash."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_line(name: str, key: str, **options: int | str | None) -> str:
    """A key's line in the file; raises UnusableKeys for an invalid name, limit or priority."""
    fields = [f"{option}={value}" for option, value in options.items() if value is not None]
    _check_name(name)
    _parse_options(fields)
    return " ".join([name, digest_of(key).hex(), *fields])


def parse_keys(text: str) -> tuple[Key, ...]:
    """The keys in a file's text, at least one; raises UnusableKeys."""
    keys: list[Key] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.partition("#")[0].split()
        if fields:
            try:
                keys.append(_parse_key(fields))
            except UnusableKeys as error:
                raise UnusableKeys(f"line {number}: {error}") from None
    if not keys:
        raise UnusableKeys(f"there is no key in it. Add a line: {_LINE}.")
    for what, values in (("name", [k.name for k in keys]), ("key", [k.digest for k in keys])):
        if len(set(values)) < len(values):
            raise UnusableKeys(f"a {what} stands there twice. Take one of its lines out.")
    return tuple(keys)


def _parse_key(fields: list[str]) -> Key:
    # No message quotes the line: it may contain a key by mistake.
    if len(fields) < 2:
        raise UnusableKeys(f"it has one word. Write {_LINE}.")
    name, digest, *options = fields
    _check_name(name)
    if not _DIGEST.fullmatch(digest):
        raise UnusableKeys(f"the second word is not 64 lower-case hex digits. Write {_LINE}.")
    return Key(bytes.fromhex(digest), name, **_parse_options(options))


def _parse_options(fields: list[str]) -> dict[str, Any]:
    """The arguments of a `Key` that its fields stand for."""
    options: dict[str, Any] = {}
    for field in fields:
        name, _, value = field.partition("=")
        if name == "priority":
            if value not in LANES or name in options:
                raise UnusableKeys(f"write priority= and {' or '.join(LANES)}, once.")
            options[name] = value
            continue
        match = _LIMIT.fullmatch(field)
        if match is None or not 1 <= int(match[2]) <= MAX_LIMIT or name in options:
            raise UnusableKeys(
                f"a limit is wrong. Write {' or '.join(LIMITS)}, = and 1 to {MAX_LIMIT}, once each."
            )
        options[name] = int(match[2])
    return options


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UnusableKeys("the name must be 1 to 64 of A-Z a-z 0-9 . _ @ -. Choose another.")


# Identifies a version of a file: device, inode, size, times. None if there is no file.
_Version = tuple[int, int, int, int, int] | None


def _version_of(status: os.stat_result) -> _Version:
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def _version_at(path: Path) -> _Version:
    """The version of the file at a path; follows symbolic links, with which Kubernetes updates."""
    try:
        return _version_of(path.stat())
    except OSError:
        return None


def _read(path: Path) -> tuple[_Version, tuple[Key, ...]]:
    """The file's version and its keys, both read from one open file."""
    try:
        with path.open("rb") as file:
            version, content = _version_of(os.fstat(file.fileno())), file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        may_not = isinstance(error, PermissionError)
        cure = "Let this user read it" if may_not else "Put the file there"
        raise UnusableKeys(f"{path} cannot be read: {reason}. {cure}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise UnusableKeys(f"{path} has more than {MAX_FILE_BYTES} bytes. Take keys out.")
    try:
        return version, parse_keys(content.decode())
    except UnicodeDecodeError:
        raise UnusableKeys(f"{path} is not UTF-8 text. Write one line per key: {_LINE}.") from None
    except UnusableKeys as error:
        raise UnusableKeys(f"{path}, {error}") from None
