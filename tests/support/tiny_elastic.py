"""A tiny checkpoint with a random selector at each exit, for tests of elastic encoders."""

from pathlib import Path

import torch

from s2sent.model.network.encoder import build_encoder, get_selector
from s2sent.model.network.selector_config import SelectorConfig
from tests.support.tiny import tiny_backbone

WIDTH, NUM_BLOCKS, EXITS = 32, 4, (2, 3)


def elastic_checkpoint(
    folder: Path,
    *,
    exits: tuple[int, ...] = EXITS,
    project: bool = True,
    blocks: bool = False,
) -> Path:
    """Write a checkpoint of four blocks whose exits fuse two and three blocks by their own gates.

    The gates' weights are large, so that no two exits weigh alike; ``project`` adds a matrix to
    each exit, which with ``blocks`` reads all blocks that are fused.
    """
    backbone = tiny_backbone(folder / "backbone", width=WIDTH, num_layers=NUM_BLOCKS)
    config = SelectorConfig(
        width=WIDTH,
        num_blocks=3,
        reduction=4,
        exits=exits,
        project_exits=project,
        project_blocks=blocks,
    )
    encoder = build_encoder(backbone, config, max_seq_length=64)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in get_selector(encoder).parameters():
            parameter.normal_(std=0.5)
    encoder.save(str(folder / "checkpoint"))
    return folder / "checkpoint"
