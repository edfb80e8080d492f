"""The S2Sent selector: a weighted sum of an encoder's last blocks, weighed per block and feature.

Frequency selection squeezes the last N blocks to one vector per sentence with a two-dimensional DCT
over (block, token). Spatial selection turns that vector into one weight per block and feature, and
the weighted sum of the blocks replaces the encoder's output (S2Sent, arXiv 2508.18164, Eq. 2-11).

Every checkpoint carries a copy of this file as ``modeling_s2sent.py``, so that it loads where this
project is not installed: hence it is one file of more than 300 lines, and imports nothing but torch
and sentence-transformers.

Of a causal language model one token stands for the sentence; ``read_positions`` say which, and
``squeeze_scope`` keeps the gate from seeing the tokens behind it.

Shapes: B sentences, L tokens (padded), D features, N blocks, F distinct token frequencies.
"""

import itertools
import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import torch
from sentence_transformers.base.modules.module import Module
from torch import Tensor, nn

MODULE_FILE = "modeling_s2sent.py"
GRID_SIZE = 6  # the authors' code pools blocks and tokens to a 6 x 6 grid before its DCT
NUM_TOKEN_FREQUENCIES = 16  # one block alone needs this many for num_frequencies = 16
INIT_STD = 0.02
NORM_EPSILON = 1e-12  # beside the mean square of a state

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

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's equations, repaired where they degenerate.
    "default": {},
    # Eq. 2-11 literally: no biases, a plain DCT sum, degenerate frequencies left in.
    "paper": {"bias": False, "dct_norm": "sum", "frequency_policy": "raw"},
    # The authors' released code: an embedding depends on its padding and its batch.
    "official": {
        "block_choice": "skip_last",
        "activation": "tanh",
        "norm": "batch",
        "weight_norm": "global",
        "dct_grid": "6x6",
        "dct_norm": "ortho",
        "frequency_policy": "raw",
        "mask": "none",
    },
    # For causal language models: the blocks differ in scale by orders of magnitude, and the gate
    # looks at the token that is read, or at the tokens up to it.
    "decoder": {
        "pooling": "token",
        "squeeze_scope": "token",
        "num_frequencies": 2,
        "input_norm": "rms",
        "weight_norm": "softmax_logits",
    },
    "decoder-prefix": {
        "pooling": "token",
        "squeeze_scope": "prefix",
        "input_norm": "rms",
        "weight_norm": "softmax_logits",
    },
}

SQUEEZE_FIELDS = frozenset(
    {"dct_grid", "dct_norm", "frequency_policy", "frequency_seed", "mask", "squeeze_scope"}
)
GATE_FIELDS = SQUEEZE_FIELDS | {
    *("num_frequencies", "reduction", "activation", "norm", "weight_norm", "bias"),
}


