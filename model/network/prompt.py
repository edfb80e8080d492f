"""The PromptBERT encoder: a sentence inside a template, embedded at the template's mask token.

    prefix + sentence + suffix -> backbone -> selector or none -> vector at the mask, or the mean

Training contrasts two templates of each sentence (arXiv 2201.04337, section 4); evaluation uses the
first template and ends the sentence with a full stop, as the paper's evaluation does. The pipeline
never ends in Normalize, because the loss subtracts vectors that still have their length.

Shapes: B texts, L tokens (padded), D features.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from model.network.encoder import (
    MODULES_FILE,
    CheckpointError,
    assemble,
    load_transformer,
    read_json,
    require_width,
)
from model.network.selector import S2SentSelector, SelectorConfig
from model.network.template import TemplateError, template_ids

SENTENCE_ENDS = (".", "?", '"', "'")  # a text that ends in one of these gets no full stop
VIEWS = ("view_1", "view_2")  # the tasks that select template 1 or 2 in training

FORMER_MODULE = "training.prompts"  # where old checkpoints say that the classes below are


class TemplateTransformer(Transformer):
    """A Transformer that puts each sentence into a template; ``max_seq_length`` cuts the sentence.

    The task selects the template. Without a task, or with "query" or "document", it is the first,
    and ``full_stop`` adds a full stop to a sentence that has no other end. The tasks in ``VIEWS``
    select a template in training and leave the sentence unchanged; `view_tasks` gives the trainer's
    ``router_mapping``, which sets the task by the dataset's column.
    """

    config_keys = [*Transformer.config_keys, "templates", "full_stop"]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        templates: Sequence[str],
        full_stop: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self._set_templates(templates, full_stop)

    @classmethod
    def from_transformer(
        cls, transformer: Transformer, templates: Sequence[str], *, full_stop: bool = True
    ) -> Self:
        """A template transformer that shares backbone and tokenizer with ``transformer``.

        Raises `TemplateError` for a bad template or a tokenizer without a mask token.
        """
        wrapped = cls.__new__(cls)
        wrapped.__dict__.update(transformer.__dict__)  # __init__ would load the backbone again
        wrapped._set_templates(templates, full_stop)
        return wrapped

    def _set_templates(self, templates: Sequence[str], full_stop: bool) -> None:
        self.templates = list(templates)
        self.full_stop = full_stop
        tokenizer = self.masking_tokenizer
        self.template_ids = tuple(template_ids(text, tokenizer) for text in templates)

    @property
    def masking_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer; raises `TemplateError` where it has no mask token."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.mask_token is None:
            raise TemplateError(
                f"{self.auto_model.name_or_path} has no mask token, where a template has its "
                "vector: choose a backbone trained as a masked language model."
            )
        return tokenizer

    @property
    def first_position(self) -> int:
        """The position id of the first token; RoBERTa-like models count from the padding id."""
        tables = (getattr(part, "position_embeddings", None) for part in self.auto_model.modules())
        table = next((table for table in tables if isinstance(table, nn.Embedding)), None)
        return 0 if table is None or table.padding_idx is None else table.padding_idx + 1

    def preprocess(  # type: ignore[override]  # texts only
        self,
        inputs: Sequence[str],
        prompt: str | None = None,
        task: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """int64 ``input_ids`` and ``attention_mask`` [B, L], and the index of the ``template``.

        Special tokens spelled out in a sentence are tokenised as text. Raises ValueError for a
        prompt, an unknown task, and inputs other than strings.
        """
        index, in_training = _template_index(task)
        if prompt:
            raise ValueError(f"the prompt {prompt!r} has no place in a template: encode without.")
        if not all(isinstance(text, str) for text in inputs):
            raise ValueError("a template takes one text: encode strings, not pairs or other media.")
        template = self.template_ids[index]
        texts = [
            template.space + (text if in_training or not self.full_stop else _with_full_stop(text))
            for text in inputs
        ]
        tokenizer = self.masking_tokenizer
        positions = self.config.max_position_embeddings - self.first_position
        sentences = tokenizer(
            texts,
            add_special_tokens=False,
            split_special_tokens=True,  # the only mask of a row is the template's
            truncation=True,
            max_length=min(tokenizer.model_max_length, positions - template.length),
        )["input_ids"]
        rows = [torch.tensor([*template.prefix, *ids, *template.suffix]) for ids in sentences]
        padding = tokenizer.pad_token_id
        return {
            "input_ids": pad_sequence(rows, batch_first=True, padding_value=padding),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], True),
            "template": index,
        }


def view_tasks(columns: Sequence[str]) -> dict[str, str]:
    """The trainer's ``router_mapping``: template 1 for the first column, 2 for the others."""
    return {column: VIEWS[min(place, 1)] for place, column in enumerate(columns)}


