"""The S2Sent selector: a weighted sum of an encoder's last blocks, weighed per block and feature.

Frequency selection squeezes the last N blocks to one vector per sentence with a two-dimensional DCT
over (block, token). Spatial selection turns that vector into one weight per block and feature, and
the weighted sum of the blocks replaces the encoder's output (S2Sent, arXiv 2508.18164, Eq. 2-11).

Every checkpoint carries a copy of this file as ``modeling_s2sent.py`` and of the files it imports,
so that it loads where this project is not installed: hence they import each other relatively, and
otherwise nothing but torch and sentence-transformers.

Of a causal language model one token stands for the sentence; ``read_positions`` say which, and
``squeeze_scope`` keeps the gate from seeing the tokens behind it.

Shapes: B sentences, L tokens (padded), D features, N blocks, F distinct token frequencies.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import torch
from sentence_transformers.base.modules.module import Module
from torch import Tensor, nn

from .selector_config import SelectorConfig
from .selector_gate import SpatialSelection
from .selector_squeeze import FrequencySelection, share_rows
from .selector_states import (
    depth_among,
    mean,
    normed,
    pool_tokens,
    pooling_row,
    project,
    scope_mask,
    squeeze_dtype,
    weighted_sum,
)

MODULE_FILE = "modeling_s2sent.py"
SOURCE_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")
# The loader takes along the files that this one imports, but not those that they import.
IMPORTED_FILES = tuple(f"selector_{part}.py" for part in ("config", "gate", "squeeze", "states"))


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
        exits = {str(depth): S2SentSelector(config.at(depth)) for depth in config.exits}
        self.exits = nn.ModuleDict(exits)
        self.projections = nn.ParameterDict()
        for depth in config.exits if config.project_exits else ():
            matrix = torch.eye(config.projection_rows(depth), config.width)
            self.projections[str(depth)] = nn.Parameter(matrix)
        if squeezed:
            share_rows(self)

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
        depth = depth_among(states, features["token_embeddings"])
        blocks = self.select_blocks(states, depth)
        fused = self.at(depth).fuse(blocks, mask, features.get("read_positions"))
        # Pooling is linear, so tokens may be projected in place of what is pooled of them.
        features["token_embeddings"] = self.project_exit(fused, self._scaled(blocks), depth)
        return features

    @property
    def gates_tokens(self) -> bool:
        """Whether each token has weights of its own: a gate without a squeeze."""
        return self.spatial_selection is not None and self.frequency_selection is None

    def at(self, depth: int) -> "S2SentSelector":
        """The selector of an exit; this one where the exit has none of its own."""
        name = str(depth)
        return cast(S2SentSelector, self.exits[name]) if name in self.exits else self

    def project_exit(self, fused: Tensor, blocks: Sequence[Tensor], depth: int) -> Tensor:
        """Fused vectors [..., D] of an exit times its matrix; as they are where it has none.

        ``blocks`` [..., D] are those that were fused, shallowest first. With ``project_blocks`` the
        matrix reads, behind what is fused, all of them but the last.
        """
        name = str(depth)
        if name not in self.projections:
            return fused
        if self.config.project_blocks:
            fused = torch.cat([fused, *blocks[:-1]], dim=-1)
        return project(fused, self.projections[name])

    def select_blocks(self, states: Sequence[Tensor], depth: int | None = None) -> list[Tensor]:
        """The N blocks of `block_numbers`; ``states`` are embedding output and every block."""
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
        return weighted_sum(weights.to(blocks[0].dtype), self._scaled(blocks))

    def pool(
        self, blocks: Sequence[Tensor], attention_mask: Tensor, read_positions: Tensor | None = None
    ) -> Tensor:
        """Sentence vectors [B, D], not normalised, equal to pooling the output of `fuse`.

        A sentence's weights are the same for all its tokens, so each block is pooled before fusing:
        one product with a basis [B, 1 + F, L] gives both its pooled vector and its spectrum.
        """
        if self.gates_tokens:
            fused = self.fuse(blocks, attention_mask, read_positions)
            return pool_tokens(fused, attention_mask, self.config.pooling, read_positions)
        rows, scope = self._rows(blocks, attention_mask, read_positions)
        products = [project(rows, block) for block in self._scaled(blocks)]
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
        if self.gates_tokens:
            return [
                self._pool_exit(states, each, attention_mask, read_positions) for each in depths
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
        """`pool_exits` [B, D], each with the weights [B, N, D] of its blocks, shallowest first.

        Not for a selector that gates tokens, each of which may have other weights.
        """
        numbers = {depth: self.block_numbers(len(states) - 1, depth) for depth in depths}
        rows, scope = self._rows(states[-1:], attention_mask, read_positions)
        products = {
            number: project(rows, *self._scaled([states[number]]))
            for number in sorted(set[int]().union(*numbers.values()))
        }
        exits = []
        for depth in depths:
            own = [products[number] for number in numbers[depth]]
            pooled, weights = self.at(depth)._pool_products(own, scope)
            pooled = self.project_exit(pooled, [product[:, 0] for product in own], depth)
            exits.append((pooled.to(states[-1].dtype), weights.transpose(0, 1)))
        return exits

    def _pool_exit(
        self, states: Sequence[Tensor], depth: int, mask: Tensor, read_positions: Tensor | None
    ) -> Tensor:
        """`pool` at a depth, and its matrix; each block that this reads is pooled by itself."""
        blocks = self.select_blocks(states, depth)
        pooled = self.at(depth).pool(blocks, mask, read_positions)
        read = self._scaled(blocks) if self.config.project_blocks else ()
        vectors = [pool_tokens(each, mask, self.config.pooling, read_positions) for each in read]
        return self.project_exit(pooled, vectors, depth)

    def _rows(
        self, blocks: Sequence[Tensor], attention_mask: Tensor, read_positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Rows [B, 1 + F, L], whose product with a block is its pooled vector and its spectrum.

        Also returns what the squeeze sees [B, L].
        """
        mask = attention_mask.to(squeeze_dtype(blocks))
        scope = scope_mask(mask, self.config.squeeze_scope, read_positions)
        rows = pooling_row(mask, self.config.pooling, read_positions)
        if self.frequency_selection is not None:
            rows = torch.cat([rows, self.frequency_selection.token_basis(scope)], dim=1)
        return rows, scope

    def _pool_products(self, products: Sequence[Tensor], scope: Tensor) -> tuple[Tensor, Tensor]:
        """The fused vectors [B, D] from the product of `_rows` with each block, and the weights."""
        pooled = [product[:, 0] for product in products]
        if self.frequency_selection is None or self.spatial_selection is None:  # not gated
            average = mean(pooled)
            weights = average.new_full((len(pooled), *average.shape), 1 / len(pooled))
            return average, weights
        f = self.frequency_selection([product[:, 1:] for product in products], scope)
        weights = self.spatial_selection(f, len(products))
        return weighted_sum(weights, pooled), weights

    def block_weights(
        self, blocks: Sequence[Tensor], attention_mask: Tensor, read_positions: Tensor | None = None
    ) -> Tensor:
        """The weights [N, B, 1, D] of the blocks; [N, B, L, D] where each token has a gate."""
        blocks = self._scaled(blocks)
        mask = attention_mask.to(squeeze_dtype(blocks))
        if self.spatial_selection is None:
            return mask.new_full((len(blocks), 1, 1, self.config.width), 1 / len(blocks))
        if self.frequency_selection is None:
            f = mean(blocks)
        else:
            scope = scope_mask(mask, self.config.squeeze_scope, read_positions)
            basis = self.frequency_selection.token_basis(scope)
            spectra = [project(basis, block) for block in blocks]
            f = self.frequency_selection(spectra, scope)
        weights: Tensor = self.spatial_selection(f, len(blocks))
        return weights if self.frequency_selection is None else weights[:, :, None]

    def _scaled(self, blocks: Sequence[Tensor]) -> Sequence[Tensor]:
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
        """Write configuration and weights, and this source code to the checkpoint's root."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)
        root = Path(output_path).resolve().parent  # the only place where the loader looks for code
        (root / MODULE_FILE).write_bytes(Path(__file__).read_bytes())
        for name in IMPORTED_FILES:
            (root / name).write_bytes(Path(__file__).with_name(name).read_bytes())

    @classmethod
    def load(  # type: ignore[override]  # the library gives the other options by name
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Load what `save` wrote, from a folder or from the hub."""
        source = {name: value for name, value in kwargs.items() if name in SOURCE_OPTIONS}
        config = cls.load_config(model_name_or_path, subfolder, **source)
        selector = cls(SelectorConfig(**config | {"exits": tuple(config.get("exits", ()))}))
        selector.load_state_dict(cls.load_torch_weights(model_name_or_path, subfolder, **source))
        return selector

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would look the class up under __module__, which names no importable module.
        return _empty_selector, (), self.__dict__


def _empty_selector() -> S2SentSelector:
    return S2SentSelector.__new__(S2SentSelector)
