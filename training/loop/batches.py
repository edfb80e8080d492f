"""Batches of texts of similar length, which have little padding."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from datasets import Dataset
from sentence_transformers.base.sampler import DefaultBatchSampler

BATCHES_PER_POOL = 32  # whose texts are sorted together


class LengthBatches(DefaultBatchSampler):
    """Each epoch shuffles the rows, sorts pools of them by length, and shuffles their batches.

    A row's length is that of its first text in characters. The order follows from the seed of
    ``generator``, which is the recipe's: the trainer leaves the argument ``seed`` at 0.
    """

    def __init__(self, dataset: Any, *, generator: torch.Generator, **options: Any) -> None:
        super().__init__(dataset, generator=generator, **options)
        self._first_seed = generator.initial_seed()

    def __iter__(self) -> Iterator[list[int]]:
        order_of = torch.Generator().manual_seed(self._first_seed + self.epoch)
        texts = cast(Dataset, self.sampler)  # what the library hands over
        rows = texts[texts.column_names[0]]
        order = torch.randperm(len(rows), generator=order_of).tolist()
        pool = BATCHES_PER_POOL * self.batch_size
        for start in range(0, len(order), pool):
            rising = sorted(order[start : start + pool], key=lambda row: len(rows[row]))
            batches = [
                rising[first : first + self.batch_size]
                for first in range(0, len(rising), self.batch_size)
            ]
            for place in torch.randperm(len(batches), generator=order_of).tolist():
                if len(batches[place]) == self.batch_size or not self.drop_last:
                    yield batches[place]
