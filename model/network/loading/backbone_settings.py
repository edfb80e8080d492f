"""What the configuration of a backbone may say: nothing in it runs code or names another file.

Keys of sentence-transformers' settings become arguments of transformers, some of which run code
(``weights_only``, ``trust_remote_code``) or open other files. Those on a short list are taken;
every other one is refused by its name. An attention kernel that a configuration names would be
fetched from a hub and run (CVE-2026-4372).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers import __version__ as TRANSFORMERS

from s2sent.model.network.loading.checkpoint import (
    ADAPTER_FILE,
    CheckpointError,
    adapter_alone,
    first_line,
    read_object,
)

# The settings of a Transformer; sentence-transformers reads the first of these files that is there.
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SETTINGS_FILES = tuple(f"sentence_{kind}_config.json" for kind in _KINDS)

ATTENTIONS = (None, "eager", "sdpa")  # torch's own
ATTENTION_FIELDS = ("_attn_implementation", "attn_implementation")
INTERNAL_FIELD = "_attn_implementation_internal"  # which transformers saves in no configuration
RENAMES = "attribute_map"  # of fields of a configuration, likewise
MOST_BLOCKS = 1_000  # ten times those of the largest models
QUANTIZATION_FIELDS = ("quantization_config", "compression_config")
# Of a configuration: names of weights that are not the folder's own.
OTHER_WEIGHTS = ("transformers_weights", "use_pretrained_backbone", "use_timm_backbone")
# Of a tokenizer: what no class is given, and what is looked at where it is not empty.
NOT_READ = ("special_tokens_map_file", "added_tokens_file")
OF_OTHER_FILES = ("_file", "_kwargs", "init_inputs")  # ends of names

# What a setting may be: of a type, one of some values, a table with such settings, or anything that
# whoever reads it checks.
ANYTHING = object()
PRECISIONS = ("auto", "float32", "float16", "bfloat16")
SIDES = ("left", "right")
NO_CODE = {"trust_remote_code": (False,)}
OF_MODEL: dict[str, Any] = NO_CODE | {
    "attn_implementation": ATTENTIONS,
    "dtype": PRECISIONS,
    "torch_dtype": PRECISIONS,
    "use_safetensors": (None, True),
    "weights_only": (True,),
}
OF_TOKENIZER: dict[str, Any] = NO_CODE | {
    "model_max_length": int,
    "padding_side": SIDES,
    "truncation_side": SIDES,
    "use_fast": bool,
}
OF_TEXTS: dict[str, Any] = {
    "method": ("forward",),
    "method_output_name": ("last_hidden_state",),
    "format": ("auto", "structured", "flat"),  # of messages, where there is a chat template
}
OF_TEMPLATES = ("templates", "read", "clean_up")  # of a TemplateTransformer
ALLOWED: dict[str, Any] = {
    "do_lower_case": bool,
    "max_seq_length": ANYTHING,
    "modality_config": {"text": OF_TEXTS, "message": OF_TEXTS},
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": (None, {}),
    "tokenizer_name_or_path": (None,),
    "transformer_task": ("feature-extraction",),
    "unpad_inputs": (None, False, True),
    **dict.fromkeys(("model_kwargs", "model_args"), OF_MODEL),
    **dict.fromkeys(("processor_kwargs", "tokenizer_args"), OF_TOKENIZER),
    **dict.fromkeys(("config_kwargs", "config_args"), NO_CODE),
    **dict.fromkeys(OF_TEMPLATES, ANYTHING),
}


def require_backbone(folder: Path) -> None:
    """Raise `CheckpointError` unless ``folder`` holds a backbone that loads without foreign code.

    Its JSON files are read, and nothing of it is loaded.
    """
    if (folder / ADAPTER_FILE).is_file():
        raise adapter_alone(folder)
    config = read_object(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        brings = " and brings code of its own, which is never run" if "auto_map" in config else ""
        saved = f" ({at} saved it)" if (at := config.get("transformers_version")) else ""
        raise CheckpointError(
            f"{folder} is a model of the type {kind!r}, which transformers {TRANSFORMERS} does not "
            f"know{saved}{brings}: choose a model that loads without trust_remote_code."
        )
    refuse_kernels(folder / "config.json")
    _refuse_quantized(folder, config)
    _refuse_other_files(folder, config)
    for path in (folder / name for name in SETTINGS_FILES):
        if path.is_file():
            refuse_kernels(path)
            _require_allowed(path)


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration of the backbone in ``folder``; raises as `require_backbone` does."""
    require_backbone(folder)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever the library raises on values that do not fit together
        raise CheckpointError(
            f"{folder / 'config.json'} cannot be used ({first_line(error)}): copy it again."
        ) from error
    require_torch_attention(config)
    return config


