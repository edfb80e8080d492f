"""Which rows run together, and in which order."""

import threading
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2sent.service.engine.inference.batcher import Batch, Batcher, Call
from s2sent.service.engine.inference.fair_queue import BatchLimits, PendingRequest, QueuedText
from s2sent.service.lanes import LANES, Lane

NO_FUTURE: Any = None  # the batcher never looks at it


def request(*lengths: int, **options: Any) -> PendingRequest:
    return PendingRequest([[7] * n for n in lengths], dim=1, future=NO_FUTURE, **options)


def batcher(
    *,
    max_batch_tokens: int = 64,
    max_batch_texts: int = 8,
    run_cost_tokens: int = 8,
    max_queue_tokens: int = 100_000,
    bulk_share: float = 0.25,
    **options: Any,
) -> Batcher:
    limits = BatchLimits(max_batch_tokens, max_batch_texts, run_cost_tokens)
    return Batcher(limits, max_queue_tokens=max_queue_tokens, bulk_share=bulk_share, **options)


def take(rows: Batcher) -> list[QueuedText]:
    batch = rows.next_batch()
    assert batch is not None
    return batch.texts


def waiting(rows: Batcher, *requests: PendingRequest) -> list[int]:
    """The lengths of the texts of these requests that wait."""
    heaps = [heap for lane in rows._lanes.values() for heap in lane._heaps.values()]
    texts = [text for heap in heaps for text in heap]
    return [len(text.sequence) for text in texts if text.request in requests]


def texts_before(request: PendingRequest, rows: Batcher) -> int:
    """Texts of the batches until the first that has a text of the request."""
    before, batch = 0, take(rows)
    while request not in {row.request for row in batch}:
        before += len(batch)
        batch = take(rows)
    return before


def lengths_of(batch: list[QueuedText]) -> list[int]:
    return sorted(len(row.sequence) for row in batch)


def padding_of(batch: list[QueuedText]) -> int:
    lengths = lengths_of(batch)
    return len(lengths) * lengths[-1] - sum(lengths)


Plan = list[tuple[int | None, Lane, list[int]]]  # of each request the depth, lane and lengths

lengths_lists = st.lists(st.integers(1, 40), min_size=1, max_size=12)
requests = st.lists(
    st.tuples(st.sampled_from([None, 2, 4]), st.sampled_from(LANES), lengths_lists),
    min_size=1,
    max_size=12,
)


@given(requests)
def test_every_row_comes_out_once_and_no_batch_is_above_its_limits(plan: Plan) -> None:
    rows = batcher()
    submitted = [request(*lengths, depth=depth, lane=lane) for depth, lane, lengths in plan]
    assert all(rows.submit(one) for one in submitted)
    seen = []
    while rows.texts:
        batch = take(rows)
        longest = lengths_of(batch)[-1]
        assert len(batch) <= 8
        assert len(batch) == 1 or len(batch) * longest <= 64
        assert padding_of(batch) <= 8
        assert len({(row.request.depth, row.request.lane) for row in batch}) == 1
        seen += [(row.request, row.position) for row in batch]
    expected = {(one, index) for one in submitted for index in range(len(one.sequences))}
    assert len(seen) == len(expected)
    assert set(seen) == expected
    assert rows.tokens == 0


@given(requests, st.data())
def test_dropped_rows_are_not_handed_out_and_give_their_room_back(
    plan: Plan, data: st.DataObject
) -> None:
    rows = batcher()
    left = [request(*lengths, depth=depth, lane=lane) for depth, lane, lengths in plan]
    for one in left:
        rows.submit(one)
    while rows.texts:
        if data.draw(st.booleans()):
            gone = left.pop(data.draw(st.integers(0, len(left) - 1)))
            before = rows.tokens, sum(waiting(rows, gone))
            rows.drop(gone)
            assert rows.tokens == before[0] - before[1]
        else:
            assert {row.request for row in take(rows)} <= set(left)
        assert rows.tokens == sum(waiting(rows, *left))
        assert rows.texts == len(waiting(rows, *left))
    assert all(rows.oldest_seconds(lane) == 0 for lane in LANES)


