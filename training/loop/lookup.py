"""Keeps what a frozen backbone gives for each row of tokens, so that it runs once a row.

`fit` uses it where the backbone is frozen and no dropout makes the views: every later step and look
at dev only runs the selector. The states of the blocks that are fused are in one file, whose name
is a hash of the backbone's weights and the blocks.

Shapes: B rows, L tokens (padded), n blocks that are fused, D features.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from s2sent.model.network.encoder import get_selector
from s2sent.training.files.arrays import KeptArrays, kept_arrays

MAX_BYTES = 4 << 30  # of one file


@contextmanager
def cached_backbone(
    encoder: SentenceTransformer, cache: Path, *, max_bytes: int = MAX_BYTES
) -> Iterator[KeptArrays]:
    """Within the block the backbone runs once for each row of tokens, without dropout.

    Rows that find no room in ``max_bytes`` are computed each time they are seen. Raises `DataError`
    where the file in ``cache`` cannot be used.
    """
    backbone: Any = encoder[0]
    full = int(backbone.get_submodule("auto_model").config.num_hidden_layers)
    selector = get_selector(encoder)
    depths = (*selector.config.exits, full)
    numbers = sorted({full}.union(*(selector.block_numbers(full, depth) for depth in depths)))
    shape = (-1, len(numbers), selector.config.width)
    compute = backbone.forward

    def forward(features: dict[str, Any], **_: Any) -> dict[str, Any]:
        mask = features["attention_mask"].bool()
        every = zip(features["input_ids"], mask, strict=True)
        rows = [ids[read].cpu().numpy().tobytes() for ids, read in every]
        found = {row: torch.from_numpy(flat).view(shape) for row, flat in states.get(rows).items()}
        if new := [at for at, row in enumerate(rows) if row not in found]:
            made = _computed(compute, backbone, features, new, numbers)
            computed = dict(zip((rows[at] for at in new), made, strict=True))
            states.put({row: value.cpu().numpy() for row, value in computed.items()})
            found |= computed
        kept = torch.zeros(*mask.shape, *shape[1:], device=mask.device)
        kept[mask] = torch.cat([found[row].to(mask.device) for row in rows])
        by_number = dict(zip(numbers, kept.unbind(2), strict=True))
        blocks = tuple(by_number.get(number) for number in range(full + 1))
        return features | {"token_embeddings": by_number[full], "all_layer_embeddings": blocks}

    with kept_arrays(cache / f"states-{_key(backbone, numbers)}.sqlite", max_bytes) as states:
        backbone.forward = forward
        try:
            yield states
        finally:
            del backbone.forward


@torch.no_grad()
def _computed(
    compute: Any,
    backbone: nn.Module,
    features: dict[str, Any],
    rows: Sequence[int],
    numbers: Sequence[int],
) -> list[Tensor]:
    """The states [L, n, D] of the rows of these places, without padding, in evaluation mode.

    They are in full precision, as dev is scored.
    """
    training = backbone.training
    backbone.eval()
    batch = {
        name: value[list(rows)] if isinstance(value, Tensor) else value
        for name, value in features.items()
    }
    mask = batch["attention_mask"].bool()
    with torch.autocast(mask.device.type, enabled=False):
        made = compute(dict(batch))["all_layer_embeddings"]
    backbone.train(training)
    states = torch.stack([made[number] for number in numbers], dim=2).float()
    return [of_row[read] for of_row, read in zip(states, mask, strict=True)]


def _key(backbone: nn.Module, numbers: Sequence[int]) -> str:
    digest = hashlib.sha256(repr(list(numbers)).encode())
    for name, value in backbone.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