def require_torch_attention(config: Any) -> None:
    """Raise `CheckpointError` where transformers has read the name of a kernel after all."""
    if not isinstance(config, PretrainedConfig):
        return
    if (name := config._attn_implementation) not in ATTENTIONS:
        raise _names_kernel(config.name_or_path, ATTENTION_FIELDS[0], name)
    for value in vars(config).values():
        require_torch_attention(value)


def require_blocks(config: Any) -> None:
    """Raise `CheckpointError` for so many blocks that making them would take hours and all memory.

    The library makes each of them before it looks at the weights.
    """
    blocks = getattr(config, "num_hidden_layers", None)
    if isinstance(blocks, int) and blocks > MOST_BLOCKS:
        raise CheckpointError(
            f"{config.name_or_path} names {blocks} blocks, and at most {MOST_BLOCKS} are made:"
            " correct num_hidden_layers in config.json, or choose another model."
        )


def refuse_kernels(path: Path) -> None:
    """Raise `CheckpointError` for a JSON file that names an attention other than torch's own."""
    for field, value in _fields(_content(path)):
        names = value.values() if isinstance(value, dict) else [value]
        named = field in ATTENTION_FIELDS and any(name not in ATTENTIONS for name in names)
        if named or field in (INTERNAL_FIELD, RENAMES):
            raise _names_kernel(path, field, value)


def _names_kernel(place: object, field: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"{place} has {field} = {_short(value)}, which makes transformers run code: remove the"
        " field, or use another checkpoint."
    )


def _refuse_quantized(folder: Path, config: Mapping[str, Any]) -> None:
    for field, value in _fields(config):
        if field in QUANTIZATION_FIELDS and value is not None:
            method = value.get("quant_method") if isinstance(value, dict) else None
            raise CheckpointError(
                f"{folder} is quantized ({method or field}), and is neither trained nor exported"
                " so: choose the model in full precision."
            )


def _refuse_other_files(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse settings that let a model or a tokenizer read what is not in its folder."""
    for field, value in _fields(config):
        if field in OTHER_WEIGHTS and value:
            raise _not_allowed(folder / "config.json", field, value)
    settings = _content(folder / "tokenizer_config.json")
    for field, value in settings.items() if isinstance(settings, dict) else ():
        if value and field.endswith(OF_OTHER_FILES) and field not in NOT_READ:
            raise _not_allowed(folder / "tokenizer_config.json", field, value)
        if field == "model_input_names" and not _are_names(value):
            raise CheckpointError(
                f"{folder / 'tokenizer_config.json'} has {field} = {_short(value)}, which is no"
                " list of names: correct it."
            )
    if (folder / "processor_config.json").is_file():
        raise CheckpointError(
            f"{folder / 'processor_config.json'} is of a model that also reads other media, and an"
            " encoder here reads texts: choose another model."
        )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _not_allowed(path: Path, name: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"{path} has {name} = {_short(value)}, which a checkpoint may not tell the libraries that"
        " load it: remove it, or choose another model."
    )


def _require_allowed(path: Path) -> None:
    settings = _content(path)
    if settings is not None and not isinstance(settings, dict):
        raise CheckpointError(f"{path} holds no JSON object: copy it again.")
    for name, value in _refused(settings or {}, ALLOWED):
        raise _not_allowed(path, name, value)


def _refused(settings: Mapping[str, Any], allowed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that are not allowed, with the names that lead to them."""
    for name, value in settings.items():
        rule = allowed.get(name, ())
        if isinstance(rule, dict) and isinstance(value, dict):
            yield from ((f"{name}.{inner}", of) for inner, of in _refused(value, rule))
        elif not _fits(value, rule):
            yield name, value


def _fits(value: Any, rule: Any) -> bool:
    if isinstance(rule, type):
        return type(value) is rule
    if isinstance(rule, tuple):
        return any(value == each and type(value) is type(each) for each in rule)
    return rule is ANYTHING


def _content(path: Path) -> Any:
    """What a JSON file holds; None for one that cannot be read, as whoever loads it will say."""
    with suppress(ValueError, OSError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _fields(content: Any) -> Iterator[tuple[str, Any]]:
    """The keys and values of every object in what a JSON file holds, at any depth."""
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from value.items()
        left += (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
