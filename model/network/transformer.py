"""A backbone that reads each sentence inside a template, and the pooling of the token it reads.

    prefix + sentence + suffix -> backbone -> states of every token, and which of them is the vector

Every checkpoint with a template carries a copy of this file as ``modeling_s2sent_template.py`` and
of the files that it imports, so that it loads where this project is not installed.

Shapes: B texts, L tokens (padded), D features.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from s2sent.model.artifact.template import CLEAN_UPS, CleanUp, Template

from .positions import first_position, num_positions, position_table
from .selector_states import pool_tokens
from .template import READS, REP1, Read, TemplateError, parse_template

MODULE_FILE = "modeling_s2sent_template.py"
# The copies in a checkpoint import each other; the loader takes along what this file imports.
ELSEWHERE, COPIED_AS = "s2sent.model.artifact.template", ".artifact_template"
VIEWS = ("view_1", "view_2")  # the tasks that select template 1 or 2 in training

# Models whose tokens see only what stands before them: a sentence is read at a token behind it.
CAUSAL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gpt2", "opt")


def is_causal(config: Any) -> bool:
    """Whether a backbone of this configuration reads from left to right only."""
    sees_both_sides = (
        getattr(config, "is_causal", None) is False  # as transformers 5 reads it
        or getattr(config, "use_bidirectional_attention", False)
    )
    return config.model_type in CAUSAL_TYPES and not sees_both_sides


class TemplateTransformer(Transformer):
    """A Transformer that puts each sentence into a template; ``max_seq_length`` cuts the sentence.

    The task selects the template. Without a task, or with "query" or "document", it is the first,
    sentences are cleaned up as ``clean_up`` says, and nothing stands behind the token that a causal
    backbone reads. The tasks in ``VIEWS`` select a template in training and leave sentence and
    template as they are; `view_tasks` gives the trainer's ``router_mapping``, which sets the task
    by the dataset's column.
    """

    # The name in modules.json: the copy in the checkpoint, not the package that saved it.
    __module__ = Path(MODULE_FILE).stem

    config_keys = [*Transformer.config_keys, "templates", "read", "clean_up"]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        templates: Sequence[str],
        read: Read = "mask",
        clean_up: CleanUp = "none",
        **kwargs: Any,
    ) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self._set_templates(templates, read, clean_up)

    @classmethod
    def from_transformer(
        cls,
        transformer: Transformer,
        templates: Sequence[str],
        *,
        read: Read = "mask",
        clean_up: CleanUp = "none",
    ) -> Self:
        """A template transformer that shares backbone and tokenizer with ``transformer``.

        Raises `TemplateError` for a bad template, or a backbone without what it needs.
        """
        wrapped = cls.__new__(cls)
        wrapped.__dict__.update(transformer.__dict__)  # __init__ would load the backbone again
        wrapped._set_templates(templates, read, clean_up)
        return wrapped

    def _set_templates(self, templates: Sequence[str], read: Read, clean_up: CleanUp) -> None:
        for name, value, known in (("read", read, READS), ("clean_up", clean_up, CLEAN_UPS)):
            if value not in known:
                raise TemplateError(f"{name} is {value!r}: choose one of {', '.join(known)}.")
        causal = is_causal(self.config)
        if read in ("last_token", "rep1") and not causal:
            raise TemplateError(
                f"{self.auto_model.name_or_path} is of the kind {self.config.model_type}, whose "
                f"tokens see both sides, so {read} would not stand for the sentence alone: choose "
                f"a causal model ({', '.join(CAUSAL_TYPES)}), or pool the mean."
            )
        self.templates = list(templates)
        self.read: Read = read
        self.clean_up: CleanUp = clean_up
        self.causal = causal
        self.text_tokenizer.padding_side = "right"  # as `features` pads
        self.template_ids = tuple(self._parse(text, read) for text in templates)
        self._require_room([template.length for template in self.template_ids])
        served, place = templates[0], read
        if read == "rep1":  # nothing behind Rep1 is ever seen
            served, place = templates[0].partition(REP1)[0], "last_token"
        self.template = self._parse(served, place, clean_up)

    def _parse(self, text: str, read: Read, clean_up: CleanUp = "none") -> Template:
        return parse_template(
            text, self.text_tokenizer, read, clean_up=clean_up, causal=self.causal
        )

    def _require_room(self, lengths: Sequence[int]) -> None:
        if self.num_positions <= max(lengths):
            raise TemplateError(
                f"The template takes {max(lengths)} of the {self.num_positions} tokens that "
                f"{self.auto_model.name_or_path} can read and leaves no room for a sentence: "
                "shorten it."
            )

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, which every backbone of texts has."""
        if self.tokenizer is None:
            raise TemplateError(f"{self.auto_model.name_or_path} has no tokenizer: add its files.")
        return self.tokenizer

    @property
    def num_positions(self) -> int:
        """The tokens that the backbone can read, the template included."""
        return num_positions(self.auto_model) or int(self.config.max_position_embeddings)

    @property
    def first_position(self) -> int:
        """The position id of the first token; RoBERTa-like models count from the padding id."""
        table = position_table(self.auto_model)
        return first_position(table) if table else 0

    def sentence_tokens(self, template: Template) -> int:
        """The most tokens of a sentence that ``template`` and the settings leave room for."""
        limit = int(self.text_tokenizer.model_max_length)
        return min(limit, self.num_positions - template.length)

    def preprocess(  # type: ignore[override]  # texts only
        self,
        inputs: Sequence[str],
        prompt: str | None = None,
        task: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """int64 ``input_ids`` and ``attention_mask`` [B, L], and the index of the ``template``.

        Where one token is read its places are ``read_positions`` [B]; a causal backbone also gets
        ``position_ids`` [B, L]. Rows are padded on the right. Special tokens spelled out in a
        sentence are tokenised as text. Raises ValueError for a prompt, an unknown task, and inputs
        other than strings.
        """
        index, in_training = _template_index(task)
        if prompt:
            raise ValueError(f"the prompt {prompt!r} has no place in a template: encode without.")
        if not all(isinstance(text, str) for text in inputs):
            raise ValueError("a template takes one text: encode strings, not pairs or other media.")
        template = self.template_ids[index] if in_training else self.template
        sentences = self.text_tokenizer(
            [template.text(text) for text in inputs],
            add_special_tokens=False,
            split_special_tokens=True,  # the only mask of a row is the template's
            truncation=True,
            max_length=self.sentence_tokens(template),
        )["input_ids"]
        rows = [torch.tensor(template.row(ids)) for ids in sentences]
        return self.features(rows, template) | {"template": index}

    def features(self, rows: Sequence[Tensor], template: Template) -> dict[str, Tensor]:
        """The backbone's inputs for rows of token ids, padded on the right."""
        padding = padding_id(self.text_tokenizer)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        made = {
            "input_ids": pad_sequence(list(rows), batch_first=True, padding_value=padding),
            "attention_mask": mask,
        }
        if template.read is not None:
            made["read_positions"] = read_positions(mask, template.read)
        if self.causal:
            made["position_ids"] = torch.arange(mask.shape[1]).repeat(len(rows), 1)
        return made

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write backbone, tokenizer and settings, and this source code, to ``output_path``."""
        super().save(output_path, *args, **kwargs)
        sources = {
            MODULE_FILE: __file__,
            "positions.py": inspect.getfile(num_positions),
            "selector_states.py": inspect.getfile(pool_tokens),
            "template.py": inspect.getfile(parse_template),
            f"{COPIED_AS[1:]}.py": inspect.getfile(Template),
        }
        for name, source in sources.items():
            text = Path(source).read_text(encoding="utf-8").replace(ELSEWHERE, COPIED_AS)
            Path(output_path, name).write_text(text, encoding="utf-8")

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would look the class up under __module__, which names no importable module.
        return _empty_transformer, (), self.__dict__

    def alone(self, template: Template, lengths: Tensor, first_position: int) -> dict[str, Tensor]:
        """The template without a sentence, as features with a row for each of ``lengths`` [B].

        Row i has the position ids that the template has around a sentence of ``lengths[i]`` tokens.
        """
        rows = torch.tensor(template.row([])).repeat(len(lengths), 1)
        places = torch.arange(rows.shape[1], device=lengths.device)
        shifts = lengths[:, None] * (places >= len(template.prefix))
        made = self.features([*rows], template) | {"position_ids": first_position + places + shifts}
        return {name: value.to(lengths.device) for name, value in made.items()}


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


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills rows up, behind every token that is read: any token would do.

    Raises `TemplateError` for a tokenizer with neither a padding nor an end token.
    """
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise TemplateError(
        f"{tokenizer.name_or_path} has neither a padding nor an end token to fill rows with: set "
        "pad_token in its tokenizer_config.json."
    )


def read_positions(attention_mask: Tensor, read: int) -> Tensor:
    """The places [B] of the tokens that are read, of rows [B, L] padded on the right."""
    lengths = attention_mask.sum(1)
    return lengths + read if read < 0 else torch.full_like(lengths, read)


class TokenPooling(Module):
    """The embedding of the token that a template reads, as the sentence embedding [B, D]."""

    __module__ = Path(MODULE_FILE).stem

    config_keys = ["width"]

    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.width = width

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Raises ValueError for features without ``read_positions``."""
        features["sentence_embedding"] = pool_tokens(
            features["token_embeddings"],
            features["attention_mask"],
            "token",
            features.get("read_positions"),
        )
        return features

    def get_embedding_dimension(self) -> int:
        """D; sentence-transformers asks its modules for it."""
        return self.width

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the configuration; there are no weights."""
        self.save_config(output_path)

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty_pooling, (), self.__dict__


def _empty_transformer() -> TemplateTransformer:
    return TemplateTransformer.__new__(TemplateTransformer)


def _empty_pooling() -> TokenPooling:
    return TokenPooling.__new__(TokenPooling)
