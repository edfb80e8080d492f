"""PromptBERT: the sentence inside a template, its vector at the template's mask.

    prefix + sentence + suffix -> backbone -> selector or none -> vector at the mask, or the mean

Training (arXiv 2201.04337, section 4) shows two templates of a sentence to a contrastive loss,
after taking off each what the template alone gives. Evaluation uses the first template only, takes
nothing off, and ends the sentence with a full stop, as the paper's evaluation does.

No pipeline here ends in Normalize: the template's part has to come off a vector that still has its
length, in the pipeline that is trained (several processes wrap it whole, so the loss cannot skip a
module of it), and cosines do not need it.

Shapes: B texts, L tokens (padded), D features.
"""

import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from model.network.encoder import CheckpointError
from model.network.selector import S2SentSelector, SelectorConfig
from training.errors import ConfigError, EncoderError
from training.objectives.losses import cosine
from training.recipe import PromptBERT

SENTENCE, MASK = "{}", "[MASK]"  # in a template
FINAL = (".", "?", '"', "'")  # a text that ends so gets no full stop
VIEWS = ("view_1", "view_2")  # the task that names a template in training


@dataclass(frozen=True)
class TemplateIds:
    """A template as token ids: all that stands before and after a sentence, special tokens too."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    space: str  # what separates prefix and sentence; byte-level tokens carry it in front

    @property
    def length(self) -> int:
        """Tokens that are not the sentence's."""
        return len(self.prefix) + len(self.suffix)

    def alone(self, lengths: Tensor, first_position: int) -> dict[str, Tensor]:
        """Features of the template without a sentence, a row for each of ``lengths`` [B].

        Its tokens keep the positions that they have around a sentence of so many tokens.
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

    Raises `ConfigError` for a template that has not one of each.
    """
    if template.count(SENTENCE) != 1 or template.count(MASK) != 1:
        raise ConfigError(
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


class TemplateTransformer(Transformer):
    """A Transformer that puts each sentence into a template; ``max_seq_length`` cuts the sentence.

    Without a task, or with those of encode_query and encode_document, the template is the first and
    ``full_stop`` ends the sentence with a full stop where it has no other end. A task out of
    ``VIEWS`` is a template of training, and leaves the sentence as it is: `view_tasks` gives the
    trainer's ``router_mapping``, which sets the task by the dataset's column.
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
        """The same backbone and tokenizer, shared with ``transformer``, behind templates.

        Raises `ConfigError` for a bad template, `EncoderError` for a tokenizer without a mask.
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
        """The tokenizer; raises `EncoderError` where it has no mask token."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.mask_token is None:
            raise EncoderError(
                f"{self.auto_model.name_or_path} has no mask token, where a template has its "
                "vector: choose a backbone trained as a masked language model."
            )
        return tokenizer

    @property
    def first_position(self) -> int:
        """The position id of a text's first token; RoBERTa's family counts from the padding's."""
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
        """int64 ``input_ids`` and ``attention_mask`` [B, L], and the number of the ``template``.

        Special tokens that a sentence spells out are read as text. Raises ValueError for a prompt,
        an unknown task, and inputs other than strings.
        """
        number, in_training = _template_number(task)
        if prompt:
            raise ValueError(f"the prompt {prompt!r} has no place in a template: encode without.")
        if not all(isinstance(text, str) for text in inputs):
            raise ValueError("a template takes one text: encode strings, not pairs or other media.")
        template = self.template_ids[number]
        texts = [
            template.space + (text if in_training or not self.full_stop else _with_full_stop(text))
            for text in inputs
        ]
        tokenizer = self.masking_tokenizer
        positions = self.config.max_position_embeddings - self.first_position
        sentences = tokenizer(
            texts,
            add_special_tokens=False,
            split_special_tokens=True,  # the mask of a row is the template's
            truncation=True,
            max_length=min(tokenizer.model_max_length, positions - template.length),
        )["input_ids"]
        rows = [torch.tensor([*template.prefix, *ids, *template.suffix]) for ids in sentences]
        padding = tokenizer.pad_token_id
        return {
            "input_ids": pad_sequence(rows, batch_first=True, padding_value=padding),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], True),
            "template": number,
        }


