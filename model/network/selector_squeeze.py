"""Frequency selection: a sentence's blocks squeezed to one vector by a two-dimensional DCT.

The DCT runs over (block, token). Shapes: B sentences, L tokens (padded), D features, N blocks,
F distinct token frequencies.
"""

import itertools
import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .selector_config import SelectorConfig
from .selector_states import mean, weighted_sum

GRID_SIZE = 6  # the authors' code pools blocks and tokens to a 6 x 6 grid before its DCT
NUM_TOKEN_FREQUENCIES = 16  # one block alone needs this many for num_frequencies = 16

# FcaNet's low frequencies (arXiv 2012.11879), in its order: (block frequency, token frequency).
LOW_FREQUENCIES = (
    *((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (2, 1), (1, 2)),
    *((2, 2), (0, 3), (3, 0), (4, 0), (0, 4), (1, 3), (3, 1), (0, 5)),
)

# (power, factor): a coefficient over P points is the mean of `points * cosine` times P ** power,
# and times the factor at frequencies above 0.
DCT_NORMS = {
    "mean": (0.0, 1.0),
    "mean_ac": (0.0, math.sqrt(2)),
    "ortho": (0.5, math.sqrt(2)),
    "sum": (1.0, 1.0),
}


def frequency_pairs(config: SelectorConfig) -> list[tuple[int, int]]:
    """The (block, token) frequency pair of each of the m parts of the features, lowest first.

    Where filtering leaves too few of FcaNet's 16 pairs, further pairs (a, b) follow in order of
    a + b, then of a.
    """
    if config.frequency_policy == "raw":
        return list(LOW_FREQUENCIES[: config.num_frequencies])
    points = config.num_heads if config.dct_grid == "exact" else min(config.num_heads, GRID_SIZE)
    known = {pair: place for place, pair in enumerate(LOW_FREQUENCIES)}
    along_tokens = 1 if config.squeeze_scope == "token" else NUM_TOKEN_FREQUENCIES
    live = sorted(
        itertools.product(range(points), range(along_tokens)),
        key=lambda pair: (known.get(pair, len(known)), sum(pair), pair),
    )
    if config.frequency_seed:
        # A checkpoint stores only the seed; random() gives the same numbers in every Python.
        draw = random.Random(config.frequency_seed)  # noqa: S311
        drawn = sorted(live, key=lambda _: draw.random())[: config.num_frequencies]
        live = [pair for pair in live if pair in drawn]
    return live[: config.num_frequencies]


def axis_basis(frequencies: Tensor, mask: Tensor, config: SelectorConfig) -> Tensor:
    """DCT-II rows [B, F, P]: their product with P points is the mean of `points * cosine`.

    ``frequencies`` is [F]; ``mask`` [B, P] is 1 at valid points and gives the dtype. A point's
    position is its rank among the valid ones, so padding on either side changes nothing.
    """
    mask = mask[:, None]  # [B, 1, P]
    frequencies = frequencies[:, None].to(mask.dtype)  # [F, 1]
    rank = mask.cumsum(-1) - 1
    length = mask.sum(-1, keepdim=True).clamp(min=1)  # [B, 1, 1]
    if config.dct_grid == "exact":
        basis = torch.cos(math.pi * frequencies * ((rank + 0.5) / length)) * (mask / length)
        return basis if config.frequency_policy == "raw" else basis * (frequencies < length)
    # Adaptive average pooling to a grid, whose cells overlap unless they divide the length.
    cell = torch.arange(GRID_SIZE, dtype=mask.dtype, device=mask.device)[:, None]  # [G, 1]
    start = torch.floor(cell * length / GRID_SIZE)  # [B, G, 1]
    stop = torch.ceil((cell + 1) * length / GRID_SIZE)
    members = ((rank >= start) & (rank < stop)) * mask  # [B, G, P]
    cosine = torch.cos(math.pi * frequencies * ((cell.T + 0.5) / GRID_SIZE))  # [F, G]
    return cosine @ (members / (stop - start)) / GRID_SIZE


class FrequencySelection(nn.Module):
    """The squeeze: f [B, D], in which each part of the features holds one DCT coefficient (Eq. 10).

    f is linear in the blocks, so one basis along the tokens is applied to each block and the
    results are summed over the blocks. The N x L x D stack is never built.
    """

    block_frequencies: Tensor  # [D] int64, along the blocks, for each feature
    token_frequencies: Tensor  # [D] int64, along the tokens, for each feature
    rows: Tensor  # [F] int64, the distinct token frequencies, rising

    def __init__(self, config: SelectorConfig) -> None:
        super().__init__()
        self.config = config
        pairs = torch.tensor(frequency_pairs(config))
        parts = torch.arange(config.width).tensor_split(len(pairs))  # the first ones are wider
        block, token = pairs.repeat_interleave(torch.tensor([*map(len, parts)]), dim=0).unbind(1)
        # Integers survive .half() and .double(), so every cosine is computed in full precision.
        self.register_buffer("block_frequencies", block, persistent=False)
        self.register_buffer("token_frequencies", token, persistent=False)
        self.register_buffer("rows", torch.tensor(sorted(set(token.tolist()))), persistent=False)

    def token_basis(self, mask: Tensor) -> Tensor:
        """Rows [B, F, L]; their product with a block's states is its spectrum along the tokens."""
        return axis_basis(self.rows, self._seen(mask), self.config)

    def forward(self, spectra: Sequence[Tensor], mask: Tensor) -> Tensor:
        """f [B, D] from the spectrum ``token_basis @ states`` [B, F, D] of each block."""
        if self.config.spatial_selection == "1d":
            spectra = [mean(spectra)]
        stack = mask.new_ones(1, len(spectra))
        along_blocks = axis_basis(self.block_frequencies, stack, self.config)[0].T  # [N, D]
        own_row = self.rows[:, None] == self.token_frequencies  # [F, D]
        f = weighted_sum(along_blocks, [(spectrum * own_row).sum(1) for spectrum in spectra])
        if self.config.dct_norm == "mean":
            return f
        tokens = self._seen(mask)
        return (
            f
            * self._scale(self.block_frequencies, stack)
            * self._scale(self.token_frequencies, tokens)
        )

    def _seen(self, mask: Tensor) -> Tensor:
        return mask if self.config.mask == "valid" else torch.ones_like(mask)

    def _scale(self, frequencies: Tensor, points: Tensor) -> Tensor:  # [B or 1, D]
        power, factor = DCT_NORMS[self.config.dct_norm]
        count = points.sum(-1, keepdim=True).clamp(min=1)
        if self.config.dct_grid == "6x6":
            count = torch.full_like(count, GRID_SIZE)
        return count**power * (1 + (factor - 1) * (frequencies > 0).to(count.dtype))


def share_rows(selector: nn.Module) -> None:
    """Give all squeezes in a selector the token frequencies of each: its exits read equal spectra.

    One product of a block with these rows then serves every exit.
    """
    squeezes = [part for part in selector.modules() if isinstance(part, FrequencySelection)]
    frequencies = {row for squeeze in squeezes for row in squeeze.rows.tolist()}
    rows = torch.tensor(sorted(frequencies))
    for squeeze in squeezes:
        squeeze.rows = rows
