"""The file of API keys: names and SHA-256 digests, never a key, read again when it has changed.

A line is a name, the SHA-256 of the key in hex and, where there are limits, ``limit=number``; what
follows a # is a comment.
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

logger = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 1.0
MAX_FILE_BYTES = 1_048_576

# So that a key that leaked into a repository or a log can be found by what it begins with.
KEY_PREFIX = "s2s_"
KEY_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
LIMITS = ("requests_per_minute", "tokens_per_minute")
MAX_LIMIT = 1_000_000_000
_LIMIT = re.compile(rf"({'|'.join(LIMITS)})=([0-9]{{1,10}})")
_LINE = "name sha256 (s2sent hash-key writes one)"


class UnusableKeys(ValueError):
    """The file cannot be used; the message says where and why, and never what stands there."""


@dataclass(frozen=True)
class Key:
    """An accepted key, as its digest; ``name`` is None for one that the settings hold.

    A limit that is None does not exist.
    """

    digest: bytes
    name: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class KeyFile:
    """The keys of a file. Not safe to share between threads.

    Raises UnusableKeys when the file cannot be used at first. A later version that cannot be used
    is an error in the log, and the keys stay as they were.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._checked = clock()
        self._version, self._keys = _read(path)

    def current(self) -> tuple[Key, ...]:
        """What the file held when it was last looked at, at most a second ago."""
        now = self._clock()
        if now - self._checked >= CHECK_INTERVAL_SECONDS:
            self._checked = now
            self._look()
        return self._keys

    def _look(self) -> None:
        version = _version_at(self._path)
        if version == self._version:
            return
        try:
            self._version, self._keys = _read(self._path)
        except UnusableKeys as error:
            self._version = version  # said once, not every second
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("the API keys were read again: %d", len(self._keys))


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key; a header's bytes that are not UTF-8 are taken as they came."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key() -> str:
    """A random key of 256 bits, which no slow hash has to protect."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_line(name: str, key: str, **limits: int | None) -> str:
    """The line of a key in the file; raises UnusableKeys for a name or limit it may not have."""
    fields = [f"{limit}={number}" for limit, number in limits.items() if number is not None]
    _check_name(name)
    _parse_limits(fields)
    return " ".join([name, digest_of(key).hex(), *fields])


def parse_keys(text: str) -> tuple[Key, ...]:
    """The keys of a file's text, of which there must be one; raises UnusableKeys."""
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
    # No message repeats what it read: it may be a key, written there by mistake.
    if len(fields) < 2:
        raise UnusableKeys(f"it has one word. Write {_LINE}.")
    name, digest, *limits = fields
    _check_name(name)
    if not _DIGEST.fullmatch(digest):
        raise UnusableKeys(f"the second word is not 64 lower-case hex digits. Write {_LINE}.")
    return Key(bytes.fromhex(digest), name, **_parse_limits(limits))


def _parse_limits(fields: list[str]) -> dict[str, int]:
    limits = {}
    for field in fields:
        match = _LIMIT.fullmatch(field)
        if match is None or not 1 <= int(match[2]) <= MAX_LIMIT or match[1] in limits:
            raise UnusableKeys(
                f"a limit is wrong. Write {' or '.join(LIMITS)}, = and 1 to {MAX_LIMIT}, once each."
            )
        limits[match[1]] = int(match[2])
    return limits


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UnusableKeys("the name must be 1 to 64 of A-Z a-z 0-9 . _ @ -. Choose another.")


# What tells one version of a file from the next; None where there is no file.
_Version = tuple[int, int, int, int, int] | None


def _version_of(status: os.stat_result) -> _Version:
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def _version_at(path: Path) -> _Version:
    """Symbolic links are followed: Kubernetes puts a Secret's new version in place with one."""
    try:
        return _version_of(path.stat())
    except OSError:
        return None


def _read(path: Path) -> tuple[_Version, tuple[Key, ...]]:
    """The file's version and its keys, both from one open file."""
    try:
        with path.open("rb") as file:
            version, content = _version_of(os.fstat(file.fileno())), file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UnusableKeys(f"{path} cannot be read: {reason}. Put the file there.") from None
    if len(content) > MAX_FILE_BYTES:
        raise UnusableKeys(f"{path} has more than {MAX_FILE_BYTES} bytes. Take keys out.")
    try:
        return version, parse_keys(content.decode())
    except UnicodeDecodeError:
        raise UnusableKeys(f"{path} is not UTF-8 text. Write one line per key: {_LINE}.") from None
    except UnusableKeys as error:
        raise UnusableKeys(f"{path}, {error}") from None
