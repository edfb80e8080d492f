"""How many tokens an exported encoder reads at most, and which backbones change beyond a length.

A trace keeps what the backbone does with a short text. Where it would do something else with a
longer one, the encoder is refused beyond that length.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

from sentence_transformers import SentenceTransformer

from s2sent.model.export.options import ExportError
from s2sent.model.export.parity import sentences_for
from s2sent.model.network.encoder import find_template, max_positions
from s2sent.model.network.transformer import TemplateTransformer

UNSAID = 10**6  # tokens from which a tokenizer's limit is none; transformers writes 1e30
LONGEST_CHECKED = 4096  # tokens of the longest text that parity is checked on, beside a window's


def cut_at(encoder: SentenceTransformer, tokens: int | None) -> None:
    """Let the encoder read ``tokens`` of a text; None leaves it as it is.

    Raises `ExportError` for more tokens than there are positions, or fewer than one.
    """
    if tokens is None:
        return
    rows = max_positions(encoder[0])
    if tokens < 1 or tokens > (rows or tokens):
        raise ExportError(
            f"--max-seq-length is {tokens}, and the backbone has {rows or 'any number of'}"
            f" positions: choose 1 to {rows or UNSAID}."
        )
    encoder.max_seq_length = tokens


def max_seq_length(encoder: SentenceTransformer) -> int:
    """Tokens of a row, a template's included; raises `ExportError` where nothing says it."""
    longest = encoder.max_seq_length
    transformer, template = encoder[0], find_template(encoder)
    if isinstance(transformer, TemplateTransformer) and template:
        return transformer.sentence_tokens(template) + template.length
    if longest is None or longest >= UNSAID:
        raise ExportError(
            "the checkpoint does not say how many tokens it reads, neither in model_max_length nor"
            " by its positions: give --max-seq-length, such as 512."
        )
    return int(longest)


def require_one_branch(encoder: SentenceTransformer) -> None:
    """Raise `ExportError` where the encoder reads more tokens than its graph is right for."""
    longest, template = max_seq_length(encoder), find_template(encoder)
    for limit, what in _switches(encoder[0].get_submodule("auto_model")):
        if longest > limit:
            left = limit - (template.length if template else 0)
            cure = f"export it with --max-seq-length {left}" if left > 0 else "shorten its template"
            raise ExportError(
                f"the encoder reads {longest} tokens, and {what} beyond {limit}, which a graph"
                f" cannot: {cure}."
            )


def _switches(backbone: Any) -> Iterator[tuple[int, str]]:
    """The numbers of tokens beyond which a backbone does something else, and what."""
    config, kind = backbone.config, backbone.config.model_type
    for module in backbone.modules():
        forms = getattr(module, "rope_type", None)
        for form in forms.values() if isinstance(forms, dict) else (forms,):
            limit = int(getattr(config, "max_position_embeddings", None) or UNSAID)
            if form == "longrope":
                limit = int(getattr(config, "original_max_position_embeddings", None) or limit)
            if form in ("dynamic", "longrope"):
                yield limit, f"the rotary positions of this {kind} ({form}) change"
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird, arXiv 2007.14062
        limit = (5 + 2 * config.num_random_blocks) * config.block_size
        yield limit, f"the attention of this {kind} becomes sparse"


def checked_texts(encoder: SentenceTransformer, sentences: Sequence[str]) -> list[str]:
    """The sentences that parity is checked on, the built-in ones by default, and long texts.

    The last is as long as a text that the encoder reads, up to ``LONGEST_CHECKED`` tokens and a
    window.
    """
    own = sentences_for(encoder.tokenizer.backend_tokenizer)
    joined = " ".join(own)
    texts = [*(sentences or own), joined]
    backbone: Any = encoder[0].get_submodule("auto_model")
    window = backbone.config.to_dict().get("sliding_window") or 0
    wanted = min(max_seq_length(encoder), LONGEST_CHECKED + window)
    found = len(encoder.tokenizer(joined, add_special_tokens=False, verbose=False)["input_ids"])
    if 0 < found < wanted:
        words = joined.split()
        texts.append(" ".join(islice(cycle(words), math.ceil(wanted / found * len(words)))))
    return texts