@given(requests)
def test_the_row_with_the_lowest_tag_is_always_in_the_batch(plan: Plan) -> None:
    rows = batcher()
    waiting: dict[tuple[float, int], int] = {}  # tag and number: the order promised at the top
    time, number = 0.0, 0
    for request_number, (depth, _, lengths) in enumerate(plan):
        rows.submit(request(*lengths, depth=depth))
        for tag in accumulate(lengths[:-1], initial=time):
            waiting[tag, number] = request_number
            number += 1
        batch = take(rows)
        assert min(waiting) in {(row.tag, row.number) for row in batch}
        for row in batch:
            time += len(row.sequence) / len(set(waiting.values()))
            del waiting[row.tag, row.number]


def test_lengths_that_are_close_run_together() -> None:
    rows = batcher()
    rows.submit(request(10, 30, 11, 31, 10, 29))
    assert lengths_of(take(rows)) == [10, 10, 11]
    assert lengths_of(take(rows)) == [29, 30]
    assert lengths_of(take(rows)) == [31]


def test_row_above_the_token_limit_runs_alone() -> None:
    rows = batcher()
    rows.submit(request(100, 100))
    assert lengths_of(take(rows)) == [100]


def test_late_text_goes_before_the_rest_of_a_long_request() -> None:
    rows = batcher()
    rows.submit(request(*[8] * 2048))
    first = take(rows)
    rows.submit(late := request(8))
    assert {row.request for row in first} != {late}
    assert late in {row.request for row in take(rows)}


@pytest.mark.parametrize("long_requests", [1, 2, 4, 8])
@pytest.mark.parametrize(("length", "depth"), [(8, None), (9, None), (8, 2)])
@pytest.mark.parametrize("batches_before", [1, 10, 100])
def test_a_short_request_waits_for_a_text_or_two_of_each_long_one(
    long_requests: int, length: int, depth: int | None, batches_before: int
) -> None:
    rows = batcher(run_cost_tokens=0)
    for _ in range(long_requests):
        rows.submit(request(*[8] * 2_048))
    for _ in range(batches_before):
        take(rows)
    rows.submit(short := request(length, depth=depth))
    before = texts_before(short, rows)
    assert before <= 2 * 8  # one batch of those whose turn has come, and one of those beside it


def test_a_short_request_does_not_wait_for_long_ones_that_came_one_after_the_other() -> None:
    rows = batcher()
    for _ in range(8):
        rows.submit(request(*[8] * 2_048))
        for _ in range(5):
            take(rows)
    rows.submit(short := request(8))
    assert texts_before(short, rows) <= 2 * 8


def test_long_request_has_its_share_beside_a_flood_of_texts_it_cannot_share_batches_with() -> None:
    """As if the nine that wait at any time were served side by side."""
    rows = batcher(run_cost_tokens=0)
    rows.submit(bulk := request(*[30] * 20))
    others: set[PendingRequest] = set()
    tokens = 0
    while waiting(rows, bulk):
        for depth in [None, 2] * 4:
            if len(others) < 8:
                rows.submit(other := request(8, depth=depth))
                others.add(other)
        batch = take(rows)
        others -= {row.request for row in batch}
        tokens += sum(lengths_of(batch))
        assert tokens <= (8 + 1) * bulk.tokens


def test_rows_of_one_length_and_two_depths_run_apart() -> None:
    rows = batcher()
    rows.submit(one := request(10, 10))
    rows.submit(other := request(10, 10, depth=2))
    assert {row.request for row in take(rows)} == {one}
    assert {row.request for row in take(rows)} == {other}


@pytest.mark.parametrize(("length", "depth"), [(9, None), (8, 2), (9, 2)])
def test_two_long_requests_share_the_engine(length: int, depth: int | None) -> None:
    rows = batcher(run_cost_tokens=0)
    rows.submit(one := request(*[8] * 100))
    rows.submit(other := request(*[length] * 100, depth=depth))
    for _ in range(10):
        take(rows)
    assert abs(sum(waiting(rows, one)) - sum(waiting(rows, other))) <= 150


