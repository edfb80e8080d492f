"""Language models on packed tokens, without what a template makes known.

    rows [B, L] -> without the template's prefix -> packed tokens [1, T] -> block, block, ...

A token of a causal one sees only what stands before it: the states of the prefix are the same for
every text, and its keys and values are constants of the graph. Transformers calls the attention
that is registered here (its AttentionInterface), which also knows tokens that see both sides, and
blocks that see a window.

Shapes: B texts, L tokens with padding, P of the prefix, L' = L - P, T tokens in all, D features.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from s2sent.model.export.packed.attention import MASKED, PackedRows, attend
from s2sent.model.export.packed.simplify import simplify

ATTENTION = "s2sent_packed"  # its name in transformers' registry


class PackedDecoder(nn.Module):
    """A backbone on packed tokens, with the states of a causal one's fixed prefix computed once."""

    def __init__(self, backbone: nn.Module, prefix: Sequence[int] = (), *, fused: bool) -> None:
        """``backbone`` is copied; with ``fused`` attention is ONNX Runtime's own operator."""
        super().__init__()
        self.num_prefix = len(prefix)
        self.fused = fused
        copied: Any = copy.deepcopy(backbone)
        self.backbone = copied
        self._keep_prefix(prefix)
        simplify(copied)
        copied.set_attn_implementation(ATTENTION)

    @torch.no_grad()
    def _keep_prefix(self, prefix: Sequence[int]) -> None:
        """Keep the prefix's keys and values [1, P, heads * head] and states [1, P, D] by block."""
        self.past: list[tuple[Tensor, Tensor]] = []
        self.prefix_states: list[Tensor] = []
        if not prefix:
            return
        cache = DynamicCache()  # of whole texts, also where a block sees a window
        takes = inspect.signature(self.backbone.forward).parameters
        outputs = self.backbone(
            torch.tensor([prefix]),
            **{"cache" if "cache" in takes else "past_key_values": cache},  # the name by release
            use_cache=True,
            output_hidden_states=True,
            return_dict=True,
        )
        self.prefix_states = list(outputs.hidden_states)
        layer: Any
        for layer in cache.layers:
            self.past.append((_beside(layer.keys), _beside(layer.values)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor
    ) -> tuple[PackedRows, Sequence[Tensor], Tensor]:
        """The packed rows, the states [1, T, D] of the embeddings and blocks, and what it gives."""
        ids, mask = (rows[:, self.num_prefix :] for rows in (input_ids, attention_mask))
        rows = PackedRows.of(mask, self.num_prefix)
        run = _Run(rows, self.num_prefix, self.past, self.fused, {})
        with _attending(run):
            outputs = self.backbone(
                input_ids=ids.reshape(-1)[rows.tokens][None],
                position_ids=rows.positions,
                use_cache=False,
                output_hidden_states=True,
                return_dict=True,
            )
        last = outputs.last_hidden_state
        return rows, (*outputs.hidden_states[:-1], last), last

    def padded(self, rows: PackedRows, states: Tensor, block: int) -> Tensor:
        """The states [1, T, D] of a block as [B, L, D], those of the prefix among them."""
        behind = rows.unpack(states[0])
        if not self.past:
            return behind
        prefix = self.prefix_states[block].expand(behind.shape[0], -1, -1)
        return torch.cat([prefix, behind], dim=1)


class _Run(NamedTuple):
    """What attention needs of a run; ``past`` has the prefix's keys and values by block, if any."""

    rows: PackedRows
    num_prefix: int
    past: Sequence[tuple[Tensor, Tensor]]
    fused: bool
    biases: dict[tuple[bool, int | None], Tensor]

    def hidden(self, causal: bool, window: int | None) -> dict[str, Tensor]:
        """What hides the tokens that a block does not see, as arguments of `attend`.

        Of ``window`` w a token sees those less than w places away.
        """
        if not causal and window is None:
            return {"mask": self.rows.mask}
        kind = causal, window
        if kind not in self.biases:
            self.biases[kind] = _bias(self.rows.mask, self.num_prefix, *kind)
        return {"bias": self.biases[kind]}


_running: list[_Run] = []  # for `_attend`, whose arguments transformers chooses


@contextmanager
def _attending(run: _Run) -> Iterator[None]:
    """Within this context attention is of ``run``."""
    _running.append(run)
    try:
        yield
    finally:
        _running.pop()


def _bias(mask: Tensor, num_prefix: int, causal: bool, window: int | None) -> Tensor:
    """What is added to the scores of rows with ``mask`` [B, L'], [B, 1, L', P + L']."""
    line = torch.arange(mask.shape[1], device=mask.device)
    distance = line - line[:, None]
    if num_prefix:
        before = torch.arange(-num_prefix, 0, device=mask.device) - line[:, None]
        distance = torch.cat([before, distance], dim=1)  # [L', P + L']
        mask = nn.functional.pad(mask, (num_prefix, 0), value=1)
    seen = mask[:, None] > 0
    if causal:
        seen = (distance <= 0) & seen
    if window is not None:
        seen = (distance.abs() < window) & seen
    return torch.where(seen, 0.0, MASKED)[:, None]


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of packed query [1, heads, T, head], and key and value with maybe fewer heads.

    Returns [1, T, heads, head], as transformers expects.
    """
    run = _running[-1]
    rows, past = run.rows, run.past
    heads, head = int(module.config.num_attention_heads), int(module.head_dim)
    groups = int(getattr(module.config, "num_key_value_heads", None) or heads)

    def unpacked(states: Tensor, count: int) -> Tensor:  # [B, L', count * head]
        return rows.unpack(states.transpose(1, 2).reshape(-1, count * head))

    parts = [unpacked(key, groups), unpacked(value, groups)]
    if past:
        parts = [
            torch.cat([before.expand(part.shape[0], -1, -1), part], dim=1)
            for before, part in zip(past[module.layer_idx], parts, strict=True)
        ]
    keys, values = (_repeat(part, groups, heads, head) for part in parts)
    scale = head**-0.5 if scaling is None else float(scaling)
    hidden: Any = run.hidden(module.is_causal, sliding_window)
    result = attend(
        unpacked(query, heads), keys, values, heads=heads, scale=scale, fused=run.fused, **hidden
    )
    return rows.pack(result).reshape(1, -1, heads, head), None


AttentionInterface.register(ATTENTION, _attend)


def _repeat(states: Tensor, groups: int, heads: int, head: int) -> Tensor:
    """Each of ``groups`` heads for all the query heads that share it."""
    if groups == heads:
        return states
    each = states.reshape(states.shape[0], -1, groups, 1, head)
    return each.expand(-1, -1, -1, heads // groups, -1).reshape(states.shape[0], -1, heads * head)


def _beside(heads: Tensor) -> Tensor:
    """[1, heads, P, head] to [1, P, heads * head]."""
    return heads.transpose(1, 2).flatten(2)
