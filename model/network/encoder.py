"""The encoder as a sentence-transformers pipeline: backbone, selector or none, pooling."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import Tensor, nn

from model.network.selector import S2SentSelector, SelectorConfig, pool_tokens

PIPELINE = (Transformer, S2SentSelector, Pooling, Normalize)  # S2SentSelector, Normalize optional
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


def load_encoder(
    checkpoint: str | Path, *, attn_implementation: str | None = None
) -> SentenceTransformer:
    """Load the encoder that ``encoder.save(checkpoint)`` wrote, with a selector or without.

    None of the checkpoint's code is run: the selector's class is this project's own. Raises
    CheckpointError for a folder that holds anything but a Transformer, an S2SentSelector or none,
    mean or cls Pooling and, optionally, Normalize.
    """
    checkpoint = Path(checkpoint)
    entries = read_json(checkpoint / MODULES_FILE)
    classes = [_known_class(checkpoint, entry["type"]) for entry in entries]
    in_order = [kind for kind in PIPELINE if kind in classes]
    if classes != in_order or not {Transformer, Pooling} <= set(classes):
        raise CheckpointError(
            f"{checkpoint} holds {', '.join(c.__name__ for c in classes)}: an encoder is "
            "Transformer, S2SentSelector or none, Pooling and, optionally, Normalize."
        )
    transformer = load_transformer(
        str(checkpoint), subfolder=entries[0]["path"], attn_implementation=attn_implementation
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
    _require_known_pooling(get_pooling(encoder), checkpoint)
    return encoder


def find_selector(encoder: SentenceTransformer) -> S2SentSelector | None:
    """The selector of an encoder that this module built or loaded; None where it has none."""
    return next((module for module in encoder if isinstance(module, S2SentSelector)), None)


def get_selector(encoder: SentenceTransformer) -> S2SentSelector:
    """The selector of an encoder that has one; raises TypeError for one that has none."""
    selector = find_selector(encoder)
    if selector is None:
        raise TypeError("the encoder has no S2SentSelector: build it with build_encoder.")
    return selector


def get_pooling(encoder: SentenceTransformer) -> Pooling:
    """The pooling of an encoder that this module built or loaded."""
    pooling: Pooling = next(module for module in encoder if isinstance(module, Pooling))
    return pooling


class PooledEncoder(nn.Module):
    """The encoder as a function of tensors that pools each block before fusing, as it is exported.

    Returns (sentence_embedding [B, D], pooled_embedding [B, D], *blocks [B, L, D]): the pipeline's
    output, the same before normalisation, and the states of the blocks that are pooled, oldest
    first: those that the selector fuses, or the last one without a selector. ``depths`` adds the
    blocks that are pooled when the backbone ends at that depth; ``exits`` has the block numbers by
    depth. Raises CheckpointError for a depth that cannot be an exit.
    """

    def __init__(self, encoder: SentenceTransformer, depths: Collection[int] = ()) -> None:
        super().__init__()
        self.backbone = encoder[0].get_submodule("auto_model")
        self.selector = find_selector(encoder)
        self.pooling_mode = str(get_pooling(encoder).pooling_mode)
        self.normalize = isinstance(encoder[-1], Normalize)
        full = int(cast(Any, self.backbone).config.num_hidden_layers)
        self._check(depths, full)
        self.exits = {depth: self._block_numbers(full, depth) for depth in (*sorted(depths), full)}
        self.blocks = sorted(set().union(*self.exits.values()))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run on int64 inputs [B, L]; ``token_type_ids`` only where the backbone takes them."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        outputs = self.backbone(**inputs, output_hidden_states=True, return_dict=True)
        states = outputs.hidden_states
        if self.selector is None:
            states = (*states[:-1], outputs.last_hidden_state)  # some backbones normalise it
            pooled = pool_tokens(states[-1], attention_mask, self.pooling_mode)
        else:
            pooled = self.selector.pool(self.selector.select_blocks(states), attention_mask)
        sentence = nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled
        return (sentence, pooled, *(states[number] for number in self.blocks))

    def _block_numbers(self, full: int, depth: int) -> range:
        if self.selector is None:
            return range(depth, depth + 1)
        return self.selector.block_numbers(full, depth)

    def _check(self, depths: Collection[int], full: int) -> None:
        least = self.selector.config.num_blocks if self.selector else 1
        for depth in depths:
            if not least <= depth < full:
                raise CheckpointError(
                    f"depth {depth} cannot be an exit: this encoder pools {least} of {full} blocks."
                    f" Choose depths from {least} to {full - 1}."
                )


@contextmanager
def stopped_at(encoder: SentenceTransformer, depth: int) -> Iterator[None]:
    """Within this context ``encoder.encode`` uses only the first ``depth`` blocks of the backbone.

    As sentence-transformers' AdaptiveLayerLoss does in training, the states of block ``depth``
    replace the backbone's token embeddings before selector and pooling.
    """

    def cut(_module: nn.Module, _inputs: object, features: dict[str, Any]) -> dict[str, Any]:
        return features | {"token_embeddings": features["all_layer_embeddings"][depth]}

    hook = encoder[0].register_forward_hook(cut)
    try:
        yield
    finally:
        hook.remove()


def require_width(config: SelectorConfig, width: int, backbone: str | Path) -> None:
    """Raise ValueError unless the selector is as wide as the backbone's hidden states."""
    if width != config.width:
        raise ValueError(
            f"the selector is {config.width} wide but {backbone} is {width}: set width={width}."
        )


def load_transformer(
    source: str,
    *,
    kind: type[Transformer] = Transformer,
    subfolder: str = "",
    attn_implementation: str | None,
) -> Transformer:
    """The backbone and its tokenizer, set to return the hidden states of every block."""
    model_kwargs = {"attn_implementation": attn_implementation} if attn_implementation else {}
    transformer: Transformer = kind.load(
        source,
        subfolder=subfolder,
        model_kwargs=model_kwargs,
        config_kwargs={"output_hidden_states": True},
    )
    return transformer


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
    for kind in PIPELINE:
        is_ours = kind is S2SentSelector and package == S2SentSelector.__module__
        is_library = kind is not S2SentSelector and package.startswith("sentence_transformers.")
        if class_name == kind.__name__ and (is_ours or is_library):
            return kind
    raise CheckpointError(
        f"{checkpoint} uses the class {name}, which is not part of an encoder here: load it with "
        "sentence-transformers if you trust its code."
    )


def _require_known_pooling(pooling: Pooling, checkpoint: Path) -> None:
    if pooling.pooling_mode not in POOLING_MODES or not pooling.include_prompt:
        raise CheckpointError(
            f"{checkpoint} has pooling_mode={pooling.pooling_mode!r} and "
            f"include_prompt={pooling.include_prompt}: an encoder pools all tokens by mean or cls."
        )


def read_json(path: Path) -> Any:
    """The content of a JSON file of a checkpoint; raises `CheckpointError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: pass a folder that encoder.save() wrote."
        ) from error
