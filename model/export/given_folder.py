"""What a sentence-transformers folder says of its encoder, read without torch: settings, graph."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from s2sent.model.artifact.graph_policy import GraphRefused, check_graph
from s2sent.model.artifact.manifest import CONFIG, MODEL, TOKENIZER

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATE_OUTPUTS = ("last_hidden_state", "token_embeddings")  # as optimum names them

LONGEST = 4096  # tokens that are read where only the positions bound them
EXPORT = "install torch with `make train` and export the checkpoint with s2sent-train export"
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
STATIC = "StaticEmbedding"
_PIPELINES = (
    ["Transformer", "Pooling"],
    ["Transformer", "Pooling", "Normalize"],
    [STATIC],
    [STATIC, "Normalize"],
)


class GivenGraphError(Exception):
    """A folder whose graph cannot be served as it is; the message says why and what to do."""


@dataclass(frozen=True)
class GivenEncoder:
    """What a folder's settings say of its encoder."""

    folder: Path
    config: dict[str, Any]
    pooling: str
    normalize: bool
    max_seq_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    tokenizer: bytes
    is_static: bool = False
    pools_prompts: bool = True


def read_encoder(folder: Path) -> GivenEncoder:
    """The settings of a sentence-transformers folder; raises `GivenGraphError` for other encoders.

    Transformer, Pooling by mean or the first token, and Normalize are served, and StaticEmbedding;
    other modules need torch's export.
    """
    modules = _read(folder / "modules.json", missing=None)
    if modules is None:
        raise GivenGraphError(
            f"{folder} has no modules.json, so it does not say how tokens are pooled: add one, or"
            " choose a sentence-transformers model."
        )
    try:
        paths = {each["type"].rpartition(".")[2]: each["path"] for each in modules}
    except (TypeError, KeyError, AttributeError):
        raise GivenGraphError(
            f"{folder}/modules.json is no list of modules: fetch the model again."
        ) from None
    if [*paths] not in _PIPELINES:
        raise GivenGraphError(
            f"{folder} holds {', '.join(paths)}, and without torch only Transformer, Pooling,"
            f" Normalize and {STATIC} are read: {EXPORT}."
        )
    settings = _read(folder / "config_sentence_transformers.json", missing={})
    prompts = {key: text or "" for key, text in (settings.get("prompts") or {}).items()}
    is_static = STATIC in paths
    place = folder / paths[STATIC] if is_static else folder
    config = {} if is_static else _read_config(folder)
    pooling, pools_prompts = ("mean", True) if is_static else _pooling(folder / paths["Pooling"])
    return GivenEncoder(
        folder=place,
        config=config,
        pooling=pooling,
        normalize="Normalize" in paths,
        max_seq_length=LONGEST if is_static else _max_seq_length(folder, config),
        prompts=prompts if any(prompts.values()) else {},
        default_prompt_name=settings.get("default_prompt_name") if any(prompts.values()) else None,
        tokenizer=_tokenizer(place),
        is_static=is_static,
        pools_prompts=pools_prompts or not any(prompts.values()),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """The backbone's settings; raises `GivenGraphError` where they lack what a graph needs."""
    config = _read(folder / CONFIG)
    sizes = (("hidden_size", "dim"), ("num_hidden_layers", "n_layers"))
    needed = [("model_type",), *sizes, ("num_attention_heads", "n_heads")]
    missing = [names[0] for names in needed if not any(config.get(name) for name in names)]
    if missing:
        raise GivenGraphError(f"{folder / CONFIG} does not say {', '.join(missing)}: {EXPORT}.")
    found: dict[str, Any] = config
    return found


def _pooling(folder: Path) -> tuple[str, bool]:
    """How tokens are pooled, and whether a prompt's are."""
    settings = _read(folder / "config.json")
    if "pooling_mode" in settings:
        modes = [str(settings["pooling_mode"])]
    else:
        flags = (key for key, value in settings.items() if value is True and "mode" in key)
        modes = [POOLINGS.get(flag, flag) for flag in flags]
    if len(modes) != 1 or modes[0] not in POOLINGS.values():
        raise GivenGraphError(
            f"{folder} pools by {', '.join(modes) or 'nothing'}, and without torch only by mean and"
            f" cls can be served: {EXPORT}."
        )
    return modes[0], settings.get("include_prompt") is not False


def _max_seq_length(folder: Path, config: dict[str, Any]) -> int:
    """Tokens that are read: of the settings, the tokenizer and the rows of the position table."""
    settings = _read(folder / "sentence_bert_config.json", missing={})
    if settings.get("do_lower_case"):
        raise GivenGraphError(f"{folder} lower-cases texts before its tokenizer: {EXPORT}.")
    tokenizer = _read(folder / "tokenizer_config.json", missing={})
    positions = config.get("max_position_embeddings") or LONGEST
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= int(config.get("pad_token_id") or 0) + 1  # positions begin behind its row
    said = (settings.get("max_seq_length"), tokenizer.get("model_max_length"), positions)
    return min(int(number) for number in said if isinstance(number, int | float) and number > 0)


def _tokenizer(folder: Path) -> bytes:
    path = folder / TOKENIZER
    if not path.is_file():
        raise GivenGraphError(f"{folder} has no {TOKENIZER}, which serving needs: {EXPORT}.")
    return path.read_bytes()


def _read(path: Path, **default: Any) -> Any:
    """The content of a JSON file; ``missing`` is that of a file that is not there."""
    if "missing" in default and not path.is_file():
        return default["missing"]
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if path.name != "modules.json" and not isinstance(content, dict):
            raise ValueError("it holds no object")
        return content
    except (OSError, ValueError) as error:
        raise GivenGraphError(f"{path} cannot be read ({error}): fetch the model again.") from error


def read_graph(folder: Path) -> onnx.ModelProto:
    """The graph with its weights; one that does more than compute is refused before it is run."""
    path = folder / MODEL
    try:
        check_graph(path.read_bytes(), weights_apart=True)
        model = onnx.load(path)
    except (OSError, ValueError, GraphRefused, onnx.checker.ValidationError) as error:
        raise GivenGraphError(f"{path} cannot be served ({error}): {EXPORT}.") from error
    names = {value.name for value in model.graph.input}
    weights = {tensor.name for tensor in model.graph.initializer}
    if not {*INPUTS[:2]} <= names <= {*INPUTS, *weights}:
        raise GivenGraphError(
            f"{path} reads {', '.join(sorted(names - weights))}, and a graph here reads"
            f" {', '.join(INPUTS[:2])} and perhaps {INPUTS[2]}: {EXPORT}."
        )
    kept = [value for value in model.graph.input if value.name not in weights]
    for value in kept:
        fixed = [axis.dim_value for axis in value.type.tensor_type.shape.dim if axis.dim_value]
        if value.type.tensor_type.elem_type != TensorProto.INT64 or fixed:
            raise GivenGraphError(f"{path} has an input of fixed size or not int64: {EXPORT}.")
    del model.graph.input[:]
    model.graph.input.extend(sorted(kept, key=lambda value: INPUTS.index(value.name)))
    return model


def states_of(model: onnx.ModelProto) -> str:
    """The output that has the states of all tokens."""
    outputs = {value.name: value for value in model.graph.output}
    named = [name for name in STATE_OUTPUTS if name in outputs]
    ranks = [name for name, each in outputs.items() if len(each.type.tensor_type.shape.dim) == 3]
    if not named and len(ranks) != 1:
        raise GivenGraphError(
            f"the graph gives {', '.join(outputs)}, none of which is last_hidden_state: {EXPORT}."
        )
    return (named or ranks)[0]