@dataclass(frozen=True, kw_only=True)
class SelectorConfig:
    """The configuration of a selector; raises ValueError for one that cannot be built.

    num_frequencies: 0 squeezes nothing and gates each token, 1 is global average pooling, 2-16 is
        low-m.
    reduction: the gate's hidden width is width // reduction.
    spatial_selection: "2d" weighs a stack of blocks; "1d" averages them, then gates the average;
        "avg" only averages and has no parameters.
    block_choice: the last N blocks, or ("skip_last") the N before the last one.
    norm: before the gate's sigmoid, for each block.
    weight_norm: block weights from the gate's sigmoid e. "softmax_blocks" is the softmax of e over
        the blocks, "softmax_logits" of the values before the sigmoid; "none" is e, "exp" is exp(e);
        "global" is exp(e) over its sum across blocks, features and the whole batch.
    frequency_policy: "filtered" drops block frequencies from N up and zeroes token frequencies
        from the sentence's length up; "raw" keeps FcaNet's list and the cosine's aliases.
    frequency_seed: 0 takes the low frequencies; any other seed draws num_frequencies pairs at
        random, a control to them (block frequencies below N, token frequencies below 16).
    mask: the squeeze sees "valid" tokens only, or with "none" the padding too.
    squeeze_scope: the squeeze sees "all" tokens, those up to the one that is read ("prefix"), or
        that one alone ("token": a DCT over the blocks only). The last two need read positions.
    input_norm: what a token's state in a block is divided by first: its root mean square ("rms"),
        its Euclidean length, or nothing.
    pooling: what one sentence's vector is made of: the mean of its tokens, its first token ("cls"),
        or the "token" that is read.
    exits: the depths at which gates of their own weigh the last min(num_blocks, depth) blocks; at
        any other depth the gate of full depth weighs the blocks that there are.
    """

    width: int
    num_blocks: int = 3
    num_frequencies: int = 4
    reduction: int = 12
    spatial_selection: Literal["2d", "1d", "avg"] = "2d"
    block_choice: Literal["last", "skip_last"] = "last"
    activation: Literal["relu", "tanh"] = "relu"
    norm: Literal["none", "batch", "layer"] = "none"
    weight_norm: Literal["softmax_blocks", "softmax_logits", "none", "exp", "global"] = (
        "softmax_blocks"
    )
    bias: bool = True
    dct_grid: Literal["exact", "6x6"] = "exact"
    dct_norm: Literal["mean", "mean_ac", "ortho", "sum"] = "mean"
    frequency_policy: Literal["filtered", "raw"] = "filtered"
    frequency_seed: int = 0
    mask: Literal["valid", "none"] = "valid"
    squeeze_scope: Literal["all", "prefix", "token"] = "all"
    input_norm: Literal["none", "rms", "length"] = "none"
    pooling: Literal["mean", "cls", "token"] = "mean"
    exits: tuple[int, ...] = ()

    @classmethod
    def preset(cls, name: str, *, width: int, **options: Any) -> Self:
        """The preset of this name in ``PRESETS``, with ``options`` replacing its values."""
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}.")
        return cls(**{"width": width, **PRESETS[name], **options})

    @property
    def num_heads(self) -> int:
        """The number of gates that are learned: one per block, or one for their average."""
        return self.num_blocks if self.spatial_selection == "2d" else 1

    def at(self, depth: int) -> "SelectorConfig":
        """The configuration of the exit's own selector after ``depth`` blocks."""
        return replace(self, num_blocks=min(self.num_blocks, depth), exits=())

    def __post_init__(self) -> None:
        self._check_values()
        self._check_exits()
        if self.spatial_selection == "avg":
            self._refuse_idle(GATE_FIELDS, because="spatial_selection='avg' has no gate")
            return
        if self.num_frequencies == 0:
            self._refuse_idle(SQUEEZE_FIELDS, because="num_frequencies=0 has no squeeze")
            if self.norm == "batch":
                raise ValueError(
                    "norm='batch' would see padding with num_frequencies=0: use 'layer'."
                )
        if self.frequency_seed and (self.frequency_policy == "raw" or self.dct_grid == "6x6"):
            raise ValueError(
                f"frequency_seed={self.frequency_seed} may draw frequencies that vanish with "
                "frequency_policy='raw' or dct_grid='6x6': set 'filtered' and 'exact'."
            )
        self._check_scope()
        if self.num_heads == 1 and self.weight_norm.startswith("softmax"):
            if self.num_blocks == 1 and self._follows_preset("paper"):
                warnings.warn(
                    "the paper's softmax over one block is always 1: the selector changes nothing.",
                    stacklevel=3,
                )
                return
            raise ValueError(
                f"weight_norm={self.weight_norm!r} over a single branch is always 1: "
                "set weight_norm='none' or weigh more blocks."
            )

    def _check_values(self) -> None:
        for field in (field for field in fields(self) if field.name != "exits"):
            value, choices = getattr(self, field.name), get_args(field.type)
            if choices and value not in choices:
                raise ValueError(f"{field.name} is {value!r}: choose one of {', '.join(choices)}.")
            if not choices and type(value) is not field.type:
                raise ValueError(f"{field.name} is {value!r}: it must be {field.type}.")
        for name in ("width", "num_blocks", "reduction"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1.")
        if self.frequency_seed < 0:
            raise ValueError(f"frequency_seed is {self.frequency_seed}: it must be at least 0.")
        if self.reduction > self.width and self.spatial_selection != "avg":
            raise ValueError(
                f"reduction is {self.reduction}: it must be at most the width {self.width}."
            )
        if self.num_frequencies not in (0, 1, 2, 4, 8, 16) or self.num_frequencies > self.width:
            raise ValueError(
                f"num_frequencies is {self.num_frequencies}: choose one of 0, 1, 2, 4, 8, 16, "
                f"at most the width {self.width}."
            )

    def _check_scope(self) -> None:
        if self.squeeze_scope != "all" and self.mask == "none":
            raise ValueError(
                f"mask='none' sees every token: leave out squeeze_scope={self.squeeze_scope!r}."
            )
        if self.squeeze_scope == "token" and self.num_frequencies > self.num_heads:
            raise ValueError(
                f"num_frequencies is {self.num_frequencies} but squeeze_scope='token' has only the "
                f"{self.num_heads} frequencies of its blocks: choose fewer."
            )

    def _check_exits(self) -> None:
        depths = self.exits
        if not all(type(depth) is int for depth in depths) or [*depths] != sorted({*depths}):
            raise ValueError(f"exits is {depths!r}: list rising depths, each once.")
        for depth in depths:
            try:
                self.at(depth)
            except ValueError as error:
                raise ValueError(f"exits has {depth}, which cannot have a gate: {error}") from None

    def _follows_preset(self, name: str) -> bool:
        return all(getattr(self, key) == value for key, value in PRESETS[name].items())

    def _refuse_idle(self, names: frozenset[str], *, because: str) -> None:
        for field in fields(self):
            if field.name in names and getattr(self, field.name) != field.default:
                raise ValueError(f"{field.name} changes nothing, as {because}: leave it out.")


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
            spectra = [_mean(spectra)]
        stack = mask.new_ones(1, len(spectra))
        along_blocks = axis_basis(self.block_frequencies, stack, self.config)[0].T  # [N, D]
        own_row = self.rows[:, None] == self.token_frequencies  # [F, D]
        f = _weighted_sum(along_blocks, [(spectrum * own_row).sum(1) for spectrum in spectra])
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


class SpatialSelection(nn.Module):
    """The gate: one weight per block and feature, computed from f (Eq. 3 and 4)."""

    def __init__(self, config: SelectorConfig) -> None:
        super().__init__()
        self.config = config
        hidden, outputs = config.width // config.reduction, config.num_heads * config.width
        self.reduce = nn.Linear(config.width, hidden, bias=config.bias)
        self.expand = nn.Linear(hidden, outputs, bias=config.bias)
        self.activation = nn.ReLU() if config.activation == "relu" else nn.Tanh()
        norm = {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[config.norm]
        self.norms = nn.ModuleList(norm(config.width, eps=1e-6) for _ in range(config.num_heads))
        for linear in (self.reduce, self.expand):
            nn.init.normal_(linear.weight, std=INIT_STD)
            if config.bias:
                nn.init.zeros_(linear.bias)

    def forward(self, f: Tensor, num_blocks: int) -> Tensor:
        """Weights [N, ..., D] from f [..., D]; fewer blocks than heads use the last heads."""
        z = self.activation(self.reduce(f.to(self.reduce.weight.dtype)))
        parts = self.expand(z).chunk(len(self.norms), dim=-1)
        gates = torch.stack([norm(part) for norm, part in zip(self.norms, parts, strict=True)])
        if self.config.spatial_selection == "1d":
            return self._normalise(gates).expand(num_blocks, *f.shape) / num_blocks
        return self._normalise(gates[-num_blocks:])

    def _normalise(self, gates: Tensor) -> Tensor:
        if self.config.weight_norm == "softmax_logits":
            return gates.softmax(0)
        excitation = gates.sigmoid()
        if self.config.weight_norm == "softmax_blocks":
            return excitation.softmax(0)
        if self.config.weight_norm == "none":
            return excitation
        gain = excitation.exp()
        return gain / gain.sum() if self.config.weight_norm == "global" else gain


class S2SentSelector(Module):
    """The module between Transformer and Pooling: ``token_embeddings`` = sum_n w_n * block_n."""

    # The name in modules.json: the copy in the checkpoint, not the package that saved it.
    __module__ = Path(MODULE_FILE).stem

    def __init__(self, config: SelectorConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.config = config
        gated = config.spatial_selection != "avg"
        squeezed = gated and config.num_frequencies > 0
        self.frequency_selection = FrequencySelection(config) if squeezed else None
        self.spatial_selection = SpatialSelection(config) if gated else None
        self.exits = nn.ModuleDict(
            {str(depth): S2SentSelector(config.at(depth)) for depth in config.exits}
        )
        if squeezed:
            self._share_rows()

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Fuse at the depth that ``token_embeddings`` has among ``all_layer_embeddings``."""
        states, mask = features.get("all_layer_embeddings"), features.get("attention_mask")
        if states is None:
            raise ValueError(
                "the backbone gave no all_layer_embeddings: set "
                "encoder[0].auto_model.config.output_hidden_states = True."
            )
        if mask is None:
            raise ValueError(
                "the backbone gave no attention_mask: flattened (unpadded) input is not supported, "
                "load it with attn_implementation='sdpa'."
            )
        depth = _depth(states, features["token_embeddings"])
        blocks = self.select_blocks(states, depth)
        read_positions = features.get("read_positions")
        features["token_embeddings"] = self.at(depth).fuse(blocks, mask, read_positions)
        return features

    def at(self, depth: int) -> "S2SentSelector":
        """The selector of an exit; this one where the exit has none of its own."""
        name = str(depth)
        return cast(S2SentSelector, self.exits[name]) if name in self.exits else self

    def select_blocks(self, states: Sequence[Tensor], depth: int | None = None) -> list[Tensor]:
        """The N blocks to fuse, oldest first, of ``states`` (embedding output, then every block).

        Raises ValueError where the whole backbone has too few.
        """
        return [states[number] for number in self.block_numbers(len(states) - 1, depth)]

    def block_numbers(self, full: int, depth: int | None = None) -> range:
        """The states fused at ``depth`` of ``full`` blocks, by number; 0 is the embedding output.

        Below full depth (layer dropping in training) there may be fewer than N. Raises ValueError
        where the whole backbone has too few.
        """
        depth = full if depth is None else depth
        lowest, stop = (1, depth + 1) if self.config.block_choice == "last" else (0, depth)
        start = stop - self.at(depth).config.num_blocks
        if depth == full and start < lowest:
            raise ValueError(
                f"num_blocks is {self.config.num_blocks} but the backbone offers {stop - lowest}: "
                "choose fewer."
            )
        return range(max(start, lowest), stop) or range(depth, depth + 1)

    def fuse(
        self, blocks: Sequence[Tensor], attention_mask: Tensor, read_positions: Tensor | None = None
    ) -> Tensor:
        """Fused token embeddings [B, L, D] from the blocks [B, L, D] of `select_blocks`.

        ``read_positions`` [B] are the places of the tokens that stand for their sentences.
        """
        weights = self.block_weights(blocks, attention_mask, read_positions)
        return _weighted_sum(weights.to(blocks[0].dtype), self._scaled(blocks))

    def pool(
        self, blocks: Sequence[Tensor], attention_mask: Tensor, read_positions: Tensor | None = None
    ) -> Tensor:
        """Sentence vectors [B, D], not normalised, equal to pooling the output of `fuse`.

        A sentence's weights are the same for all its tokens, so each block is pooled before fusing:
        one product with a basis [B, 1 + F, L] gives both its pooled vector and its spectrum.
        """
        mask = attention_mask.to(_squeeze_dtype(blocks))
        if self.spatial_selection is None:
            row = _pooling_row(mask, self.config.pooling, read_positions)
            pooled = [_project(row, block)[:, 0] for block in self._scaled(blocks)]
            return _mean(pooled).to(blocks[0].dtype)
        if self.frequency_selection is None:
            fused = self.fuse(blocks, attention_mask, read_positions)
            return pool_tokens(fused, attention_mask, self.config.pooling, read_positions)
        scope = scope_mask(mask, self.config.squeeze_scope, read_positions)
        rows = self._rows(mask, scope, read_positions)
        products = [_project(rows, block) for block in self._scaled(blocks)]
        return self._pool_products(products, scope)[0].to(blocks[0].dtype)

    def pool_exits(
        self,
        states: Sequence[Tensor],
        attention_mask: Tensor,
        depths: Sequence[int],
        read_positions: Tensor | None = None,
    ) -> list[Tensor]:
        """What `pool` gives at each of ``depths``; each block is multiplied once for all of them.

        ``states`` are the embedding output and every block.
        """
        if self.frequency_selection is None:
            return [
                self.at(depth).pool(
                    self.select_blocks(states, depth), attention_mask, read_positions
                )
                for depth in depths
            ]
        exits = self.weigh_exits(states, attention_mask, depths, read_positions)
        return [pooled for pooled, _ in exits]

    def weigh_exits(
        self,
        states: Sequence[Tensor],
        attention_mask: Tensor,
        depths: Sequence[int],
        read_positions: Tensor | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """`pool_exits` [B, D], each with the weights [B, N, D] of its blocks, oldest first.

        Not for a selector without a squeeze, whose weights may differ between the tokens.
        """
        numbers = {depth: self.block_numbers(len(states) - 1, depth) for depth in depths}
        mask = attention_mask.to(_squeeze_dtype(states))
        scope = scope_mask(mask, self.config.squeeze_scope, read_positions)
        rows = self._rows(mask, scope, read_positions)
        used = sorted({*itertools.chain(*numbers.values())})
        blocks = self._scaled([states[number] for number in used])
        products = {
            number: _project(rows, block) for number, block in zip(used, blocks, strict=True)
        }
        exits = []
        for depth in depths:
            own = [products[number] for number in numbers[depth]]
            pooled, weights = self.at(depth)._pool_products(own, scope)
            exits.append((pooled.to(states[0].dtype), weights.transpose(0, 1)))
        return exits

    def _rows(self, mask: Tensor, scope: Tensor, read_positions: Tensor | None) -> Tensor:
        """Rows [B, 1 + F, L]: a block's product with them is its pooled vector and its spectrum."""
        squeeze = cast(FrequencySelection, self.frequency_selection)
        pooling = _pooling_row(mask, self.config.pooling, read_positions)
        return torch.cat([pooling, squeeze.token_basis(scope)], dim=1)

    def _pool_products(self, products: Sequence[Tensor], scope: Tensor) -> tuple[Tensor, Tensor]:
        """The fused vectors [B, D] from the product of `_rows` with each block, and the weights."""
        squeeze = cast(FrequencySelection, self.frequency_selection)
        gate = cast(SpatialSelection, self.spatial_selection)
        f = squeeze([product[:, 1:] for product in products], scope)
        weights = gate(f, len(products))
        return _weighted_sum(weights, [product[:, 0] for product in products]), weights

    def _share_rows(self) -> None:
        """Give every exit the token frequencies of all of them, so that they read equal spectra."""
        selectors = [self, *(cast(S2SentSelector, own) for own in self.exits.values())]
        squeezes = [cast(FrequencySelection, each.frequency_selection) for each in selectors]
        frequencies = {row for squeeze in squeezes for row in squeeze.rows.tolist()}
        rows = torch.tensor(sorted(frequencies))
        for squeeze in squeezes:
            squeeze.rows = rows

    def block_weights(
        self, blocks: Sequence[Tensor], attention_mask: Tensor, read_positions: Tensor | None = None
    ) -> Tensor:
        """The weights [N, B, 1, D] of the blocks; [N, B, L, D] where each token has its own gate.

        Their average over B shows what was learned.
        """
        blocks = self._scaled(blocks)
        mask = attention_mask.to(_squeeze_dtype(blocks))
        if self.spatial_selection is None:
            return mask.new_full((len(blocks), 1, 1, self.config.width), 1 / len(blocks))
        if self.frequency_selection is None:
            f = _mean(blocks)
        else:
            scope = scope_mask(mask, self.config.squeeze_scope, read_positions)
            basis = self.frequency_selection.token_basis(scope)
            spectra = [_project(basis, block) for block in blocks]
            f = self.frequency_selection(spectra, scope)
        weights: Tensor = self.spatial_selection(f, len(blocks))
        return weights if self.frequency_selection is None else weights[:, :, None]

    def _scaled(self, blocks: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.config.input_norm == "none":
            return blocks
        return [normed(block, self.config.input_norm) for block in blocks]

    def get_embedding_dimension(self) -> int:
        """D; sentence-transformers asks its modules for it."""
        return self.config.width

    def get_config_dict(self) -> dict[str, Any]:
        """What config.json holds."""
        return asdict(self.config)

    def on_model_ready(self, model: Any) -> None:
        """Make the backbone return its hidden states; sentence-transformers 6 calls this itself."""
        model[0].auto_model.config.output_hidden_states = True

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        """Write configuration and weights, and this source file to the checkpoint's root."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)
        root = Path(output_path).resolve().parent  # the only place where the loader looks for code
        (root / MODULE_FILE).write_bytes(Path(__file__).read_bytes())

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load what `save` wrote, from a folder or from the hub."""
        source: dict[str, Any] = {
            "model_name_or_path": model_name_or_path,
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        config = cls.load_config(**source)
        selector = cls(SelectorConfig(**config | {"exits": tuple(config.get("exits", ()))}))
        selector.load_state_dict(cls.load_torch_weights(**source))
        return selector

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would look the class up under __module__, which names no importable module.
        return _empty_selector, (), self.__dict__


def pool_tokens(
    states: Tensor, attention_mask: Tensor, pooling: str, read_positions: Tensor | None = None
) -> Tensor:
    """Sentence vectors [B, D] of states [B, L, D]: the mean of the tokens, or one of them."""
    mask = attention_mask.to(_squeeze_dtype([states]))
    rows = _pooling_row(mask, pooling, read_positions)
    return _project(rows, states)[:, 0].to(states.dtype)


def scope_mask(mask: Tensor, scope: str, read_positions: Tensor | None) -> Tensor:
    """The tokens [B, L] of ``mask`` that the squeeze sees: "all", the "prefix" or the "token"."""
    if scope == "all":
        return mask
    if read_positions is None:
        raise ValueError(
            f"the features have no read_positions, which {scope!r} needs: put the selector behind "
            "a TemplateTransformer."
        )
    places = torch.arange(mask.shape[1], device=mask.device)
    read = read_positions[:, None]
    return mask * (places <= read if scope == "prefix" else places == read).to(mask.dtype)


def normed(states: Tensor, norm: str) -> Tensor:
    """States [..., D] divided by their root mean square ("rms") or their Euclidean length."""
    exact = states.to(_squeeze_dtype([states]))
    squares = exact.square()
    power = squares.mean(-1, keepdim=True) if norm == "rms" else squares.sum(-1, keepdim=True)
    return (exact * (power + NORM_EPSILON).rsqrt()).to(states.dtype)


def _empty_selector() -> S2SentSelector:
    return S2SentSelector.__new__(S2SentSelector)


def _depth(states: Sequence[Tensor], token_embeddings: Tensor) -> int:
    """The index of ``token_embeddings`` in ``states``, which losses that drop layers lower."""
    for depth, state in enumerate(states):
        if state is token_embeddings:
            return depth
    warnings.warn(
        "token_embeddings is none of all_layer_embeddings: assuming full depth.", stacklevel=3
    )
    return len(states) - 1


def _squeeze_dtype(blocks: Sequence[Tensor]) -> torch.dtype:
    return torch.promote_types(blocks[0].dtype, torch.float32)


def _pooling_row(mask: Tensor, pooling: str, read_positions: Tensor | None = None) -> Tensor:
    """Row [B, 1, L]; its product with the tokens is the pooled vector."""
    if pooling == "token":
        mask = scope_mask(mask, "token", read_positions)
    if pooling == "cls":
        mask = (mask.cumsum(1) == 1) * mask
    return (mask / mask.sum(1, keepdim=True).clamp(min=1))[:, None]


def _project(rows: Tensor, block: Tensor) -> Tensor:
    """rows [B, F, L] @ block [B, L, D], in full precision also under autocast."""
    if block.dtype != rows.dtype:  # a trace would keep even a conversion without effect
        block = block.to(rows.dtype)
    with torch.autocast(block.device.type, enabled=False):
        return rows @ block


def _weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """sum_n weights[n] * values[n], with one product in memory at a time."""
    total = torch.zeros_like(values[0])
    for weight, value in zip(weights.unbind(0), values, strict=True):
        total = total + weight * value
    return total


def _mean(values: Sequence[Tensor]) -> Tensor:
    return sum(values[1:], values[0]) / len(values)
