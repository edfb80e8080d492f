"""The encoder as a function of tensors, as it is exported, and at a depth below the last block."""

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from s2sent.model.artifact.manifest import POOLING_MASK
from s2sent.model.network.encoder import (
    find_head,
    find_selector,
    find_template,
    leaves_prompts_out,
    pooling_mode,
    pooling_modes,
)
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.pooling import MAX, pool_states
from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_states import normed, pool_tokens
from s2sent.model.network.transformer import read_positions


class PooledEncoder(nn.Module):
    """The encoder as a function of tensors that pools each block before fusing, as it is exported.

    Returns (sentence_embedding [B, D], pooled_embedding [B, D], block_weights [B, N, D], *exits,
    *blocks [B, L, D]): the pipeline's output, the same before normalisation, the selector's
    weights, the last two of each exit with a gate of its own by rising depth, and the states of the
    blocks that are pooled, shallowest first: those that the selector fuses, as it scales them, or
    the last without a selector. There are weights where ``weighs`` says so; an exit that fuses
    fewer blocks has zeros for those it lacks. ``depths`` adds the blocks that are pooled when the
    backbone ends at that depth; ``exits`` has the block numbers by depth, ``gated`` the depths
    below full that have their own gates. Raises CheckpointError for a depth that cannot be an exit.
    """

    def __init__(self, encoder: SentenceTransformer, depths: Collection[int] = ()) -> None:
        super().__init__()
        self.backbone = encoder[0].get_submodule("auto_model")
        self.selector = find_selector(encoder)
        self.input_norm = self.selector.config.input_norm if self.selector else "none"
        if self.selector:  # a copy, with the same weights, for states that are scaled already
            self.selector = copy.copy(self.selector)
            self.selector.config = replace(self.selector.config, input_norm="none")
        self.modes = pooling_modes(encoder)
        self.head = nn.ModuleList(find_head(encoder))
        self.template = find_template(encoder)
        self.normalize = isinstance(encoder[-1], Normalize)
        self.full = int(cast(Any, self.backbone).config.num_hidden_layers)
        depths = sorted({*depths})
        require_exits(self.selector, depths, self.full)
        if depths and MAX in self.modes:
            raise CheckpointError(
                "an encoder that pools the maximum of its tokens cannot stop early, since exits"
                " pass on sums of tokens: export it without depths."
            )
        own = self.selector.config.exits if self.selector else ()
        self.more_inputs = (POOLING_MASK,) if leaves_prompts_out(encoder) else ()
        self.weighs = bool(self.selector and self.selector.frequency_selection)
        self.gated = [depth for depth in depths if depth in own]
        self.exits = {depth: self._block_numbers(depth) for depth in (*depths, self.full)}
        self.blocks = sorted(set().union(*self.exits.values()))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        pooling_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run on int64 inputs [B, L], padded on the right where a template is read.

        ``token_type_ids`` only where the backbone takes them; rows hold the template's tokens.
        ``pooling_mask`` has the tokens that are pooled, by default all.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        outputs = self.backbone(**inputs, output_hidden_states=True, return_dict=True)
        states = outputs.hidden_states
        if self.selector is None:
            states = (*states[:-1], outputs.last_hidden_state)  # some backbones normalise it
        pooled = attention_mask if pooling_mask is None else pooling_mask
        return self.pool(states, pooled, self._read_positions(attention_mask))

    def pool(
        self, states: Sequence[Tensor], mask: Tensor, read: Tensor | None
    ) -> tuple[Tensor, ...]:
        """What `forward` returns, of the states [B, L, D] of the embeddings and of every block.

        Of these only ``blocks`` are read.
        """
        if self.input_norm != "none":
            states = [
                normed(state, self.input_norm) if number in self.blocks else state
                for number, state in enumerate(states)
            ]
        if self.selector is None:
            results = [self._through_head(pool_states(states[-1], mask, self.modes, read))]
        else:
            results = self._pool_exits(self.selector, states, mask, read)
        pooled = results[0]
        sentence = nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled
        return (sentence, *results, *(states[number] for number in self.blocks))

    def _pool_exits(
        self,
        selector: S2SentSelector,
        states: Sequence[Tensor],
        attention_mask: Tensor,
        read: Tensor | None,
    ) -> list[Tensor]:
        """What is pooled at full depth, then at the gated ones, each followed by its weights."""
        depths = [self.full, *self.gated]
        if not self.weighs:
            exits = selector.pool_exits(states, attention_mask, depths, read)
            return [*map(self._through_head, exits)]
        results = []
        weighed = selector.weigh_exits(states, attention_mask, depths, read)
        for depth, (pooled, weights) in zip(depths, weighed, strict=True):
            # Counted here: a traced graph would compute it from shapes in every run.
            missing = selector.config.num_blocks - len(self.exits[depth])
            absent = [torch.zeros_like(weights[:, :1])] * missing
            padded = torch.cat([*absent, weights], dim=1) if absent else weights
            results += [self._through_head(pooled), padded]
        return results

    def _through_head(self, pooled: Tensor) -> Tensor:
        """The vectors [B, D'] behind the modules that follow the pooling, of ``pooled`` [B, D]."""
        features = {"sentence_embedding": pooled}
        for module in self.head:
            features = module(features)
        return features["sentence_embedding"]

    def _read_positions(self, attention_mask: Tensor) -> Tensor | None:
        if self.template is None or self.template.read is None:
            return None
        return read_positions(attention_mask, self.template.read)

    def _block_numbers(self, depth: int) -> range:
        if self.selector is None:
            return range(depth, depth + 1)
        return self.selector.block_numbers(self.full, depth)


