"""What a checkpoint's folder may hold: the modules of an encoder, none of whose code is run.

Transformer | TemplateTransformer -> S2SentSelector | none -> Pooling | TokenPooling
    -> any number of Dense, LayerNorm, Normalize
"""

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import LayerNorm, Normalize, Pooling
from torch.nn.modules import activation

from s2sent.model.artifact.errors import RESTORE, UserError
from s2sent.model.artifact.manifest import MANIFEST
from s2sent.model.network.loading.bare import MODULES_FILE, told_of_bare
from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.transformer import TemplateTransformer, TokenPooling

BACKBONES: tuple[type[Module], ...] = (Transformer, TemplateTransformer)
POOLINGS: tuple[type[Module], ...] = (Pooling, TokenPooling)
HEAD: tuple[type[Module], ...] = (Dense, LayerNorm, Normalize)  # behind the pooling
KNOWN: tuple[type[Module], ...] = (*BACKBONES, S2SentSelector, *POOLINGS, *HEAD)
SETTINGS_FILE = "config_sentence_transformers.json"  # older checkpoints have none
SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name")
ADAPTER_FILE = "adapter_config.json"  # of peft
ACTIVATIONS = (  # of a Dense, by what sentence-transformers calls them
    "torch.nn.modules.linear.Identity",
    *(f"{activation.__name__}.{name}" for name in activation.__all__),
)
LONGEST = 240  # of a library's error
WITH_ARGUMENTS = ("MultiheadAttention", "Threshold")  # which no configuration gives


class CheckpointError(UserError, ValueError):
    """A folder that is not a checkpoint of an encoder this project can train, export or serve."""


def read_modules(checkpoint: Path) -> list[tuple[type[Module], str]]:
    """The class and subfolder of each module; raises `CheckpointError` for other than an encoder's.

    What would need code of the checkpoint is refused here, before anything is loaded.
    """
    if not (checkpoint / MODULES_FILE).is_file():
        if (checkpoint / ADAPTER_FILE).is_file():
            raise adapter_alone(checkpoint)
        if (checkpoint / MANIFEST).is_file():
            raise CheckpointError(f"{checkpoint} is an artifact. {RESTORE}")
        if told := told_of_bare(checkpoint):
            raise CheckpointError(told)
    modules = [(_known_class(checkpoint, name), path) for name, path in module_entries(checkpoint)]
    _require_pipeline(checkpoint, [kind for kind, _ in modules])
    for kind, path in modules[1:]:
        if kind not in (Normalize, S2SentSelector):
            settings = read_object(checkpoint / path / "config.json")
            if kind is Dense:
                _require_plain_dense(checkpoint / path, settings)
    return modules


def module_entries(checkpoint: Path) -> list[tuple[str, str]]:
    """The class's name and the subfolder of each module; raises `CheckpointError`."""
    match read_json(checkpoint / MODULES_FILE):
        case [_, *_] as entries if all(map(_is_module, entries)):
            for entry in entries:
                _require_inside(checkpoint, entry["path"])
            return [(entry["type"], entry["path"]) for entry in entries]
        case _:
            raise CheckpointError(
                f"{checkpoint / MODULES_FILE} is no list of modules with type and path: pass a "
                "folder that encoder.save() wrote."
            )


def has_selector(checkpoint: str | Path) -> bool:
    """Whether a folder is a checkpoint with a selector."""
    return names_module(checkpoint, S2SentSelector)


def names_module(checkpoint: str | Path, kind: type[Module]) -> bool:
    """Whether modules.json names a class like ``kind``, wherever it is said to come from."""
    modules = Path(checkpoint) / MODULES_FILE
    return modules.is_file() and f'.{kind.__name__}"' in modules.read_text("utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file of a checkpoint; raises `CheckpointError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read: pass a folder that encoder.save() wrote."
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint; raises `CheckpointError`."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object: copy it again.")
    return content


def read_settings(checkpoint: Path) -> dict[str, Any]:
    """The prompts and the similarity of a checkpoint; raises `CheckpointError`."""
    path = checkpoint / SETTINGS_FILE
    if not path.is_file():
        return {}
    settings = read_object(path)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p or "", str) for p in prompts.values()):
        raise CheckpointError(f"{path} has prompts that are no texts by their names: correct them.")
    found = {name: settings[name] for name in SETTINGS if name in settings}
    return found | {"prompts": prompts}


