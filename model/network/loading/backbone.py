"""Loads a backbone and its tokenizer: no code of the folder is run, and no weight is random."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.module import Module

from s2sent.model.network.loading.backbone_settings import (
    OF_TEMPLATES,
    require_backbone,
    require_blocks,
    require_torch_attention,
)
from s2sent.model.network.loading.checkpoint import CheckpointError, in_one_line
from s2sent.model.network.loading.hub import local_folder
from s2sent.model.network.loading.transformers_5 import readable
from s2sent.model.network.template import TemplateError

POOLER = "pooler"  # no pooling here reads it, and many checkpoints have none
NAMED = 3  # of the weights that are missing
# Whose last block's states transformers 4 gives as the block leaves them; transformers 5 only with
# tie_last_hidden_states = false, and otherwise behind the backbone's last norm.
LAST_BLOCK_UNNORMED = ("modernbert", "roberta-prelayernorm")


def load_transformer(
    source: str | Path,
    *,
    kind: type[Module] = Transformer,
    subfolder: str = "",
) -> Any:
    """The backbone in float32 and its tokenizer, set to return the hidden states of every block.

    ``source`` is a folder or a hub id. Raises `CheckpointError` for settings that would run code
    (`model.network.loading.backbone_settings`) and for weights that the backbone needs and the
    files lack.
    """
    folder = local_folder(source)
    require_backbone(folder / subfolder)
    with loading(folder), readable(str(folder), subfolder) as files:
        transformer = _checked(kind, folder).load(
            files,
            subfolder=subfolder,
            model_kwargs={"dtype": torch.float32, "weights_only": True},
            config_kwargs={"output_hidden_states": True},
        )
    for part in (transformer.auto_model, transformer.auto_model.config, transformer.tokenizer):
        if part is not None:
            part.name_or_path = str(source)
    transformer.__class__ = kind
    return transformer


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Turn what the libraries raise on the files of ``folder`` into a `CheckpointError`."""
    try:
        yield
    except (CheckpointError, TemplateError, MemoryError):
        raise
    except ImportError as error:  # of a tokenizer's library
        raise CheckpointError(
            f"{folder} cannot be loaded, as it needs what is not installed"
            f" ({in_one_line(error)}): install that, or choose another model."
        ) from error
    except UnpicklingError as error:  # whose text tells how to run it all the same
        raise CheckpointError(
            f"{folder} has pickled weights that are damaged or would run code, and are not opened:"
            " fetch it again, or choose a checkpoint with safetensors."
        ) from error
    except Exception as error:  # whatever they raise on files that are not whole
        raise CheckpointError(
            f"{folder} cannot be loaded, as a file is missing or damaged"
            f" ({in_one_line(error)}): copy it again, or train it anew."
        ) from error


def _checked(kind: Any, folder: Path) -> Any:
    """The class ``kind`` of a Transformer, which looks at what transformers makes of the files."""

    class Checked(kind):  # type: ignore[misc]  # a class that is not known before
        @classmethod
        def load_config(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            config: dict[str, Any] = super().load_config(*args, **kwargs)
            without = OF_TEMPLATES if kind is Transformer else ()  # that a recipe leaves out
            return {name: value for name, value in config.items() if name not in without}

        def _load_config(self, *args: Any, **kwargs: Any) -> Any:
            config, is_adapter = super()._load_config(*args, **kwargs)
            require_torch_attention(config)
            require_blocks(config)
            if config.model_type in LAST_BLOCK_UNNORMED:
                config.tie_last_hidden_states = False
            return config, is_adapter

        def _load_model(self, *args: Any, **kwargs: Any) -> Any:
            with _without_warnings():  # of what `require_weights` says in one sentence
                model, report = super()._load_model(*args, output_loading_info=True, **kwargs)
            require_weights(folder, report)
            return model

    return Checked


@contextmanager
def _without_warnings() -> Iterator[None]:
    log = logging.getLogger("transformers")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def require_weights(source: object, report: Mapping[str, Iterable[Any]]) -> None:
    """Raise `CheckpointError` for weights that transformers' loading report calls missing.

    The library fills them with random numbers. A pooler may be missing, and weights of a head,
    which no encoder has, may be there.
    """
    missing = sorted(name for name in report["missing_keys"] if POOLER not in name.split("."))
    if not missing:
        return
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    raise CheckpointError(
        f"{source} lacks the weights {', '.join(missing[:NAMED])}{more}, which would be random:"
        f" name them as transformers does{_instead(report)}, or choose a whole checkpoint."
    )


def _instead(report: Mapping[str, Iterable[Any]]) -> str:
    """A weight of the files that no part of the model has taken, as a hint at a wrong prefix."""
    surplus = sorted(report["unexpected_keys"])
    return f" (the files have {surplus[0]})" if surplus else ""
