"""The rows of all input files as one sequence, from any row on."""

from contextlib import ExitStack

from s2sent.service.bulk.input.files import InputFile, RowReader
from s2sent.service.bulk.job import InputError, InputRow, Options


class InputRows:
    """The rows of all input files, one after another."""

    def __init__(self, files: list[InputFile], options: Options, max_characters: int) -> None:
        self._files = list(files)
        self._options = options
        self._max_characters = max_characters
        self._next = 0  # the number of the row that comes next
        self._left = 0  # rows of the open file that are not read
        self._stack = ExitStack()
        self._reader: RowReader | None = None

    def __enter__(self) -> "InputRows":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def skip_to(self, row: int) -> None:
        """Go forward to a row; whole files are passed over unread."""
        while self._next < row:
            if not self._left and self._files[0].rows <= row - self._next:
                self._next += self._files.pop(0).rows
                continue
            self._move(self._open().skip(min(row - self._next, self._left)))

    def take(self, count: int, characters: int) -> list[InputRow]:
        """The next ``count`` rows, fewer where they have so many characters together."""
        rows: list[InputRow] = []
        while len(rows) < count and characters > 0:
            taken = self._open().take(min(count - len(rows), self._left), characters)
            self._move(len(taken))
            rows += taken
            characters -= sum(row.characters for row in taken)
        return rows

    def _open(self) -> RowReader:
        while not self._left:
            self._stack.close()
            file = self._files.pop(0)
            self._left = file.rows
            reader = RowReader(file, self._options, max_characters=self._max_characters)
            self._reader = self._stack.enter_context(reader)
        assert self._reader is not None  # noqa: S101  # there are rows left of it
        return self._reader

    def _move(self, rows: int) -> None:
        if not rows:
            raise InputError(
                f"The input ended before row {self._next + 1}: it has changed since the run began."
                " Begin again with --overwrite when it is written."
            )
        self._next += rows
        self._left -= rows