def require_exits(selector: S2SentSelector | None, depths: Collection[int], full: int) -> None:
    """Raise CheckpointError unless an encoder of ``full`` blocks can stop at each of ``depths``."""
    own = selector.config.exits if selector else ()
    least = selector.config.num_blocks if selector and not own else 1
    for depth in depths:
        if own and depth not in own:
            raise CheckpointError(
                f"depth {depth} cannot be an exit: this encoder was trained with exits at "
                f"{', '.join(map(str, own))}. Choose among those."
            )
        if not least <= depth < full:
            raise CheckpointError(
                f"depth {depth} cannot be an exit: this encoder pools {least} of {full} blocks."
                f" Choose depths from {least} to {full - 1}."
            )


def embed_exits(
    encoder: SentenceTransformer, features: dict[str, Any], depths: Sequence[int]
) -> list[Tensor]:
    """Embeddings [B, D] at depths below full, from the features that ``encoder(batch)`` returned.

    They are normalised where the encoder normalises.
    """
    states, mask = features["all_layer_embeddings"], features["attention_mask"]
    read, selector = features.get("read_positions"), find_selector(encoder)
    if selector is None:
        mode = pooling_mode(encoder)
        pooled = [pool_tokens(states[depth], mask, mode, read) for depth in depths]
    else:
        pooled = selector.pool_exits(states, mask, depths, read)
    if isinstance(encoder[-1], Normalize):
        return [nn.functional.normalize(rows, dim=-1) for rows in pooled]
    return pooled


@contextmanager
def stopped_at(encoder: SentenceTransformer, depth: int) -> Iterator[None]:
    """Within this context ``encoder.encode`` uses only the first ``depth`` blocks of the backbone.

    As sentence-transformers' AdaptiveLayerLoss does in training, the states of block ``depth``
    replace the backbone's token embeddings before selector and pooling.
    """

    def cut(_module: nn.Module, _inputs: object, features: dict[str, Any]) -> dict[str, Any]:
        return features | {"token_embeddings": features["all_layer_embeddings"][depth]}

    hook = encoder[0].register_forward_hook(cut)
    try:
        yield
    finally:
        hook.remove()
