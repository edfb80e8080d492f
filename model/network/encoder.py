"""The encoder as a sentence-transformers pipeline: backbone, selector or none, pooling.

The backbone may read its sentences inside a template (`model.network.template`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn

from s2sent.model.artifact.template import CleanUp, Template
from s2sent.model.network.loading.backbone import load_transformer, loading
from s2sent.model.network.loading.checkpoint import (
    SETTINGS_FILE,
    CheckpointError,
    first_line,
    read_modules,
    read_settings,
    require_length,
    require_matching_tokenizer,
)
from s2sent.model.network.loading.hub import local_folder
from s2sent.model.network.loading.probe import embed_probe, require_vectors
from s2sent.model.network.positions import num_positions
from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import Read, require_padding
from s2sent.model.network.transformer import TemplateTransformer, TokenPooling

PoolingMode = Literal["mean", "cls", "token"]
PromptPooling = Literal["mean", "cls", "mask", "last_token", "rep1"]
SIMPLE_POOLINGS = (("mean",), ("cls",), ("token",))  # what a selector can pool


def build_encoder(
    backbone: str | Path,
    config: SelectorConfig,
    *,
    max_seq_length: int | None = None,
    normalize: bool = True,
) -> SentenceTransformer:
    """A new encoder with an untrained selector on ``backbone``, a local folder or a hub id.

    Texts are cut at ``max_seq_length`` tokens; None takes the backbone's own limit. Raises
    ValueError where the backbone does not fit the configuration.
    """
    transformer = load_transformer(backbone)
    require_padding(transformer.tokenizer, backbone)
    _require_width(config, transformer.get_embedding_dimension(), backbone)
    _cut_at(transformer, max_seq_length)
    modules: list[nn.Module] = [
        transformer,
        S2SentSelector(config),
        Pooling(config.width, pooling_mode=config.pooling),
    ]
    encoder = assemble([*modules, Normalize()] if normalize else modules)
    embed_probe(backbone, encoder, (ValueError,))  # the selector's, of what it cannot fuse
    return encoder


def build_plain_encoder(
    backbone: str | Path,
    *,
    pooling: str = "mean",
    max_seq_length: int | None = None,
    normalize: bool = True,
) -> SentenceTransformer:
    """A new encoder without a selector: the backbone's last block, pooled."""
    transformer = load_transformer(backbone)
    _cut_at(transformer, max_seq_length)
    pooled = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    modules: list[nn.Module] = [transformer, pooled]
    return assemble([*modules, Normalize()] if normalize else modules)


def build_prompt_encoder(
    backbone: str | Path,
    config: SelectorConfig | None,
    templates: Sequence[str],
    *,
    pooling: PromptPooling = "mask",
    max_seq_length: int | None = None,
    clean_up: CleanUp = "full_stop",
) -> SentenceTransformer:
    """A new encoder that reads sentences inside ``templates``, on a local folder or a hub id.

    It never ends in Normalize: PromptBERT's loss subtracts vectors that still have their length.
    ``config`` is the untrained selector's, None for none. ``pooling`` names the token that is read,
    or a mode of Pooling over all tokens, the template's included. Sentences are cut at
    ``max_seq_length`` tokens, the template not counted; by default where the backbone's own
    settings say. Raises `TemplateError` for a bad template or a backbone without what it needs, and
    ValueError where the backbone does not fit the selector.
    """
    loaded = load_transformer(backbone)
    read: Read = "none" if pooling == "mean" or pooling == "cls" else pooling
    transformer = TemplateTransformer.from_transformer(
        loaded, templates, read=read, clean_up=clean_up
    )
    width = transformer.get_embedding_dimension()
    if max_seq_length is not None:
        transformer.max_seq_length = max_seq_length
    pool = Pooling(width, pooling_mode=pooling) if read == "none" else TokenPooling(width)
    selector = []
    if config is not None:
        _require_width(config, width, backbone)
        selector = [S2SentSelector(config)]
    encoder = assemble([transformer, *selector, pool])
    _align(encoder)
    embed_probe(backbone, encoder, (ValueError,))  # the selector's, of what it cannot fuse
    return encoder


def load_encoder(checkpoint: str | Path) -> SentenceTransformer:
    """Load the encoder that ``encoder.save(checkpoint)`` wrote, with a selector or without.

    None of the checkpoint's code is run: the classes are this project's or the library's own.
    Raises CheckpointError for a folder that holds other modules
    (`model.network.loading.checkpoint`), a selector with a pooling other than mean, cls or a token,
    a tokenizer that cannot be served, or parts that give no vector of finite numbers, and for files
    that are missing or damaged.
    """
    checkpoint = local_folder(checkpoint)
    (kind, subfolder), *others = read_modules(checkpoint)
    transformer = load_transformer(checkpoint, kind=kind, subfolder=subfolder)
    with loading(checkpoint):
        modules = [kind.load(str(checkpoint), subfolder=path) for kind, path in others]
        require_matching_tokenizer(checkpoint, transformer)
        require_length(checkpoint, transformer)
        _cut_at(transformer)
        encoder = _assembled(checkpoint, [transformer, *modules])
        _require_known_pooling(encoder, checkpoint)
        _align(encoder)
        require_vectors(checkpoint, encoder)
    return encoder


