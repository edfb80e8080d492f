"""The bytes of an input file, each block of which is compared with what was hashed at the start."""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from s2sent.service.bulk.job import InputError

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 8  # 8 MB for a file of a terabyte


def has_changed(name: str) -> InputError:
    """The error of an input that is not what it was."""
    return InputError(
        f"{name} has changed since the run began. Begin again with --overwrite when it is written."
    )


@dataclass(frozen=True)
class Content:
    """What a file held when it was hashed: ``stamp`` is the state of its inode before."""

    size: int
    sha256: str
    blocks: bytes  # a digest of DIGEST_BYTES for each block of BLOCK_BYTES
    stamp: tuple[int, ...]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file through."""
        stamp, size, whole, blocks = _stamp(path), 0, hashlib.sha256(), bytearray()
        with path.open("rb", buffering=0) as file:
            while block := _read_block(file):
                size += len(block)
                whole.update(block)
                blocks += _digest(block)
        return cls(size, whole.hexdigest(), bytes(blocks), stamp)

    def is_that_of(self, path: Path) -> bool:
        """Whether the file is, by its inode, still the one that was hashed."""
        return self.stamp == _stamp(path)


class UnchangedFile(io.RawIOBase):
    """A file that can be read and searched; raises InputError where it is not ``content``."""

    def __init__(self, path: Path, content: Content, name: str) -> None:
        self._file = path.open("rb", buffering=0)
        self._content = content
        self._name = name
        self._position = 0
        self._number = -1  # of the block that is held
        self._block = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move as in a file of the size that was hashed."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._content.size}
        self._position = max(0, starts[whence] + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer
        """Fill the buffer with what is left of one block; 0 bytes at the end."""
        number, start = divmod(self._position, BLOCK_BYTES)
        if number != self._number:
            self._load(number)
        part = self._block[start : start + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _load(self, number: int) -> None:
        self._file.seek(number * BLOCK_BYTES)
        block = _read_block(self._file)
        digests = self._content.blocks[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
        if (_digest(block) if block else b"") != digests:
            raise has_changed(self._name)
        self._number, self._block = number, block


def _stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _digest(block: bytes) -> bytes:
    return hashlib.blake2b(block, digest_size=DIGEST_BYTES).digest()


def _read_block(file: BinaryIO | io.FileIO) -> bytes:
    """The next BLOCK_BYTES, fewer at the end; a single read may return fewer before it."""
    block = file.read(BLOCK_BYTES) or b""
    while len(block) < BLOCK_BYTES and (more := file.read(BLOCK_BYTES - len(block))):
        block += more
    return block
