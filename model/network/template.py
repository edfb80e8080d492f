"""PromptBERT templates as token ids: the text before and after a sentence (arXiv 2201.04337)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SENTENCE, MASK = "{}", "[MASK]"  # the placeholders in a template


class TemplateError(ValueError):
    """A template that cannot be used, or a backbone without the mask token that it needs."""


@dataclass(frozen=True)
class TemplateIds:
    """A template as token ids; prefix and suffix include the tokenizer's special tokens."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    space: str  # between prefix and sentence; byte-level tokenizers make it part of the next token

    @property
    def length(self) -> int:
        """The number of tokens of the template without a sentence."""
        return len(self.prefix) + len(self.suffix)

    def alone(self, lengths: Tensor, first_position: int) -> dict[str, Tensor]:
        """The template without a sentence, as features with a row for each of ``lengths`` [B].

        Row i has the position ids that the template has around a sentence of ``lengths[i]`` tokens.
        """
        ids = torch.tensor([*self.prefix, *self.suffix], device=lengths.device)
        places = torch.arange(len(ids), device=lengths.device)
        shifts = lengths[:, None] * (places >= len(self.prefix))
        rows = ids.repeat(len(lengths), 1)
        return {
            "input_ids": rows,
            "attention_mask": torch.ones_like(rows),
            "position_ids": first_position + places + shifts,
        }


def template_ids(template: str, tokenizer: PreTrainedTokenizerBase) -> TemplateIds:
    """The ids of a template, in which ``{}`` is the sentence and ``[MASK]`` the tokenizer's mask.

    Raises `TemplateError` unless the template has exactly one of each.
    """
    if template.count(SENTENCE) != 1 or template.count(MASK) != 1:
        raise TemplateError(
            f"The template {template!r} must have one {SENTENCE} for the sentence "
            f"and one {MASK} for its vector."
        )
    before, after = template.replace(MASK, str(tokenizer.mask_token)).split(SENTENCE)
    start, end = _special_ids(tokenizer)
    prefix, suffix = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before.rstrip(), after)
    )
    space = before[len(before.rstrip()) :]
    return TemplateIds((*start, *prefix), (*suffix, *end), space)


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    start, end = special.index(0), len(special) - special[::-1].index(0)
    return ids[:start], ids[end:]
