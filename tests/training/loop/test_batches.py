"""Batches of texts of similar length: every row once an epoch, little padding, one order a seed."""

import torch
from datasets import Dataset

from s2sent.training.loop.batches import LengthBatches

ROWS = Dataset.from_dict({"anchor": ["x" * (1 + row * 7 % 97) for row in range(330)]})


def batches(*, epoch: int = 0, drop_last: bool = True, seed: int = 5) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    sampler = LengthBatches(ROWS, batch_size=8, drop_last=drop_last, generator=generator)
    sampler.set_epoch(epoch)
    return [*sampler]


def test_every_row_is_in_one_batch() -> None:
    assert sorted(row for batch in batches(drop_last=False) for row in batch) == [*range(330)]
    whole = batches()
    assert [len(batch) for batch in whole] == [8] * 41
    sampler = LengthBatches(ROWS, batch_size=8, drop_last=True, generator=torch.Generator())
    assert len(sampler) == len(whole)


def test_texts_of_a_batch_are_of_similar_length() -> None:
    spread = [max(map(length, batch)) - min(map(length, batch)) for batch in batches()]
    assert sum(spread) / len(spread) < 10  # of 97


def length(row: int) -> int:
    return len(ROWS["anchor"][row])


def test_a_seed_gives_one_order_and_each_epoch_another() -> None:
    assert batches() == batches()
    assert batches() != batches(epoch=1)
    assert batches() != batches(seed=7)
