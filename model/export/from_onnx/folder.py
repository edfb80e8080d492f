"""What a sentence-transformers folder says of its encoder, read without torch: settings, graph."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import onnx
from onnx import TensorProto
from pydantic import AliasChoices, BaseModel, Field, TypeAdapter, ValidationError

from s2sent.model.artifact.graph_policy import GraphRefused, check_graph
from s2sent.model.artifact.manifest import CONFIG, MODEL, TOKENIZER
from s2sent.model.export.companions import POOLING_FLAGS
from s2sent.model.export.nodes import refill

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATE_OUTPUTS = ("last_hidden_state", "token_embeddings")  # as optimum names them

LONGEST = 4096  # tokens that are read where only the positions bound them
EXPORT = "install torch with `make train` and export the checkpoint with s2sent-train export"
STATIC = "StaticEmbedding"
PROMPTS = "config_sentence_transformers.json"
_PIPELINES = (
    ["Transformer", "Pooling"],
    ["Transformer", "Pooling", "Normalize"],
    [STATIC],
    [STATIC, "Normalize"],
)


class GivenGraphError(Exception):
    """A folder whose graph cannot be served as it is; the message says why and what to do."""


Content = TypeVar("Content")
Size = Annotated[int, Field(gt=0, lt=2**31)]


class Backbone(BaseModel, strict=True, protected_namespaces=()):
    """What is read of a config.json; DistilBERT's names for the sizes are others."""

    model_type: str
    hidden_size: Size = Field(validation_alias=AliasChoices("hidden_size", "dim"))
    num_blocks: Size = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layers"))
    num_heads: Size = Field(validation_alias=AliasChoices("num_attention_heads", "n_heads"))
    max_position_embeddings: Size | None = None
    pad_token_id: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class _Module(BaseModel, strict=True):
    type: str
    path: Annotated[str, Field(pattern=r"^(\w[\w.-]*)?$")]


class _Prompts(BaseModel, strict=True):
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


class _Texts(BaseModel, strict=True):
    max_seq_length: Size | None = None
    do_lower_case: bool | None = None


class _Lengths(BaseModel, strict=True):
    model_max_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class GivenEncoder:
    """What a folder's settings say of its encoder; a static table has no backbone."""

    folder: Path
    backbone: Backbone | None
    pooling: str
    normalize: bool
    max_seq_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    tokenizer: bytes
    pools_prompts: bool


def read_encoder(folder: Path) -> GivenEncoder:
    """The settings of a sentence-transformers folder; raises `GivenGraphError` for other encoders.

    Transformer, Pooling by mean or the first token, and Normalize are served, and StaticEmbedding;
    other modules need torch's export.
    """
    if not (folder / "modules.json").is_file():
        raise GivenGraphError(
            f"{folder} has no modules.json, so it does not say how tokens are pooled: add one, or"
            " choose a sentence-transformers model."
        )
    modules = _read(folder / "modules.json", list[_Module])
    paths = {each.type.rpartition(".")[2]: each.path for each in modules}
    if [*paths] not in _PIPELINES:
        raise GivenGraphError(
            f"{folder} holds {', '.join(paths)}, and without torch only Transformer, Pooling,"
            f" Normalize and {STATIC} are read: {EXPORT}."
        )
    settings = _read(folder / PROMPTS, _Prompts, optional=True)
    prompts = {key: text or "" for key, text in (settings.prompts or {}).items()}
    default = settings.default_prompt_name
    if default is not None and default not in prompts:
        raise GivenGraphError(
            f"{folder / PROMPTS} has the default_prompt_name {default!r}, and its prompts are"
            f" {', '.join(map(repr, prompts)) or 'none'}: correct it."
        )
    if not any(prompts.values()):
        prompts, default = {}, None
    is_static = STATIC in paths
    place = folder / paths[STATIC] if is_static else folder
    backbone = None if is_static else _read(folder / CONFIG, Backbone)
    pooling, pools_prompts = ("mean", True) if is_static else _pooling(folder / paths["Pooling"])
    return GivenEncoder(
        folder=place,
        backbone=backbone,
        pooling=pooling,
        normalize="Normalize" in paths,
        max_seq_length=_max_seq_length(folder, backbone) if backbone else LONGEST,
        prompts=prompts,
        default_prompt_name=default,
        tokenizer=_tokenizer(place),
        pools_prompts=pools_prompts or not prompts,
    )


def _pooling(folder: Path) -> tuple[str, bool]:
    """How tokens are pooled, and whether a prompt's are."""
    settings = _read(folder / "config.json", dict[str, Any])
    if "pooling_mode" in settings:
        modes = [str(settings["pooling_mode"])]
    else:
        flags = (key for key, value in settings.items() if value is True and "mode" in key)
        modes = [POOLING_FLAGS.get(flag, flag) for flag in flags]
    if len(modes) != 1 or modes[0] not in ("mean", "cls"):
        raise GivenGraphError(
            f"{folder} pools by {', '.join(modes) or 'nothing'}, and without torch only by mean and"
            f" cls can be served: {EXPORT}."
        )
    return modes[0], settings.get("include_prompt") is not False


def _max_seq_length(folder: Path, backbone: Backbone) -> int:
    """Tokens that are read: of the settings, the tokenizer and the rows of the position table."""
    texts = _read(folder / "sentence_bert_config.json", _Texts, optional=True)
    if texts.do_lower_case:
        raise GivenGraphError(f"{folder} lower-cases texts before its tokenizer: {EXPORT}.")
    lengths = _read(folder / "tokenizer_config.json", _Lengths, optional=True)
    positions = backbone.max_position_embeddings or LONGEST
    if backbone.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= (backbone.pad_token_id or 0) + 1  # positions begin behind its row
    said = (texts.max_seq_length, lengths.model_max_length, positions)
    return int(min(number for number in said if number is not None))


def _tokenizer(folder: Path) -> bytes:
    path = folder / TOKENIZER
    if not path.is_file():
        raise GivenGraphError(f"{folder} has no {TOKENIZER}, which serving needs: {EXPORT}.")
    return path.read_bytes()


def _read(path: Path, kind: type[Content], *, optional: bool = False) -> Content:
    """What a JSON file says; one that is ``optional`` and not there says nothing."""
    try:
        content = b"{}" if optional and not path.is_file() else path.read_bytes()
        return TypeAdapter(kind).validate_json(content)
    except OSError as error:
        raise GivenGraphError(f"{path} cannot be read ({error}): fetch the model again.") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise GivenGraphError(f"{path} does not say {place}: {EXPORT}.") from None
        raise GivenGraphError(
            f"{path} cannot be read ({place}: {first['msg']}): fetch the model again."
        ) from None


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
    refill(model.graph.input, sorted(kept, key=lambda value: INPUTS.index(value.name)))
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