def view_tasks(columns: Sequence[str]) -> dict[str, str]:
    """The trainer's ``router_mapping``: template 1 for the first column, 2 for the others."""
    return {column: VIEWS[min(place, 1)] for place, column in enumerate(columns)}


def _template_number(task: str | None) -> tuple[int, bool]:
    """Which template a task means, and whether it is one of training."""
    if task in VIEWS:
        return VIEWS.index(task), True
    if task in (None, "query", "document"):
        return 0, False
    raise ValueError(f"the task is {task!r}: use none, query, document, {' or '.join(VIEWS)}.")


def _with_full_stop(text: str) -> str:
    text = text.rstrip()
    return text if not text or text.endswith(FINAL) else f"{text}."


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


class TemplateDenoisingLoss(nn.Module):
    """Contrast of two templates of the same sentences, each without what the template alone gives.

    z_t(x) = MLP(h(x, t) - d(t, len(x))), then InfoNCE between the two (arXiv 2201.04337, Eq. 5-7):
    h is the pipeline's vector of the sentence in template t, and d the pipeline's vector of the
    template alone, its tokens at the positions they have around len(x) tokens. Both carry gradient.
    The MLP, Linear and tanh, belongs to the loss: the encoder is used without it. The original
    counts the positions of d from 0 for RoBERTa too, two before the sentence's:
    ``positions_from_zero`` does the same. Columns after the second are hard negatives. With
    ``gather`` the negatives of a row are those of all processes.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float = 0.05,
        denoising: bool = True,
        projection: bool = True,
        *,
        positions_from_zero: bool = False,
        gather: bool = False,
    ) -> None:
        """Raises TypeError or ValueError for a pipeline that `build_prompt_encoder` does not make,
        and `EncoderError` for denoising with a backbone that takes no positions."""
        super().__init__()
        transformer = model[0]
        if not isinstance(transformer, TemplateTransformer):
            raise TypeError("the encoder has no template: build it with build_prompt_encoder.")
        if any(isinstance(module, Normalize) for module in model):
            raise ValueError("the encoder ends in Normalize: build it with build_prompt_encoder.")
        backbone = transformer.auto_model
        if denoising and "position_ids" not in inspect.signature(backbone.forward).parameters:
            raise EncoderError(
                f"{backbone.name_or_path} takes no position ids, which denoising shifts: "
                "set denoising = false or choose another backbone."
            )
        width = transformer.get_embedding_dimension()
        self.model = model
        self.denoising = denoising
        self.templates = transformer.template_ids
        self.first_position = 0 if positions_from_zero else transformer.first_position
        self.projection = (
            nn.Sequential(nn.Linear(width, width), nn.Tanh()) if projection else nn.Identity()
        )
        self.contrast = MultipleNegativesRankingLoss(
            model, 1 / temperature, cosine, gather_across_devices=gather
        )

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor) -> Tensor:
        """The loss of columns that `TemplateTransformer.preprocess` made; ``labels`` are unused."""
        columns = list(sentence_features)
        if len({column["template"] for column in columns}) < 2:
            raise ValueError(
                f"the {len(columns)} columns have one template: give the trainer's arguments "
                "router_mapping=view_tasks(columns)."
            )
        views = [self.projection(self.embed(column)) for column in columns]
        loss: Tensor = self.contrast.compute_loss_from_embeddings(views, labels)
        return loss

    def embed(self, features: dict[str, Any]) -> Tensor:
        """h - d [B, D], or h without denoising, of one column."""
        template = self.templates[features["template"]]
        lengths = features["attention_mask"].sum(1) - template.length
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors - self.template_part(template, lengths) if self.denoising else vectors

    def template_part(self, template: TemplateIds, lengths: Tensor) -> Tensor:
        """d [B, D] of one template for sentences of ``lengths`` [B] tokens."""
        distinct, rows = torch.unique(lengths, return_inverse=True)
        features = template.alone(distinct, self.first_position)
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors[rows]


def build_prompt_encoder(
    backbone: str | Path,
    config: SelectorConfig | None,
    objective: PromptBERT,
    *,
    pooling: str = "mask",
    max_seq_length: int | None = None,
    full_stop: bool = True,
    attn_implementation: str | None = None,
) -> SentenceTransformer:
    """A new encoder with templates on ``backbone``, a local folder or a hub id.

    ``config`` is the untrained selector's, None for none. ``pooling`` is "mask", or a mode of
    Pooling over all tokens, the template's included. Sentences are cut at ``max_seq_length``
    tokens, the template not counted; by default where the backbone's own settings say. Raises
    `EncoderError` for a backbone without a mask token, `ConfigError` for a template, and ValueError
    where the backbone does not fit the selector.
    """
    transformer = TemplateTransformer.from_transformer(
        Transformer.load(str(backbone), **_loading_options(attn_implementation)),
        objective.templates,
        full_stop=full_stop,
    )
    width = transformer.get_embedding_dimension()
    if config is not None and width != config.width:
        raise ValueError(
            f"the selector is {config.width} wide but {backbone} is {width}: set width={width}."
        )
    if max_seq_length is not None:
        transformer.max_seq_length = max_seq_length
    pool = (
        MaskPooling(width, transformer.masking_tokenizer.mask_token_id)
        if pooling == "mask"
        else Pooling(width, pooling_mode=pooling)
    )
    selector = [] if config is None else [S2SentSelector(config)]
    encoder = _assemble([transformer, *selector, pool])
    encoder.encode(["probe"], show_progress_bar=False)  # the selector refuses what it cannot fuse
    return encoder


def is_prompt_checkpoint(checkpoint: str | Path) -> bool:
    """Whether a folder is a checkpoint with a template, which `load_prompt_encoder` opens."""
    modules = Path(checkpoint) / "modules.json"
    return modules.is_file() and _full_name(TemplateTransformer) in modules.read_text("utf-8")


def load_prompt_encoder(
    checkpoint: str | Path, *, attn_implementation: str | None = None
) -> SentenceTransformer:
    """The encoder that an encoder of `build_prompt_encoder` saved.

    As in `model.network.encoder.load_encoder`, none of the checkpoint's code is run. Raises
    CheckpointError
    for a folder that holds anything but a TemplateTransformer, an S2SentSelector or none, and
    MaskPooling or Pooling.
    """
    checkpoint = Path(checkpoint)
    modules = checkpoint / "modules.json"
    try:
        entries = json.loads(modules.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{modules} cannot be read: pass a folder that encoder.save() wrote."
        ) from error
    names = [entry["type"] for entry in entries]
    kinds = {_full_name(kind): kind for kind in (S2SentSelector, MaskPooling, Pooling)}
    template, selector, *pools = map(_full_name, (TemplateTransformer, *kinds.values()))
    if names not in [[template, *fusion, pool] for fusion in ([], [selector]) for pool in pools]:
        raise CheckpointError(
            f"{checkpoint} holds {', '.join(names)}: an encoder with a template is "
            "TemplateTransformer, S2SentSelector or none, and MaskPooling or Pooling."
        )
    transformer = TemplateTransformer.load(
        str(checkpoint), subfolder=entries[0]["path"], **_loading_options(attn_implementation)
    )
    others = [
        kinds[entry["type"]].load(str(checkpoint), subfolder=entry["path"]) for entry in entries[1:]
    ]
    return _assemble([transformer, *others])


def _full_name(kind: type[Module]) -> str:
    """How modules.json names a class."""
    return f"{kind.__module__}.{kind.__name__}"


def _loading_options(attn_implementation: str | None) -> dict[str, Any]:
    attention = {"attn_implementation": attn_implementation} if attn_implementation else {}
    return {"model_kwargs": attention, "config_kwargs": {"output_hidden_states": True}}


def _assemble(modules: Sequence[nn.Module]) -> SentenceTransformer:
    # The trainer reloads its best checkpoint with the encoder's own trust: that code is ours.
    encoder: SentenceTransformer = SentenceTransformer(modules=modules, trust_remote_code=True)
    encoder.eval()
    return encoder