def test_queue_is_bounded_in_tokens_and_refuses_a_request_whole() -> None:
    rows = batcher(max_queue_tokens=100)
    assert rows.submit(request(40, 40))
    assert not rows.submit(request(10, 11))
    assert rows.tokens == 80
    assert rows.submit(request(20))
    assert rows.is_full("interactive")


def test_empty_queue_takes_a_request_above_the_limit() -> None:
    rows = batcher(max_queue_tokens=100)
    assert rows.submit(request(*[30] * 10))
    assert not rows.submit(request(1))


def test_oldest_request_is_the_one_whose_age_is_told() -> None:
    rows = batcher(clock=lambda: 10.0)
    rows.submit(request(5, arrival=4.0))
    rows.submit(request(20, arrival=7.0))
    assert rows.oldest_seconds("interactive") == 6.0
    take(rows)
    assert rows.oldest_seconds("interactive") == 3.0
    assert rows.oldest_seconds("bulk") == 0.0


def test_close_wakes_the_thread_that_waits() -> None:
    rows = batcher()
    batches: list[Batch | None] = []
    thread = threading.Thread(target=lambda: batches.append(rows.next_batch()))
    thread.start()
    rows.close()
    thread.join(10)
    assert batches == [None]


class Takers:
    """Threads that come for a batch and then hold it, as inference threads do."""

    def __init__(self, rows: Batcher, count: int) -> None:
        self._rows = rows
        self._left = threading.Semaphore(0)
        self.taken: list[Batch] = []
        self._threads = [threading.Thread(target=self._take) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        while len(rows._idle) < count:
            assert all(thread.is_alive() for thread in self._threads)

    def until_taken(self, count: int) -> list[Batch]:
        for _ in range(count):
            assert self._left.acquire(timeout=60)
        return self.taken

    def end(self) -> None:
        self._rows.close()
        for thread in self._threads:
            thread.join(10)

    def _take(self) -> None:
        batch = self._rows.next_batch()
        if batch:
            self.taken.append(batch)
            self._left.release()


def test_much_work_is_shared_between_idle_workers() -> None:
    rows = batcher(num_workers=2, max_batch_tokens=1_000, max_batch_texts=100)
    takers = Takers(rows, 2)
    rows.submit(request(*[10] * 20))
    batches = takers.until_taken(2)
    takers.end()
    assert [len(batch.texts) for batch in batches] == [10, 10]
    assert [batch.exclusive for batch in batches] == [False, False]


@pytest.mark.parametrize(("length", "waiting", "taken"), [(10, 11, 6), (200, 3, 2)])
def test_a_thread_leaves_a_share_to_the_one_that_runs(
    length: int, waiting: int, taken: int
) -> None:
    """Also of few texts, which are one share only while nothing runs."""
    rows = batcher(num_workers=2, max_batch_tokens=1_000, max_batch_texts=100)
    takers = Takers(rows, 2)
    rows.submit(request(length))
    takers.until_taken(1)
    rows.submit(request(*[length] * waiting))
    batches = takers.until_taken(1)
    takers.end()
    assert [(len(batch.texts), batch.exclusive) for batch in batches] == [(1, True), (taken, False)]
    assert rows.texts == waiting - taken


def test_texts_of_one_turn_of_the_event_loop_run_together() -> None:
    turn: list[Call] = []
    rows = batcher(num_workers=2, call_soon=turn.append)
    takers = Takers(rows, 2)
    rows.submit(request(5))
    rows.submit(request(6))
    assert len(rows._idle) == 2
    (wake,) = turn
    wake()
    batches = takers.until_taken(1)
    assert [lengths_of(batch.texts) for batch in batches] == [[5, 6]]
    rows.submit(request(7))
    assert len(turn) == 2  # the next turn's
    takers.end()


def test_little_work_is_not_shared_and_runs_alone() -> None:
    rows = batcher(num_workers=2, max_batch_tokens=1_000, max_batch_texts=100)
    takers = Takers(rows, 2)
    rows.submit(request(10, 10))
    batches = takers.until_taken(1)
    takers.end()
    assert [(len(batch.texts), batch.exclusive) for batch in batches] == [(2, True)]


@pytest.mark.parametrize(
    ("texts", "batches"), [(2, [(2, True)]), (3, [(3, True)]), (4, [(2, False), (2, False)])]
)
def test_few_texts_run_together_on_two_cores_however_long_they_are(
    texts: int, batches: list[tuple[int, bool]]
) -> None:
    rows = batcher(num_workers=2, max_batch_tokens=1_000, max_batch_texts=100)
    takers = Takers(rows, 2)
    rows.submit(request(*[200] * texts))
    taken = takers.until_taken(len(batches))
    takers.end()
    assert [(len(batch.texts), batch.exclusive) for batch in taken] == batches


@pytest.mark.parametrize("workers", [3, 4, 16])
def test_few_long_texts_are_shared_between_more_than_two_cores(workers: int) -> None:
    rows = batcher(num_workers=workers, max_batch_tokens=1_000, max_batch_texts=100)
    takers = Takers(rows, workers)
    rows.submit(request(200, 200, 200))
    taken = takers.until_taken(3)
    takers.end()
    assert [(len(batch.texts), batch.exclusive) for batch in taken] == [(1, False)] * 3


def test_a_batch_is_not_alone_while_another_runs() -> None:
    rows = batcher(num_workers=2)
    takers = Takers(rows, 2)
    rows.submit(request(10))
    takers.until_taken(1)
    rows.submit(request(10))
    batches = takers.until_taken(1)
    takers.end()
    assert [batch.exclusive for batch in batches] == [True, False]


def test_a_batch_is_exclusive_when_no_other_waits() -> None:
    rows = batcher(max_batch_texts=1)
    exclusive = []
    for waiting in (1, 2, 1):
        assert rows.submit(request(*[10] * waiting))
        while rows.texts:
            batch = rows.next_batch()
            assert batch is not None
            exclusive.append(batch.exclusive)
    assert exclusive == [True, False, True, True]  # the first of two leaves the other waiting


def test_an_empty_batch_says_that_nothing_came() -> None:
    rows = batcher(num_workers=2)
    batch = rows.next_batch(0.001)
    assert batch is not None
    assert batch.texts == []
    assert len(rows._idle) == 0
    rows.submit(request(10))
    assert len(take(rows)) == 1


@pytest.mark.parametrize("cost", [0, 8, 50])
def test_padding_never_costs_more_than_a_run_of_its_own(cost: int) -> None:
    rows = batcher(run_cost_tokens=cost, max_batch_tokens=10_000, max_batch_texts=100)
    rows.submit(request(*range(1, 41)))
    while rows.texts:
        assert padding_of(take(rows)) <= cost


def test_padding_is_cheap_for_an_encoder_that_packs() -> None:
    """Short rows of mixed lengths go together; a long one that would pad all of them does not."""
    rows = batcher(run_cost_tokens=12, max_batch_tokens=10_000, max_batch_texts=100)
    rows.limits.packed = True
    rows.submit(request(*range(5, 15), 256))
    batches = [lengths_of(take(rows)) for _ in range(2)]
    assert batches == [[*range(5, 15)], [256]]


@pytest.mark.parametrize(("longest", "cost"), [(40, 0.2), (128, 0.25), (512, 1.0), (2048, 1.0)])
def test_padding_of_an_encoder_that_packs_costs_what_its_attention_takes(
    longest: int, cost: float
) -> None:
    """So many rows half as long join a long one as are paid by the run they save, and no more."""
    rows = batcher(run_cost_tokens=200, max_batch_tokens=100_000, max_batch_texts=1000)
    rows.limits.packed = True
    rows.submit(request(longest, *[longest // 2] * 500))
    joined = len(take(rows)) - 1
    assert joined * (longest // 2) * cost <= 200
    assert (joined + 1) * (longest // 2) * cost > 200
