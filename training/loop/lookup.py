"""Keeps what a frozen backbone gives for each row of tokens, so that it runs once a row.

`fit` uses it where the backbone is frozen and no dropout makes the views: every later step and look
at dev only runs the selector. The states of the blocks that are fused are in one file, mapped into
memory; its name is a hash of the backbone's weights and the blocks.
"""

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from s2sent.model.network.encoder import get_selector
from s2sent.training.files.locks import lock_of, release, try_lock
from s2sent.training.files.record import write_json

log = logging.getLogger(__name__)

Row = tuple[int, ...]  # token ids without padding
INDEX = "rows.json"  # written last: without it the states are computed again
STATES = "states.f32"
MAX_BYTES = 4 << 30  # of one file


class CachedStates:
    """The states [n, L, D] float32 of n blocks for rows of tokens, in a file of bounded size.

    A row that finds no room is computed each time it is seen. One process at a time has ``folder``;
    another keeps its states in a file of its own, which is gone when it ends.
    """

    def __init__(self, folder: Path, num_blocks: int, width: int, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._shape = folder, (num_blocks, width)
        size = num_blocks * width
        shape = (max(1, max_bytes // (4 * size)), size)  # a line a token; the file is sparse
        self._places: dict[Row, int] = {}
        self._used, self._full = 0, False
        self._lock = lock_of(folder / STATES)
        self._owns = try_lock(self._lock)
        if not self._owns:
            log.warning("%s is in use by another process: its states are not shared", folder)
            with tempfile.TemporaryFile(dir=folder) as own:
                self._file = np.memmap(own, np.float32, "w+", shape=shape)
            return
        states = folder / STATES
        whole = states.is_file() and states.stat().st_size == 4 * math.prod(shape)
        if whole:
            self._places = _read_places(folder / INDEX)
            self._used = max((place + len(row) for row, place in self._places.items()), default=0)
        if not self._used:  # an index of other states must not outlive them
            (folder / INDEX).unlink(missing_ok=True)
        self._file = np.memmap(states, np.float32, "r+" if self._used else "w+", shape=shape)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, row: Row) -> Tensor | None:
        """The states of a row, None where they are not kept."""
        place = self._places.get(row)
        if place is None:
            return None
        lines = np.array(self._file[place : place + len(row)])
        return torch.from_numpy(lines).view(len(row), *self._shape).movedim(1, 0)

    def put(self, row: Row, states: Tensor) -> None:
        """Keep the states [n, L, D] of a row, if there is room."""
        if self._used + len(row) > len(self._file):
            if not self._full:
                gigabytes = self._file.nbytes / 2**30
                log.warning("the %.3g GiB for states are full: the rest is computed", gigabytes)
            self._full = True
            return
        lines = states.movedim(0, 1).reshape(len(row), -1)
        self._file[self._used : self._used + len(row)] = lines.float().cpu().numpy()
        self._places[row] = self._used
        self._used += len(row)

    def close(self) -> None:
        """Write the states and then the index of their rows, and let another process have them."""
        if not self._owns:
            return
        self._file.flush()
        index = [[list(row), place] for row, place in self._places.items()]
        write_json(self._folder / INDEX, index, indent=None)
        release(self._lock)


def _read_places(index: Path) -> dict[Row, int]:
    """Where the states of each row are; empty without an index, or with half of one."""
    try:
        return {tuple(ids): place for ids, place in json.loads(index.read_text(encoding="utf-8"))}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        log.warning("%s is not whole (%s): the states are computed again", index, error)
        return {}


@contextmanager
def cached_backbone(
    encoder: SentenceTransformer, cache: Path, *, max_bytes: int = MAX_BYTES
) -> Iterator[CachedStates]:
    """Within the block the backbone runs once for each row of tokens, without dropout."""
    backbone: Any = encoder[0]
    full = depth_of(encoder)
    selector = get_selector(encoder)
    depths = (*selector.config.exits, full)
    numbers = sorted({full}.union(*(selector.block_numbers(full, depth) for depth in depths)))
    width = int(encoder.get_embedding_dimension() or 0)
    states = CachedStates(cache / _key(backbone, numbers), len(numbers), width, max_bytes)
    compute = backbone.forward

    def forward(features: dict[str, Any], **_: Any) -> dict[str, Any]:
        mask = features["attention_mask"].bool()
        rows = [
            tuple(ids[kept].tolist()) for ids, kept in zip(features["input_ids"], mask, strict=True)
        ]
        found = {row: states.get(row) for row in rows}
        new = [at for at, row in enumerate(rows) if found[row] is None]
        if new:
            for row, computed in _computed(compute, backbone, features, new, numbers):
                found[row] = computed
                states.put(row, computed)
        present = [kept for row in rows if (kept := found[row]) is not None]
        return features | _as_outputs(present, mask, numbers, full)

    backbone.forward = forward
    try:
        yield states
    finally:
        del backbone.forward
        states.close()


@torch.no_grad()
def _computed(
    compute: Any,
    backbone: nn.Module,
    features: dict[str, Any],
    rows: Sequence[int],
    numbers: Sequence[int],
) -> Iterator[tuple[Row, Tensor]]:
    """The rows of these places and their states [n, L, D], from one forward in evaluation mode.

    It is in full precision, as dev is scored.
    """
    training = backbone.training
    backbone.eval()
    batch = {
        name: value[list(rows)] if isinstance(value, Tensor) else value
        for name, value in features.items()
    }
    with torch.autocast(batch["input_ids"].device.type, enabled=False):
        made = compute(dict(batch))["all_layer_embeddings"]
    backbone.train(training)
    for at, kept in enumerate(batch["attention_mask"].bool()):
        ids = tuple(batch["input_ids"][at][kept].tolist())
        yield ids, torch.stack([made[number][at][kept] for number in numbers]).float()


def _as_outputs(
    rows: Sequence[Tensor], mask: Tensor, numbers: Sequence[int], full: int
) -> dict[str, Any]:
    """What a Transformer adds to its features, padded as ``mask``; None for blocks not kept."""
    shape = (*mask.shape, *rows[0].movedim(0, 1).shape[1:])  # [B, L, n, D]
    padded = torch.zeros(shape, device=mask.device)
    for at, row in enumerate(rows):
        padded[at, : row.shape[1]] = row.movedim(0, 1)
    by_number = dict(zip(numbers, padded.unbind(2), strict=True))
    every = tuple(by_number.get(number) for number in range(full + 1))
    return {"token_embeddings": by_number[full], "all_layer_embeddings": every}


def _key(backbone: nn.Module, numbers: Sequence[int]) -> str:
    digest = hashlib.sha256(repr(list(numbers)).encode())
    for name, value in backbone.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return f"rows-{digest.hexdigest()[:16]}"


def depth_of(encoder: SentenceTransformer) -> int:
    """The number of blocks of the encoder's backbone."""
    backbone: Any = encoder[0].get_submodule("auto_model")
    return int(backbone.config.num_hidden_layers)
