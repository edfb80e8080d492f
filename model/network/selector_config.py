"""The configuration of an S2Sent selector, and the presets that name whole configurations."""

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

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
    project_exits: multiply what an exit pools by a matrix of its own, which starts as the identity.
    project_blocks: the matrix of an exit also reads the pooled vectors of the exit's other blocks,
        beside what is fused; their part starts as zero.
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
    project_exits: bool = False
    project_blocks: bool = False

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
        num_blocks = min(self.num_blocks, depth)
        return replace(
            self, num_blocks=num_blocks, exits=(), project_exits=False, project_blocks=False
        )

    def projection_rows(self, depth: int) -> int:
        """The number of rows of an exit's matrix: D, or D for each block where it reads all."""
        return self.width * (self.at(depth).num_blocks if self.project_blocks else 1)

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
        if self.project_exits and not depths:
            raise ValueError("project_exits is True but there are no exits: name their depths.")
        if self.project_blocks and not (self.project_exits and self.num_blocks > 1):
            raise ValueError(
                "project_blocks is True, which adds other blocks to the matrices of project_exits:"
                " set project_exits, and num_blocks to 2 or more."
            )
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