def require_length(checkpoint: Path, transformer: Any) -> None:
    """Raise `CheckpointError` for a ``max_seq_length`` that is no number of tokens."""
    limit = transformer.max_seq_length
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise CheckpointError(
            f"{checkpoint} has the max_seq_length {limit!r}, and it must be a whole number above 0:"
            " correct it in sentence_bert_config.json."
        )


def first_line(error: Exception) -> str:
    """What a library's error says, without a full stop at its end."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def in_one_line(error: Exception) -> str:
    """All that a library's error says, as far as `LONGEST` characters go."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def require_matching_tokenizer(checkpoint: Path, transformer: Any) -> None:
    """Raise `CheckpointError` unless the tokenizer is a fast one that fits the embedding table."""
    tokenizer = transformer.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        raise CheckpointError(
            f"{checkpoint} has no fast tokenizer, which serving needs: convert its tokenizer to a "
            "tokenizer.json with transformers, or choose a model that has one."
        )
    _require_taken_inputs(checkpoint, transformer)
    ids = max(tokenizer.get_vocab().values()) + 1
    try:
        rows = len(transformer.auto_model.get_input_embeddings().weight)
    except (NotImplementedError, AttributeError):  # such as of CANINE, which hashes characters
        raise CheckpointError(
            f"{checkpoint} is a {transformer.config.model_type}, which has no table of embeddings "
            "by token: choose a model that has one."
        ) from None
    if ids > rows:
        raise CheckpointError(
            f"{checkpoint} has a tokenizer of {ids} ids and an embedding table of {rows} rows: take"
            " both from one model, or train it after resize_token_embeddings."
        )


def _require_taken_inputs(checkpoint: Path, transformer: Any) -> None:
    """Raise `CheckpointError` for a tokenizer that makes what the backbone does not take."""
    taken = inspect.signature(transformer.auto_model.forward).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return
    if other := [n for n in transformer.tokenizer.model_input_names if n not in taken]:
        kind = transformer.config.model_type
        raise CheckpointError(
            f"{checkpoint} has a tokenizer that makes {' and '.join(other)}, which a {kind} does "
            "not take: correct model_input_names in tokenizer_config.json, or choose another model."
        )


def _is_module(entry: Any) -> bool:
    """Whether an entry of modules.json names a class and a subfolder."""
    return isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in ("type", "path"))


def _require_inside(checkpoint: Path, path: str) -> None:
    """Raise `CheckpointError` for a module whose files are not the checkpoint's own."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise CheckpointError(
            f"{checkpoint / MODULES_FILE} has a module in {path}, which is not in the folder: "
            "pass a folder that encoder.save() wrote."
        )


def _known_class(checkpoint: Path, name: str) -> type[Module]:
    """The class that ``name`` in modules.json means, never imported from the checkpoint."""
    package, _, class_name = name.rpartition(".")
    for kind in KNOWN:
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
    for kinds in (BACKBONES, (S2SentSelector,), POOLINGS):
        if left and left[0] in kinds:
            left.pop(0)
        elif S2SentSelector not in kinds:
            left = [Transformer]  # what may not stand behind
            break
    if not {*left} <= {*HEAD}:
        raise CheckpointError(
            f"{checkpoint} holds {', '.join(c.__name__ for c in classes)}: an encoder is "
            "Transformer or TemplateTransformer, S2SentSelector or none, Pooling or TokenPooling "
            "and any of Dense, LayerNorm and Normalize."
        )


def adapter_alone(folder: Path) -> CheckpointError:
    """The error for a folder with an adapter in place of a model."""
    return CheckpointError(
        f"{folder} holds an adapter ({ADAPTER_FILE}), not a whole model: join it with its base by "
        "merge_and_unload() and save that."
    )


def _require_plain_dense(folder: Path, settings: dict[str, Any]) -> None:
    """Raise `CheckpointError` for a Dense of tokens, or with a function that is not torch's."""
    name = settings.get("activation_function", ACTIVATIONS[0])
    if name not in ACTIVATIONS or str(name).endswith(WITH_ARGUMENTS):
        raise CheckpointError(
            f"{folder} has the activation_function {name}, which is none of torch.nn's and is"
            " never run: load it with sentence-transformers if you trust its code."
        )
    names = {
        str(settings.get(f"module_{end}_name") or "sentence_embedding")
        for end in ("input", "output")
    }
    if names != {"sentence_embedding"}:
        raise CheckpointError(
            f"{folder} is a Dense from or to {', '.join(sorted(names - {'sentence_embedding'}))}: "
            "only one of sentence embeddings, behind the pooling, can be exported."
        )
