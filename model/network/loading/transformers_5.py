"""Folders that transformers 5 saved, with the settings that transformers 4 reads instead.

transformers 4 ignores what it does not know, so that a model would run with other rotary positions
than it was trained with. What has no equal there is refused.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from s2sent.model.network.loading.bare import settings_in
from s2sent.model.network.loading.checkpoint import CheckpointError

IS_4 = transformers.__version__.partition(".")[0] == "4"  # the release that runs here
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer_config.json"
LOCAL_THETA = {  # where a family keeps the base of its blocks that see a window only
    "gemma3_text": "rope_local_base_freq",
    "gemma3n_text": "rope_local_base_freq",
    "modernbert": "local_rope_theta",
    "modernbert-decoder": "local_rope_theta",
}
SCALED_BY_ATTRIBUTE = ("mistral", "gemma", "gemma2")  # they read rope_scaling without declaring it

Settings = dict[str, Any]


@contextmanager
def readable(source: str, subfolder: str = "") -> Iterator[str]:
    """A folder with the content of ``source``, a folder too, that transformers 4 reads.

    It is ``source`` itself unless a setting has to be translated; then it has links to the other
    files and exists within this context. Raises `CheckpointError` for a setting without an equal.
    """
    folder = Path(source, subfolder)
    files = ((CONFIG_FILE, _translated), (TOKENIZER_FILE, _tokenizer)) if IS_4 else ()
    changed = {
        name: new
        for name, translate in files
        if (old := settings_in(folder / name)) and (new := translate(old, folder)) != old
    }
    if not changed:
        yield source
        return
    with TemporaryDirectory() as scratch:
        linked = Path(scratch, subfolder)
        linked.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name not in changed:
                (linked / path.name).symlink_to(path.resolve())
        for name, settings in changed.items():
            (linked / name).write_text(json.dumps(settings), encoding="utf-8")
        yield scratch


def _translated(config: Settings, folder: Path) -> Settings:
    """The configuration of a backbone, and of the parts that it names, as transformers 4 has it."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return config
    known = inspect.signature(CONFIG_MAPPING[kind].__init__).parameters
    _require_direction(config, known, folder)
    parts = {
        name: _translated(part, folder)
        for name, part in config.items()
        if isinstance(part, dict) and "model_type" in part
    }
    made = {**config, **parts}
    if "layer_types" in made and kind.startswith("modernbert") and "layer_types" not in known:
        made["global_attn_every_n_layers"] = _period(made.pop("layer_types") or [], folder)
    if rope := made.pop("rope_parameters", None):
        # Where both are there, as in transformers 5.
        made |= _rotary(made.get("rope_scaling") or rope, made, known, folder)
    return made


def _require_direction(config: Settings, known: Mapping[str, Any], folder: Path) -> None:
    """Raise `CheckpointError` for a decoder that sees both sides under transformers 5 alone."""
    kind = config["model_type"]
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    decodes = decodes and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    both_ways = decodes and config.get("is_causal") is False
    field = "use_bidirectional_attention"
    if both_ways or (config.get(field) and field not in known):
        name = "is_causal = false" if both_ways else f"{field} = true"
        raise _refusal(folder, f"lets a {kind} see both sides ({name})")


def _rotary(rope: Settings, config: Settings, known: Mapping[str, Any], folder: Path) -> Settings:
    """The settings of rotary positions, of ``rope_parameters`` for all blocks or by their kind."""
    kind = config["model_type"]
    by_kind = {name: part for name, part in rope.items() if isinstance(part, dict)}
    if not by_kind:
        return _of_all_blocks(rope, config, known, folder)
    whole, local = by_kind.get("full_attention"), by_kind.get("sliding_attention")
    if kind not in LOCAL_THETA:
        if len({json.dumps(part, sort_keys=True) for part in by_kind.values()}) > 1:
            raise _refusal(folder, f"gives the blocks of a {kind} different rotary positions")
        return _of_all_blocks(next(iter(by_kind.values())), config, known, folder)
    made = _of_all_blocks(whole, config, known, folder) if whole else {}
    if local and (
        local.get("rope_type", "default") != "default"
        or (kind.startswith("modernbert") and made.get("rope_scaling"))
    ):
        raise _refusal(folder, f"scales the rotary positions of a {kind}'s local blocks")
    if local and "rope_theta" in local:
        made[LOCAL_THETA[kind]] = local["rope_theta"]
    return made