def _assembled(checkpoint: Path, modules: Sequence[nn.Module]) -> SentenceTransformer:
    settings = read_settings(checkpoint)
    try:
        return assemble(modules, **settings)
    except (TypeError, ValueError) as error:  # of prompts and similarities that there are not
        raise CheckpointError(
            f"{checkpoint / SETTINGS_FILE} cannot be used ({first_line(error)}): correct it."
        ) from error


def find_template(encoder: SentenceTransformer) -> Template | None:
    """The template in which an encoder embeds its sentences; None for none."""
    transformer = encoder[0]
    return transformer.template if isinstance(transformer, TemplateTransformer) else None


def find_selector(encoder: SentenceTransformer) -> S2SentSelector | None:
    """The selector of an encoder that this module built or loaded; None where it has none."""
    return next((module for module in encoder if isinstance(module, S2SentSelector)), None)


def get_selector(encoder: SentenceTransformer) -> S2SentSelector:
    """The selector of an encoder that has one; raises TypeError for one that has none."""
    selector = find_selector(encoder)
    if selector is None:
        raise TypeError("the encoder has no S2SentSelector: build it with build_encoder.")
    return selector


def get_pooling(encoder: SentenceTransformer) -> Pooling | TokenPooling:
    """The pooling of an encoder that this module built or loaded."""
    return next(module for module in encoder if isinstance(module, (Pooling, TokenPooling)))


def leaves_prompts_out(encoder: SentenceTransformer) -> bool:
    """Whether the tokens of the encoder's prompts are attended to and not pooled."""
    pooling = get_pooling(encoder)
    is_left_out = isinstance(pooling, Pooling) and not pooling.include_prompt
    return is_left_out and any(encoder.prompts.values())


def pooling_modes(encoder: SentenceTransformer) -> tuple[str, ...]:
    """The poolings whose vectors stand side by side; "token" is the token that is read."""
    pooling = get_pooling(encoder)
    if isinstance(pooling, TokenPooling):
        return ("token",)
    modes = pooling.pooling_mode
    return (modes,) if isinstance(modes, str) else tuple(modes)


def find_head(encoder: SentenceTransformer) -> list[nn.Module]:
    """The modules behind the pooling, without a Normalize at the end."""
    modules = list(encoder)
    behind = modules[modules.index(get_pooling(encoder)) + 1 :]
    return behind[:-1] if behind and isinstance(behind[-1], Normalize) else behind


def pooling_mode(encoder: SentenceTransformer) -> PoolingMode:
    """What one sentence's vector is made of: "mean", "cls", or the "token" that is read.

    Raises `CheckpointError` for another pooling, or modules behind it, which only an export takes.
    """
    modes, head = pooling_modes(encoder), find_head(encoder)
    if modes not in SIMPLE_POOLINGS or head:
        names = ", ".join(type(module).__name__ for module in head)
        raise CheckpointError(
            f"the encoder pools {' and '.join(modes)}{names and f' with {names} behind'}, and this "
            "takes mean, cls or a token, with nothing but Normalize behind."
        )
    return cast(PoolingMode, modes[0])


def _require_width(config: SelectorConfig, width: int, backbone: str | Path) -> None:
    if width != config.width:
        raise ValueError(
            f"the selector is {config.width} wide but {backbone} is {width}: set width={width}."
        )


def assemble(modules: Sequence[nn.Module], **settings: Any) -> SentenceTransformer:
    """The modules as a pipeline, in evaluation mode."""
    # sentence-transformers' trainer reloads its best checkpoint with the encoder's own trust: that
    # code is ours.
    encoder: SentenceTransformer = SentenceTransformer(
        modules=modules, trust_remote_code=True, **settings
    )
    encoder.eval()
    return encoder


def _require_known_pooling(encoder: SentenceTransformer, checkpoint: Path) -> None:
    pooling, modes = get_pooling(encoder), pooling_modes(encoder)
    if isinstance(pooling, TokenPooling):
        if (template := find_template(encoder)) is None or template.read is None:
            raise CheckpointError(
                f"{checkpoint} pools the token that a template reads, and has none: "
                "save the encoder again as it was built."
            )
    elif leaves_prompts_out(encoder) and (find_selector(encoder) or find_template(encoder)):
        raise CheckpointError(
            f"{checkpoint} leaves its prompts out of the pooling (include_prompt=False), and a "
            "selector and a template pool all tokens: set include_prompt to true."
        )
    elif modes not in SIMPLE_POOLINGS and find_selector(encoder):
        raise CheckpointError(
            f"{checkpoint} pools {' and '.join(modes)} behind a selector, which pools by mean or "
            "cls."
        )


def _cut_at(transformer: Any, max_seq_length: int | None = None) -> None:
    """Let texts be cut at ``max_seq_length`` tokens, by default as the checkpoint says.

    It is lowered to the rows of the position table where these are fewer.
    """
    if max_seq_length is not None:
        transformer.max_seq_length = max_seq_length
    if (rows := max_positions(transformer)) is not None:
        transformer.max_seq_length = min(transformer.max_seq_length or rows, rows)


def max_positions(transformer: Any) -> int | None:
    """How many tokens a transformer has positions for; None where no table or a template says."""
    if isinstance(transformer, TemplateTransformer):
        return None
    return num_positions(transformer.auto_model)


def _align(encoder: SentenceTransformer) -> None:
    """Let the selector pool what the pipeline pools."""
    if (selector := find_selector(encoder)) is not None:
        selector.config = replace(
            selector.config, pooling=cast(PoolingMode, pooling_modes(encoder)[0])
        )
