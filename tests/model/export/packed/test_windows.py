"""The blocks of local attention: a text's own, whatever stands before it in the batch."""

import pytest
import torch

from s2sent.model.export.packed.attention import MASKED, PackedRows
from s2sent.model.export.packed.windows import Windows

REACH, WIDTH, HEADS = 8, 16, 2


def rows_of(lengths: list[int]) -> PackedRows:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return PackedRows.of(mask.long())


@pytest.mark.parametrize("before", [1, 15, 16, 17, 63])
@pytest.mark.parametrize("length", [16, 17, 32, 80])
def test_a_text_behind_another_has_the_blocks_that_it_has_alone(before: int, length: int) -> None:
    alone, behind = (
        Windows.of(rows_of([length]), REACH),
        Windows.of(rows_of([before, length]), REACH),
    )
    count = len(alone.blocks)
    torch.testing.assert_close(behind.blocks[-count:] - before, alone.blocks, rtol=0, atol=0)
    seen = alone.seen.shape[1]  # what only others need stands behind it, hidden
    torch.testing.assert_close(behind.seen[-count:, :seen] - before, alone.seen, rtol=0, atol=0)
    torch.testing.assert_close(behind.bias[-count:, ..., :seen], alone.bias, rtol=0, atol=0)
    assert (behind.bias[-count:, ..., seen:] == MASKED).all()


@pytest.mark.parametrize("lengths", [[1], [3, 5], [8, 1, 16], [17, 16, 9, 40], [50, 1, 33]])
def test_a_token_attends_to_its_texts_tokens_within_reach_alone(lengths: list[int]) -> None:
    total = sum(lengths)
    query, key, value = torch.randn(3, total, WIDTH, generator=torch.Generator().manual_seed(1))
    windows = Windows.of(rows_of(lengths), REACH)
    joint = torch.cat([query, key, value], dim=1)[None]
    found = windows.attend(joint, heads=HEADS, scale=0.5, fused=False)[0]

    text = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(total)
    near = (place[:, None] - place).abs() <= REACH
    heads = [part.reshape(total, HEADS, -1).transpose(0, 1) for part in (query, key, value)]
    scores = heads[0] @ heads[1].transpose(1, 2) * 0.5
    scores = scores.masked_fill(~(near & (text[:, None] == text)), -torch.inf)
    expected = (scores.softmax(-1) @ heads[2]).transpose(0, 1).reshape(total, WIDTH)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
