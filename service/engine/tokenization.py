"""Tokenising and decoding for many requests: short work on the event loop, long work in threads."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from s2sent.model.runtime.input_errors import UnusableInput
from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.engine.admission import empty_input
from s2sent.service.engine.types import TextTokenizer
from s2sent.service.errors import InvalidInput, ServiceError
from s2sent.service.threads import Panic, contain_panics, no_more_threads, pool_of

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")

MAX_TOKENIZER_THREADS = 4

# A request of so many characters or ids is worked on by the event loop: that takes about 0.1 ms,
# and waking a thread takes longer on a busy machine. 0 sends every request to a thread.
INLINE_CHARACTERS = 500

# The longest work on token spans between two looks at the deadline and the client: some 10 ms.
SLICE_CHARACTERS = 16_384


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The texts of a request as token ids, the errors of single texts, and the time it took.

    The row of a text with an error is not to be used.
    """

    rows: list[TokenizedText]
    errors: dict[int, ServiceError] | None  # by position; None where an error ends the request
    seconds: float


class TokenizationThreads:
    """The threads that tokenise: ``threads`` for texts to embed, and one for token spans.

    Token spans have one thread, because making them holds Python's lock, which the event loop
    needs too; and a thread of their own, so that no text to embed waits for a long list of them.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token_ids = pool_of(threads, "tokenize")
        self._token_spans = pool_of(1, "token-spans")

    async def token_ids(
        self,
        tokenizer: TextTokenizer,
        texts: Sequence[str | Sequence[int]],
        *,
        skip_failed: bool = False,
        first: int = 0,
        **options: Any,
    ) -> Tokenized:
        """The token ids of each text; ``options`` as in `TextTokenizer.tokenize`.

        ``first`` is the position of the first text in its request, by which errors name them.
        Raises InvalidInput for a text that does not fit, or ids outside the vocabulary, and
        EmptyInput for one without tokens. With ``skip_failed`` these are returned, by position.
        """
        started = self._clock()
        if skip_failed:
            each = partial(_tokenize_each, tokenizer, texts, options)
            found, errors = await _run(self._token_ids, texts, each)
            return Tokenized(found, errors, self._clock() - started)
        work = partial(tokenizer.tokenize, texts, **options)
        try:
            rows = await _run(self._token_ids, texts, work)
        except UnusableInput as error:
            raise InvalidInput(str(type(error)(first + error.index, error.complaint))) from None
        if not all(rows):
            raise empty_input(first + [*map(bool, rows)].index(False), tokenized=True)
        return Tokenized(rows, None, self._clock() - started)

    async def in_slices(
        self, items: Sequence[Item], function: Callable[[Item], Result]
    ) -> list[Result]:
        """``function`` of each item, in order, in slices that take turns with other requests'.

        Cancelling the coroutine ends the work with the slice that is being worked on.
        """
        results: list[Result] = []
        for part in _slices(items):
            results += await _run(self._token_spans, part, partial(_apply, function, part))
        return results

    def shut_down(self) -> None:
        """Let the threads end with what they are working on."""
        for pool in (self._token_ids, self._token_spans):
            pool.shutdown(wait=False, cancel_futures=True)


def start_threads_of(tokenizer: TextTokenizer) -> None:
    """Have the library start the threads between which it divides several texts.

    It starts them with the first such texts, for the whole process. Raises NoMoreThreads.
    """
    try:
        contain_panics(partial(tokenizer.tokenize, ["a", "b"]))
    except Panic as error:
        if "ThreadPoolBuildError" not in str(error):
            raise
        raise no_more_threads("tokenizers") from None


def _tokenize_each(
    tokenizer: TextTokenizer, texts: Sequence[str | Sequence[int]], options: dict[str, Any]
) -> tuple[list[TokenizedText], dict[int, ServiceError]]:
    """Rows and errors by position. The row of a text with an error is not to be used."""
    rows: list[TokenizedText] = []
    errors: dict[int, ServiceError] = {}
    try:
        rows = tokenizer.tokenize(texts, **options)
    except UnusableInput:  # one by one, to know every text at fault
        for index, text in enumerate(texts):
            try:
                rows += tokenizer.tokenize([text], **options)
            except UnusableInput as error:
                rows.append(TokenizedText([], truncated=False))
                errors[index] = InvalidInput(str(type(error)(index, error.complaint)))
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if index not in errors and not (text and row):
            errors[index] = empty_input(index, tokenized=bool(text))
    return rows, errors


def _apply(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


async def _run(
    pool: ThreadPoolExecutor, items: Sequence[Sized], work: Callable[[], Result]
) -> Result:
    """What ``work`` returns; raises Panic where the tokenizer panics."""
    if sum(map(len, items)) <= INLINE_CHARACTERS:
        return contain_panics(work)
    return await asyncio.get_running_loop().run_in_executor(pool, contain_panics, work)


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Neighbours that together reach SLICE_CHARACTERS; only the last slice may stay below."""
    begin, characters = 0, 0
    for end, item in enumerate(items, start=1):
        characters += len(item)
        if characters >= SLICE_CHARACTERS or end == len(items):
            yield items[begin:end]
            begin, characters = end, 0
