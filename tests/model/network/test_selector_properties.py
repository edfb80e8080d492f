"""An embedding is a function of its sentence: padding and batch mates change nothing (fp64)."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig

EXACT = 1e-12  # rounding of float64 sums over at most 64 tokens of values around 1
WIDTH = 18  # no multiple of 4: parts of unequal size are always among the cases

gates = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(2, 12),
        "num_frequencies": st.sampled_from([0, 1, 2, 4, 8, 16]),
        "activation": st.sampled_from(["relu", "tanh"]),
        "norm": st.sampled_from(["none", "layer"]),
        "weight_norm": st.sampled_from(["softmax_blocks", "softmax_logits", "none", "exp"]),
        "pooling": st.sampled_from(["mean", "cls"]),
    }
)
squeezes = st.fixed_dictionaries(
    {
        "dct_grid": st.sampled_from(["exact", "6x6"]),
        "dct_norm": st.sampled_from(["mean", "mean_ac", "ortho", "sum"]),
        "frequency_policy": st.sampled_from(["filtered", "raw"]),
    }
) | st.fixed_dictionaries(
    {
        "dct_norm": st.sampled_from(["mean", "mean_ac", "ortho", "sum"]),
        "frequency_seed": st.integers(1, 9),
    }
)
lengths = st.lists(st.integers(1, 64), min_size=1, max_size=5)


@st.composite
def selectors(draw: st.DrawFn) -> S2SentSelector:
    options: dict[str, Any] = draw(gates)
    if options["num_frequencies"]:
        options |= draw(squeezes)
    one_head = draw(st.booleans())
    if one_head and not options["weight_norm"].startswith("softmax"):
        options |= draw(st.sampled_from([{"num_blocks": 1}, {"spatial_selection": "1d"}]))
    return random_selector(SelectorConfig(width=WIDTH, reduction=3, **options))


def random_selector(config: SelectorConfig) -> S2SentSelector:
    torch.manual_seed(0)
    selector = S2SentSelector(config).double().eval()
    for parameter in selector.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return selector


def sentence(selector: S2SentSelector, length: int, seed: int) -> list[Tensor]:
    """The blocks [1, length, D] of one sentence."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, length, WIDTH)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for _ in range(selector.config.num_blocks)
    ]


def batch(
    sentences: list[list[Tensor]], before: list[int], width: int
) -> tuple[list[Tensor], Tensor]:
    """Blocks and mask of all sentences, each with `before` garbage tokens on its left."""
    rows, masks = [], []
    for blocks, left in zip(sentences, before, strict=True):
        right = width - left - blocks[0].shape[1]
        pad = torch.nn.functional.pad
        rows.append([pad(block, (0, 0, left, right), value=1e3) for block in blocks])
        masks.append(pad(torch.ones(1, blocks[0].shape[1], dtype=torch.int64), (left, right)))
    return [torch.cat(column) for column in zip(*rows, strict=True)], torch.cat(masks)


@given(selectors(), lengths, st.randoms(use_true_random=False), st.integers(0, 9))
@settings(max_examples=60)
def test_neither_padding_nor_batch_mates_change_an_embedding(
    selector: S2SentSelector, lengths: list[int], random: Any, spare: int
) -> None:
    sentences = [sentence(selector, length, seed) for seed, length in enumerate(lengths)]
    alone = [selector.pool(blocks, torch.ones(1, blocks[0].shape[1])) for blocks in sentences]
    width = max(lengths) + spare
    for before in (
        [0 for _ in lengths],
        [width - length for length in lengths],
        [random.randint(0, width - length) for length in lengths],
    ):
        blocks, mask = batch(sentences, before, width)
        together = selector.pool(blocks, mask)
        scale = together.abs().max().clamp(min=1)
        assert (together - torch.cat(alone)).abs().max() <= EXACT * scale


@given(selectors(), lengths)
@settings(max_examples=60)
def test_pooling_the_blocks_first_equals_fusing_first(
    selector: S2SentSelector, lengths: list[int]
) -> None:
    sentences = [sentence(selector, length, seed) for seed, length in enumerate(lengths)]
    blocks, mask = batch(sentences, [0 for _ in lengths], max(lengths))
    fused = selector.fuse(blocks, mask)
    if selector.config.pooling == "cls":
        expected = fused[:, 0]
    else:
        expected = (fused * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    scale = expected.abs().max().clamp(min=1)
    assert (selector.pool(blocks, mask) - expected).abs().max() <= EXACT * scale


@given(st.integers(1, 12), lengths)
@settings(max_examples=30)
def test_low_1_is_global_average_pooling(num_blocks: int, lengths: list[int]) -> None:
    selector = random_selector(
        SelectorConfig(width=WIDTH, num_blocks=num_blocks, num_frequencies=1, weight_norm="none")
    )
    squeeze = selector.frequency_selection
    assert squeeze is not None
    sentences = [sentence(selector, length, seed) for seed, length in enumerate(lengths)]
    blocks, mask = batch(sentences, [0 for _ in lengths], max(lengths))
    mask = mask.double()
    f = squeeze([squeeze.token_basis(mask) @ block for block in blocks], mask)
    expected = torch.cat([torch.stack(parts).mean(dim=(0, 2)) for parts in sentences])
    assert (f - expected).abs().max() <= EXACT


@given(selectors())
@settings(max_examples=40)
def test_softmax_weights_sum_to_one_and_the_others_stay_in_bounds(selector: S2SentSelector) -> None:
    weights = selector.block_weights(sentence(selector, 7, 0), torch.ones(1, 7))
    gates = 1 if selector.config.spatial_selection == "2d" else selector.config.num_blocks
    low, high = {"none": (0.0, 1.0), "exp": (1.0, torch.e)}.get(
        selector.config.weight_norm, (0.0, 1.0)
    )
    assert low <= (weights * gates).min()
    assert (weights * gates).max() <= high
    if selector.config.weight_norm.startswith("softmax"):
        assert (weights.sum(0) - 1).abs().max() <= EXACT
