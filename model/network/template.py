"""A template's text as token ids, and the place of the token that stands for the sentence.

In the text ``{}`` is the sentence. ``[MASK]`` is the tokenizer's mask token (PromptBERT, arXiv
2201.04337); ``[REP1]`` marks the end of the first of two stages (CSE-SFP): Rep1 is the token before
the mark, Rep2 the last token of the template.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from transformers import PreTrainedTokenizerBase

from s2sent.model.artifact.template import CleanUp, Template

SENTENCE, MASK, REP1 = "{}", "[MASK]", "[REP1]"

# The token that is read: none (all are pooled), the mask, the last one, or Rep1.
Read = Literal["none", "mask", "last_token", "rep1"]
READS = get_args(Read)


# The templates of PromptEOL (arXiv 2307.16645) and CSE-SFP, which has one for each kind of model.
TEMPLATES = {
    "prompteol": 'This sentence : "{}" means in one word:"',
    "sfp": 'This sentence : "{}" means in one word:"[REP1], it can be summarized as:"',
    "sfp-llama": 'This sentence : "{}" means in one word[REP1], it can be summarized as',
    "sfp-mistral": 'This sentence : "{}" means something[REP1], it can be summarized as',
    "sfp-opt": 'This sentence : "{}" means in one word[REP1], it can also be summarized as',
}


class TemplateError(ValueError):
    """A template that cannot be used, or a backbone without what the template needs.

    No `UserError`, because checkpoints carry a copy of this file, and none of the errors' module.
    """


class PaddingError(TemplateError):
    """A tokenizer without a padding token, which only a backbone in a template does without."""


def template_text(name: str) -> str:
    """The text of a template: of one of ``TEMPLATES`` by name, or the text itself."""
    if SENTENCE not in name and name not in TEMPLATES:
        raise TemplateError(
            f"The template {name!r} has no {SENTENCE} for the sentence and is none of "
            f"{', '.join(TEMPLATES)}: correct it."
        )
    return TEMPLATES.get(name, name)


def require_padding(tokenizer: object, backbone: object) -> None:
    """Raise `PaddingError` for a tokenizer without a padding token, as those of decoders."""
    if getattr(tokenizer, "pad_token", "") is None:
        raise PaddingError(
            f"The tokenizer of {backbone} has no padding token, as those of decoders. Set template,"
            " such as template = 'prompteol' in [backbone]."
        )


def parse_template(
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    read: Read,
    *,
    clean_up: CleanUp = "none",
    causal: bool = False,
) -> Template:
    """A template's text as token ids; a causal backbone gets no special tokens behind it.

    Its parts are tokenised apart, so that no sentence changes the template's tokens. Raises
    `TemplateError` for a text without what ``read`` needs, and for a tokenizer without a mask
    token where the text has one.
    """
    _require_marks(text, read)
    if MASK in text and tokenizer.mask_token is None:
        raise TemplateError(
            f"{tokenizer.name_or_path} has no mask token, where a template has its vector: choose "
            "a backbone trained as a masked language model."
        )
    before, after = text.replace(MASK, str(tokenizer.mask_token)).split(SENTENCE)
    start, end = _special_ids(tokenizer)
    prefix, *stages = (
        tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in (before.rstrip(), *after.split(REP1))
    )
    row_start = (*start, *prefix)
    suffix = (*(token for stage in stages for token in stage), *(() if causal else end))
    return Template(
        prefix=row_start,
        suffix=suffix,
        read=_read_place(read, row_start, suffix, stages, tokenizer),
        space=before[len(before.rstrip()) :],
        clean_up=clean_up,
    )


def _require_marks(text: str, read: Read) -> None:
    masks = 1 if read == "mask" else text.count(MASK)
    if text.count(SENTENCE) != 1 or text.count(MASK) != masks:
        mask = f" and one {MASK} for its vector" if read == "mask" else ""
        raise TemplateError(
            f"The template {text!r} must have one {SENTENCE} for the sentence{mask}: correct it."
        )
    if text.count(REP1) > 1 or REP1 in text.partition(SENTENCE)[0]:
        raise TemplateError(
            f"The template {text!r} must have {REP1} once, behind {SENTENCE}, or not "
            "at all: correct it."
        )
    if read == "rep1" and REP1 not in text:
        raise TemplateError(f"The template {text!r} must have {REP1} where rep1 ends: add it.")


def _read_place(
    read: Read,
    prefix: Sequence[int],
    suffix: Sequence[int],
    stages: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
) -> int | None:
    """The place of the token that is read, from the end of the row if behind the sentence."""
    if read == "none":
        return None
    if read == "rep1":
        return -1 - sum(len(stage) for stage in stages[1:])
    if read == "last_token":
        return -1
    mask = tokenizer.mask_token_id
    return suffix.index(mask) - len(suffix) if mask in suffix else prefix.index(mask)


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    start, end = special.index(0), len(special) - special[::-1].index(0)
    return ids[:start], ids[end:]