def _template_index(task: str | None) -> tuple[int, bool]:
    """The template that a task selects, and whether the task is one of training."""
    if task in VIEWS:
        return VIEWS.index(task), True
    if task in (None, "query", "document"):
        return 0, False
    raise ValueError(f"the task is {task!r}: use none, query, document, {' or '.join(VIEWS)}.")


def _with_full_stop(text: str) -> str:
    text = text.rstrip()
    return text if not text or text.endswith(SENTENCE_ENDS) else f"{text}."


class MaskPooling(Module):
    """The token embedding at the template's mask as the sentence embedding [B, D]."""

    config_keys = ["width", "mask_token_id"]

    def __init__(self, width: int, mask_token_id: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.width = width
        self.mask_token_id = mask_token_id

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Raises ValueError where a text has no mask, or more than one."""
        masks = features["input_ids"] == self.mask_token_id
        wrong = int((masks.sum(1) != 1).sum())
        if wrong:
            raise ValueError(
                f"{wrong} of {len(masks)} texts have not exactly one mask token: "
                "use MaskPooling behind a TemplateTransformer."
            )
        features["sentence_embedding"] = features["token_embeddings"][masks]
        return features

    def get_embedding_dimension(self) -> int:
        """D; sentence-transformers asks its modules for it."""
        return self.width

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the configuration; there are no weights."""
        self.save_config(output_path)


def build_prompt_encoder(
    backbone: str | Path,
    config: SelectorConfig | None,
    templates: Sequence[str],
    *,
    pooling: str = "mask",
    max_seq_length: int | None = None,
    full_stop: bool = True,
    attn_implementation: str | None = None,
) -> SentenceTransformer:
    """A new encoder with ``templates`` on ``backbone``, a local folder or a hub id.

    ``config`` is the untrained selector's, None for none. ``pooling`` is "mask", or a mode of
    Pooling over all tokens, the template's included. Sentences are cut at ``max_seq_length``
    tokens, the template not counted; by default where the backbone's own settings say. Raises
    `TemplateError` for a bad template or a backbone without a mask token, and ValueError where the
    backbone does not fit the selector.
    """
    loaded = load_transformer(str(backbone), attn_implementation=attn_implementation)
    transformer = TemplateTransformer.from_transformer(loaded, templates, full_stop=full_stop)
    width = transformer.get_embedding_dimension()
    if config is not None:
        require_width(config, width, backbone)
    if max_seq_length is not None:
        transformer.max_seq_length = max_seq_length
    pool = (
        MaskPooling(width, transformer.masking_tokenizer.mask_token_id)
        if pooling == "mask"
        else Pooling(width, pooling_mode=pooling)
    )
    selector = [] if config is None else [S2SentSelector(config)]
    encoder = assemble([transformer, *selector, pool])
    encoder.encode(["probe"], show_progress_bar=False)  # the selector refuses what it cannot fuse
    return encoder


def is_prompt_checkpoint(checkpoint: str | Path) -> bool:
    """Whether a folder is a checkpoint with a template, which `load_prompt_encoder` opens."""
    modules = Path(checkpoint) / MODULES_FILE
    if not modules.is_file():
        return False
    text = modules.read_text("utf-8")
    return any(f"{module}.TemplateTransformer" in text for module in (__name__, FORMER_MODULE))


def load_prompt_encoder(
    checkpoint: str | Path, *, attn_implementation: str | None = None
) -> SentenceTransformer:
    """The encoder that `build_prompt_encoder` built and ``encoder.save(checkpoint)`` wrote.

    As in `model.network.encoder.load_encoder`, none of the checkpoint's code is run. Raises
    `CheckpointError` for a folder that holds anything but a TemplateTransformer, an S2SentSelector
    or none, and MaskPooling or Pooling.
    """
    checkpoint = Path(checkpoint)
    entries = read_json(checkpoint / MODULES_FILE)
    names = [entry["type"].replace(f"{FORMER_MODULE}.", f"{__name__}.") for entry in entries]
    kinds = {_full_name(kind): kind for kind in (S2SentSelector, MaskPooling, Pooling)}
    template, selector, *pools = map(_full_name, (TemplateTransformer, *kinds.values()))
    if names not in [[template, *fusion, pool] for fusion in ([], [selector]) for pool in pools]:
        raise CheckpointError(
            f"{checkpoint} holds {', '.join(names)}: an encoder with a template is "
            "TemplateTransformer, S2SentSelector or none, and MaskPooling or Pooling."
        )
    transformer = load_transformer(
        str(checkpoint),
        kind=TemplateTransformer,
        subfolder=entries[0]["path"],
        attn_implementation=attn_implementation,
    )
    others = [
        kinds[name].load(str(checkpoint), subfolder=entry["path"])
        for name, entry in zip(names[1:], entries[1:], strict=True)
    ]
    return assemble([transformer, *others])


def _full_name(kind: type[Module]) -> str:
    """The name of a class in modules.json."""
    return f"{kind.__module__}.{kind.__name__}"