def _of_all_blocks(
    rope: Settings, config: Settings, known: Mapping[str, Any], folder: Path
) -> Settings:
    """The base, the rotated share and the scaling of ``rope``, under the family's own names."""
    kind = config["model_type"]
    scaling = {name: value for name, value in rope.items() if value is not None}
    values = {
        ("global_rope_theta", "rotary_emb_base", "rope_theta"): scaling.pop("rope_theta", None),
        ("rotary_pct", "partial_rotary_factor"): scaling.pop("partial_rotary_factor", None),
    }
    made = {}
    for names, value in values.items():
        if value is not None:
            name = next((name for name in names if name in known), None)
            if name is None:
                raise _refusal(folder, f"has the {names[-1]} {value} for a {kind}")
            made[name] = value
    scaling["rope_type"] = form = scaling.get("rope_type") or scaling.pop("type", "default")
    if form == "default":
        return made | {"rope_scaling": None}
    declared = "rope_scaling" in known or kind in SCALED_BY_ATTRIBUTE
    if not declared or form not in ROPE_INIT_FUNCTIONS:
        raise _refusal(folder, f"scales the rotary positions of a {kind} (rope_type {form!r})")
    return made | _scaled(scaling, config, folder)


def _scaled(scaling: Settings, config: Settings, folder: Path) -> Settings:
    """``rope_scaling``, with the lengths where transformers 4 looks for them."""
    form, longest = scaling["rope_type"], config.get("max_position_embeddings")
    if form not in ("llama3", "yarn", "longrope"):
        return {"rope_scaling": scaling}
    name = "original_max_position_embeddings"
    original = config.get(name) or scaling.pop(name, None) or longest
    ratio = longest / original if longest and original else None
    if form != "longrope":
        return {"rope_scaling": {"factor": ratio, **scaling, name: original}}
    factor = scaling.pop("factor", ratio)
    if factor != ratio and "attention_factor" not in scaling:
        raise _refusal(folder, f"has a longrope factor of {factor} for {longest} of {original}")
    scaling["type"] = scaling.pop("rope_type")  # Phi-3 takes no other name
    scaling.pop(name, None)
    return {"rope_scaling": scaling, name: original}


def _period(layer_types: Sequence[str], folder: Path) -> int:
    """Every how many blocks, from the first on, one sees whole texts."""
    whole = [kind == "full_attention" for kind in layer_types]
    for period in range(1, len(whole) + 1):
        if whole == [number % period == 0 for number in range(len(whole))]:
            return period
    raise _refusal(folder, "has blocks that see whole texts at uneven places (layer_types)")


def _tokenizer(settings: Settings, folder: Path) -> Settings:
    """The tokenizer's settings as transformers 4 has them."""
    made = dict(settings)
    if isinstance(made.get("extra_special_tokens"), list):
        made.setdefault("additional_special_tokens", made.pop("extra_special_tokens"))
    if named := made.pop("model_specific_special_tokens", None):
        made["extra_special_tokens"] = named
    if "auto_map" in made or not (folder / "tokenizer.json").is_file():
        return made
    classes = [
        tokenizer_class_from_name(f"{made.get('tokenizer_class')}{end}") for end in ("Fast", "")
    ]
    known = next(filter(None, classes), None)
    if made.pop("backend", None) or (known is None and "tokenizer_class" in made):
        # transformers 4 would put other special tokens around a text of Llama's or Gemma's class.
        made["tokenizer_class"] = "PreTrainedTokenizerFast"
        names = known.model_input_names if known else ["input_ids", "attention_mask"]
        made.setdefault("model_input_names", names)
    return made


def _refusal(folder: Path, does: str) -> CheckpointError:
    return CheckpointError(
        f"{folder / CONFIG_FILE} {does}, which transformers {transformers.__version__} cannot do:"
        " choose another model, or one that transformers 4 saved."
    )
