"""The encoder as a sentence-transformers pipeline: backbone, selector or none, pooling.

The backbone may read its sentences inside a template (`model.network.template`).
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn

from model.artifact.template import CleanUp, Template
from model.network.selector import S2SentSelector, SelectorConfig
from model.network.template import Read
from model.network.transformer import TemplateTransformer, TokenPooling

PoolingMode = Literal["mean", "cls", "token"]
PromptPooling = Literal["mean", "cls", "mask", "last_token", "rep1"]

# One of each line, in this order; the selector and Normalize may be left out.
PIPELINE: tuple[tuple[type[Module], ...], ...] = (
    (Transformer, TemplateTransformer),
    (S2SentSelector,),
    (Pooling, TokenPooling),
    (Normalize,),
)
OPTIONAL = (S2SentSelector, Normalize)
FORMER_NAMES = {  # what modules.json of older checkpoints has
    f"{package}.{name}": kind
    for package in ("model.network.prompt", "training.prompts")
    for name, kind in (("TemplateTransformer", TemplateTransformer), ("MaskPooling", TokenPooling))
}
POOLING_MODES = ("mean", "cls")
MODULES_FILE = "modules.json"  # where sentence-transformers lists the modules of a checkpoint


class CheckpointError(ValueError):
    """A folder that is not a checkpoint of an encoder this project can train, export or serve."""


def build_encoder(
    backbone: str | Path,
    config: SelectorConfig,
    *,
    max_seq_length: int | None = None,
    normalize: bool = True,
    attn_implementation: str | None = None,
) -> SentenceTransformer:
    """A new encoder with an untrained selector on ``backbone``, a local folder or a hub id.

    Texts are cut at ``max_seq_length`` tokens; None takes the backbone's own limit. Raises
    ValueError where the backbone does not fit the configuration.
    """
    transformer = load_transformer(str(backbone), attn_implementation=attn_implementation)
    width = transformer.get_embedding_dimension()
    require_width(config, width, backbone)
    if max_seq_length is not None:
        transformer.max_seq_length = max_seq_length
    modules: list[nn.Module] = [
        transformer,
        S2SentSelector(config),
        Pooling(config.width, pooling_mode=config.pooling),
    ]
    encoder = assemble([*modules, Normalize()] if normalize else modules)
    encoder.encode(["probe"], show_progress_bar=False)  # the selector refuses what it cannot fuse
    return encoder


def build_plain_encoder(
    backbone: str | Path,
    *,
    pooling: str = "mean",
    max_seq_length: int | None = None,
    normalize: bool = True,
) -> SentenceTransformer:
    """A new encoder without a selector: the backbone's last block, pooled."""
    transformer = load_transformer(str(backbone), attn_implementation=None)
    if max_seq_length is not None:
        transformer.max_seq_length = max_seq_length
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
    attn_implementation: str | None = None,
) -> SentenceTransformer:
    """A new encoder that reads sentences inside ``templates``, on a local folder or a hub id.

    It never ends in Normalize: PromptBERT's loss subtracts vectors that still have their length.
    ``config`` is the untrained selector's, None for none. ``pooling`` names the token that is read,
    or a mode of Pooling over all tokens, the template's included. Sentences are cut at
    ``max_seq_length`` tokens, the template not counted; by default where the backbone's own
    settings say. Raises `TemplateError` for a bad template or a backbone without what it needs, and
    ValueError where the backbone does not fit the selector.
    """
    loaded = load_transformer(str(backbone), attn_implementation=attn_implementation)
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
        require_width(config, width, backbone)
        selector = [S2SentSelector(config)]
    encoder = assemble([transformer, *selector, pool])
    _align(encoder)
    encoder.encode(["probe"], show_progress_bar=False)  # the selector refuses what it cannot fuse
    return encoder


def load_encoder(
    checkpoint: str | Path, *, attn_implementation: str | None = None
) -> SentenceTransformer:
    """Load the encoder that ``encoder.save(checkpoint)`` wrote, with a selector or without.

    None of the checkpoint's code is run: the classes are this project's own. Raises CheckpointError
    for a folder that holds anything but a Transformer or TemplateTransformer, an S2SentSelector or
    none, mean or cls Pooling or TokenPooling and, optionally, Normalize.
    """
    checkpoint = Path(checkpoint)
    entries = read_json(checkpoint / MODULES_FILE)
    classes = [_known_class(checkpoint, entry["type"]) for entry in entries]
    _require_pipeline(checkpoint, classes)
    transformer = load_transformer(
        str(checkpoint),
        kind=classes[0],
        subfolder=entries[0]["path"],
        attn_implementation=attn_implementation,
    )
    others = [
        kind.load(str(checkpoint), subfolder=entry["path"])
        for kind, entry in zip(classes[1:], entries[1:], strict=True)
    ]
    settings = read_json(checkpoint / "config_sentence_transformers.json")
    names = ("prompts", "default_prompt_name", "similarity_fn_name")
    encoder = assemble(
        [transformer, *others], **{name: settings[name] for name in names if name in settings}
    )
    _require_known_pooling(encoder, checkpoint)
    _align(encoder)
    return encoder


