"""Texts, templates and vectors by hand, for the tests of the PromptBERT encoder and its loss."""

from typing import Any

import pytest
import torch
from torch import Tensor

from s2sent.model.network.encoder import find_selector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.transformer import view_tasks

FAMILIES = ("bert", "roberta")
TEMPLATES = ('This sentence of "{}" means [MASK].', 'This sentence : "{}" means [MASK].')
SELECTOR = SelectorConfig(width=32, num_blocks=3, reduction=2)  # enough that some ReLU is open
TEXTS = [
    "A man plays the guitar.",
    "no",
    "The old woman reads a book by the river while three children sing about the red train",
    "Two dogs run in the street, and a cat eats.",
]
TOLERANCE = 1e-5  # what fp32 kernels may differ by between batch shapes

families = pytest.mark.parametrize("family", FAMILIES)
selectors = pytest.mark.parametrize(
    "selector", [pytest.param(None, id="last block"), pytest.param(SELECTOR, id="selector")]
)


def views(encoder: Any, texts: list[str]) -> list[dict[str, Any]]:
    """The two columns that the trainer's collator makes of the same texts."""
    tasks = view_tasks(["first", "second"])
    return [encoder.preprocess(texts, task=tasks[column]) for column in ("first", "second")]


def first_position(family: str) -> int:
    """RoBERTa numbers positions from the padding's id, which is 1."""
    return 2 if family == "roberta" else 0


@torch.no_grad()
def by_hand(encoder: Any, ids: list[int], positions: list[int]) -> Tensor:
    """The vector [D] at the mask of one row, from the backbone and the selector's equations."""
    outputs = encoder[0].auto_model(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        output_hidden_states=True,
    )
    selector = find_selector(encoder)
    states = outputs.last_hidden_state
    if selector is not None:
        blocks = selector.select_blocks(outputs.hidden_states)
        states = selector.fuse(blocks, torch.ones(1, len(ids)))
    vector: Tensor = states[0, ids.index(encoder.tokenizer.mask_token_id)]
    return vector
