"""Twins of two tiny random encoders, for tests that need towers."""

from pathlib import Path
from typing import Literal

import torch
from sentence_transformers import SentenceTransformer

from s2sent.model.network.encoder import build_encoder, build_plain_encoder, load_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.twin_encoder import TOWERS
from s2sent.model.network.twins import join_towers
from tests.support.tiny import tiny_backbone

WIDTH = 32


def tiny_twins(
    folder: Path,
    family: str = "bert",
    *,
    pooling: Literal["mean", "cls"] = "mean",
    selector: bool = True,
    num_layers: int = 4,
    max_seq_length: int = 64,
) -> SentenceTransformer:
    """Write two checkpoints of other weights to ``folder`` and join them.

    The checkpoints are ``tower_a.checkpoint`` and ``tower_b.checkpoint``.
    """
    for seed, name in enumerate(TOWERS):
        backbone = tiny_backbone(
            folder / f"{name}.backbone",
            family,
            width=WIDTH,
            num_layers=num_layers,
            max_positions=max(128, max_seq_length),
            seed=seed,
        )
        torch.manual_seed(seed)
        if selector:
            config = SelectorConfig(width=WIDTH, num_blocks=3, reduction=4, pooling=pooling)
            tower = build_encoder(backbone, config, max_seq_length=max_seq_length)
        else:
            tower = build_plain_encoder(backbone, pooling=pooling, max_seq_length=max_seq_length)
        tower.save(str(folder / f"{name}.checkpoint"), create_model_card=False)
    towers = [load_encoder(folder / f"{name}.checkpoint") for name in TOWERS]
    return join_towers(*towers, normalize=True)
