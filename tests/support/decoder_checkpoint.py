"""Checkpoints of tiny random decoders, which read a text inside a template."""

from pathlib import Path
from typing import Any

import torch

from s2sent.model.network.encoder import build_prompt_encoder, get_selector
from s2sent.model.network.selector_config import SelectorConfig
from tests.support.tiny import tiny_decoder

WIDTH, LAYERS = 32, 4
TEMPLATE = 'This sentence : "{}" means in one word:"[REP1], it can be summarized as:"'
SCOPES: dict[str, dict[str, Any]] = {
    "token": {"num_frequencies": 2, "squeeze_scope": "token", "input_norm": "rms"},
    "prefix": {"squeeze_scope": "prefix", "input_norm": "length"},
}


def a_decoder(folder: Path, config: SelectorConfig | None, **options: Any) -> Path:
    backbone = tiny_decoder(folder / "backbone", options.pop("family", "llama"), num_layers=LAYERS)
    chosen = {"pooling": "last_token", "clean_up": "statement", "max_seq_length": 32, **options}
    torch.manual_seed(0)
    encoder = build_prompt_encoder(backbone, config, [TEMPLATE], **chosen)
    if config and config.spatial_selection != "avg":
        for parameter in get_selector(encoder).parameters():
            torch.nn.init.normal_(parameter, std=0.5)  # the gate depends on its input
    encoder.save(str(folder / "checkpoint"), create_model_card=False)
    return folder / "checkpoint"


def a_selector(**options: Any) -> SelectorConfig:
    gate: dict[str, Any] = {} if "spatial_selection" in options else {"reduction": 2}
    return SelectorConfig(width=WIDTH, **gate, **options)