def has_template(checkpoint: str | Path) -> bool:
    """Whether a folder is a checkpoint whose sentences are read inside a template."""
    modules = Path(checkpoint) / MODULES_FILE
    return modules.is_file() and "TemplateTransformer" in modules.read_text("utf-8")


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


def pooling_mode(encoder: SentenceTransformer) -> PoolingMode:
    """What one sentence's vector is made of: "mean", "cls", or the "token" that is read."""
    pooling = get_pooling(encoder)
    if isinstance(pooling, TokenPooling):
        return "token"
    return "cls" if pooling.pooling_mode == "cls" else "mean"


def require_width(config: SelectorConfig, width: int, backbone: str | Path) -> None:
    """Raise ValueError unless the selector is as wide as the backbone's hidden states."""
    if width != config.width:
        raise ValueError(
            f"the selector is {config.width} wide but {backbone} is {width}: set width={width}."
        )


def load_transformer(
    source: str,
    *,
    kind: type[Module] = Transformer,
    subfolder: str = "",
    attn_implementation: str | None,
) -> Any:
    """The backbone and its tokenizer, set to return the hidden states of every block."""
    model_kwargs = {"attn_implementation": attn_implementation} if attn_implementation else {}
    return kind.load(
        source,
        subfolder=subfolder,
        model_kwargs=model_kwargs,
        config_kwargs={"output_hidden_states": True},
    )


def assemble(modules: Sequence[nn.Module], **settings: Any) -> SentenceTransformer:
    """The modules as a pipeline, in evaluation mode."""
    # The trainer reloads its best checkpoint with the encoder's own trust: that code is ours.
    encoder: SentenceTransformer = SentenceTransformer(
        modules=modules, trust_remote_code=True, **settings
    )
    encoder.eval()
    return encoder


def _known_class(checkpoint: Path, name: str) -> type[Module]:
    """The class that ``name`` in modules.json means, never imported from the checkpoint."""
    package, _, class_name = name.rpartition(".")
    if name in FORMER_NAMES:
        return FORMER_NAMES[name]
    for kind in (kind for place in PIPELINE for kind in place):
        is_library = kind.__module__.startswith("sentence_transformers.")
        same_package = package == kind.__module__
        if class_name == kind.__name__ and (
            package.startswith("sentence_transformers.") if is_library else same_package
        ):
            return kind
    raise CheckpointError(
        f"{checkpoint} uses the class {name}, which is not part of an encoder here: load it with "
        "sentence-transformers if you trust its code."
    )


def _require_pipeline(checkpoint: Path, classes: Sequence[type[Module]]) -> None:
    """Raise `CheckpointError` unless the modules are those of an encoder, in their order."""
    left = list(classes)
    for kinds in PIPELINE:
        if left and left[0] in kinds:
            left.pop(0)
        elif kinds[0] not in OPTIONAL:
            left = [*classes]
            break
    if left:
        raise CheckpointError(
            f"{checkpoint} holds {', '.join(c.__name__ for c in classes)}: an encoder is "
            "Transformer or TemplateTransformer, S2SentSelector or none, Pooling or TokenPooling "
            "and, optionally, Normalize."
        )


def _require_known_pooling(encoder: SentenceTransformer, checkpoint: Path) -> None:
    pooling = get_pooling(encoder)
    if isinstance(pooling, TokenPooling):
        if (template := find_template(encoder)) is None or template.read is None:
            raise CheckpointError(
                f"{checkpoint} pools the token that a template reads, and has none: "
                "save the encoder again as it was built."
            )
    elif pooling.pooling_mode not in POOLING_MODES or not pooling.include_prompt:
        raise CheckpointError(
            f"{checkpoint} has pooling_mode={pooling.pooling_mode!r} and "
            f"include_prompt={pooling.include_prompt}: an encoder pools all tokens by mean or cls."
        )


def _align(encoder: SentenceTransformer) -> None:
    """Let the selector pool what the pipeline pools; older checkpoints with a template differ."""
    if (selector := find_selector(encoder)) is not None:
        selector.config = replace(selector.config, pooling=pooling_mode(encoder))


def read_json(path: Path) -> Any:
    """The content of a JSON file of a checkpoint; raises `CheckpointError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: pass a folder that encoder.save() wrote."
        ) from error
