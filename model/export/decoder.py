"""A causal language model as it is exported: packed tokens, without what a template makes known.

    rows [B, L] -> without the template's prefix -> packed tokens [1, T] -> block, block, ...

The backbone runs on one row that has the tokens of all texts, each at its own position, so that
nothing is computed for padding. A token sees only what stands before it: the states of the prefix
are the same for every text, and its keys and values are constants of the graph.

Shapes: B texts, L tokens with padding, P of the prefix, L' = L - P, T tokens in all, D features.
"""

import copy
from collections.abc import Collection
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from model.export.packed_attention import ATTENTION, PackedRows, attending
from model.network.pooled import PooledEncoder


class PooledDecoder(PooledEncoder):
    """A `PooledEncoder` of a causal backbone; rows are padded on the right.

    Where one token is read and nothing else of its text is looked at, the states that `forward`
    returns are those of that token, [B, 1, D]. Behind them it returns what the next block reads,
    [1, T, D], at each smaller depth in ``exits``.
    """

    def __init__(
        self, encoder: SentenceTransformer, depths: Collection[int] = (), *, fused: bool = True
    ) -> None:
        """With ``fused`` attention is ONNX Runtime's own operator."""
        super().__init__(encoder, depths)
        prefix = self.template.prefix if self.template else ()
        self.decoder = PackedDecoder(self.backbone, prefix, fused=fused)
        del self.backbone
        scope = self.selector.config.squeeze_scope if self.selector else "token"
        gated = self.selector is not None and self.selector.spatial_selection is not None
        self.reads_one_token = self.modes == ("token",) and (scope == "token" or not gated)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run on int64 inputs [B, L], whose first tokens are taken for the template's prefix."""
        rows, states = self.decoder(input_ids, attention_mask)
        read = self._read_positions(attention_mask)
        pooled = list(states)
        if self.reads_one_token and read is not None:
            place = (read - self.decoder.num_prefix)[:, None]
            token = rows.places.gather(1, place).reshape(-1)
            for number in self.blocks:
                pooled[number] = states[number].index_select(1, token).transpose(0, 1)
            outputs = self.pool(pooled, torch.ones_like(place), torch.zeros_like(read))
        else:
            for number in self.blocks:
                pooled[number] = self.decoder.padded(rows, states[number], number)
            outputs = self.pool(pooled, attention_mask, read)
        return (*outputs, *(states[depth] for depth in sorted(self.exits)[:-1]))


class PackedDecoder(nn.Module):
    """A causal backbone on packed tokens, with the states of a fixed prefix computed once."""

    def __init__(self, backbone: nn.Module, prefix: tuple[int, ...], *, fused: bool) -> None:
        """``backbone`` is copied; with ``fused`` attention is ONNX Runtime's own operator."""
        super().__init__()
        self.num_prefix = len(prefix)
        self.fused = fused
        copied: Any = copy.deepcopy(backbone)
        self.backbone = copied
        self._keep_prefix(prefix)
        _simplify(copied)
        copied.set_attn_implementation(ATTENTION)

    @torch.no_grad()
    def _keep_prefix(self, prefix: tuple[int, ...]) -> None:
        """Keep the prefix's keys and values [1, P, heads * head] and states [1, P, D] by block."""
        self.past: list[tuple[Tensor, Tensor]] = []
        self.prefix_states: list[Tensor] = []
        if not prefix:
            return
        outputs = self.backbone(
            torch.tensor([prefix]), use_cache=True, output_hidden_states=True, return_dict=True
        )
        self.prefix_states = list(outputs.hidden_states)
        for block in range(len(self.prefix_states) - 1):
            keys, values = outputs.past_key_values[block][:2]
            self.past.append((_beside(keys), _beside(values)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor
    ) -> tuple[PackedRows, tuple[Tensor, ...]]:
        """The packed rows, and the states [1, T, D] of the embeddings and of every block."""
        ids, mask = (rows[:, self.num_prefix :] for rows in (input_ids, attention_mask))
        rows = PackedRows.of(mask, self.num_prefix)
        with attending(rows, self.past, fused=self.fused):
            outputs = self.backbone(
                input_ids=ids.reshape(-1)[rows.tokens][None],
                position_ids=rows.positions,
                use_cache=False,
                output_hidden_states=True,
                return_dict=True,
            )
        return rows, (*outputs.hidden_states[:-1], outputs.last_hidden_state)

    def padded(self, rows: PackedRows, states: Tensor, block: int) -> Tensor:
        """The states [1, T, D] of a block as [B, L, D], those of the prefix among them."""
        behind = rows.unpack(states[0])
        if not self.past:
            return behind
        prefix = self.prefix_states[block].expand(behind.shape[0], -1, -1)
        return torch.cat([prefix, behind], dim=1)


class _RMSNorm(nn.Module):
    """RMSNorm in the form that ONNX Runtime knows as one operator: with a division, no rsqrt."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, states: Tensor) -> Tensor:
        power = states.pow(2).mean(-1, keepdim=True) + self.epsilon
        scaled: Tensor = states / power.sqrt() * self.weight
        return scaled


def _simplify(module: nn.Module) -> None:
    """Replace modules by others that compute the same and are traced to fewer operators."""
    for name, child in module.named_children():
        if hasattr(child, "variance_epsilon"):
            setattr(module, name, _RMSNorm(child))
        elif isinstance(child, Conv1D):
            setattr(module, name, _linear(child))
        else:
            _simplify(child)


def _linear(conv: Any) -> nn.Linear:
    """GPT-2's Conv1D, which multiplies by its weight [in, out], as a Linear."""
    linear = nn.Linear(*conv.weight.shape)
    linear.weight = nn.Parameter(conv.weight.T.contiguous())
    linear.bias = conv.bias
    return linear


def _beside(heads: Tensor) -> Tensor:
    """[1, heads, P, head] to [1, P, heads * head]."""
    return heads.transpose(1, 2).flatten(2)
