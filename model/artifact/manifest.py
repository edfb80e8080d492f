"""The artifact's manifest: what it says of the encoder and its files, and how it is parsed.

An artifact is a folder that holds one exported encoder:

    manifest.json        what it is, how it was made, how it scored, the sha256 of every file
    onnx/model.onnx      int64 input_ids, attention_mask[, token_type_ids] -> float32 [n, dim]
    tokenizer.json       the tokenizer, as the tokenizers library reads it
    config.json          the backbone's configuration
    canary.json          one text and its embedding, with which a loaded encoder is checked

`model.artifact.writer` writes such folders and `model.artifact.reader` opens them. Only the
standard library is imported.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import UnionType
from typing import Any, Literal, Self, cast, get_args, get_origin, get_type_hints

from s2sent.model.artifact.errors import REEXPORT, MalformedManifest, UnsupportedSchema
from s2sent.model.artifact.template import CLEAN_UPS, CleanUp, Template

SCHEMA_VERSION = 1

MANIFEST = "manifest.json"
MODEL = "onnx/model.onnx"
WEIGHTS = "onnx/model.onnx_data"  # of a graph that is too large for one file
UNPADDED_MODEL = "onnx/unpadded.onnx"  # the same for a GPU, its attention without padding
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
CANARY = "canary.json"
PARAMETERS = "parameters.json"  # of an artifact whose checkpoint can be restored
REQUIRED_FILES = (MODEL, TOKENIZER, CONFIG, CANARY)
# How an input begins that only graphs for a GPU have (`model.runtime.encoder.token_places`).
TOKEN_PLACES = "token_places"  # noqa: S105  # no password
# The input [batch, length] of graphs that leave prompts out of the pooling: 1 for what is pooled.
POOLING_MASK = "pooling_mask"

Role = Literal["query", "document"]
_ROLE_PROMPTS: Mapping[Role, tuple[str, ...]] = {
    "query": ("query", "search_query"),
    "document": ("document", "passage", "corpus", "search_document"),
}


@dataclass(frozen=True)
class FileEntry:
    """What the manifest knows of one file: its sha256 in hex and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a reader of the artifact needs to know besides the files themselves.

    selector: the configuration the module was built with, or None for pooling alone.
    training: the recipe with its seed and corpus hash.
    scores: the evaluation, by task.
    parity: the comparison with torch that the export passed.
    fused: the count of each fused operator in the graph.
    depths: the blocks after which the encoder can stop early.
    comparable_depths: the depths whose embeddings can be compared with each other, because they
        were trained to be alike; full depth is one of them. Empty where no two depths can be.
    by_depth: for each depth, full depth too, ``time`` as a share of full depth's, and ``scores``,
        the average of the STS tasks by dimensions.
    packed: whether the blocks work on tokens without padding (`model.export.cpu.packing`).
    template: the tokens that stand around every text, counted in ``max_seq_length``; None for none.
    towers: of twins, whose embedding is the sum of both, the name and parity of each tower.
    default_prompt_name: the prompt of a text for which none is named; None for none.
    exact_without_vnni: of int8, whether products are exact on x86 processors without VNNI too
        (`model.export.int8.pairs`).
    """

    name: str
    dim: int
    max_seq_length: int
    pooling: str
    normalize: bool
    precision: str
    inputs: tuple[str, ...]
    selector: dict[str, Any] | None
    backbone: dict[str, Any]
    prompts: dict[str, str]
    training: dict[str, Any]
    scores: dict[str, Any]
    parity: dict[str, Any]
    fused: dict[str, int]
    versions: dict[str, str]
    files: dict[str, FileEntry]
    depths: tuple[int, ...] = ()  # manifests of earlier versions may lack it and what follows
    comparable_depths: tuple[int, ...] = ()
    by_depth: dict[str, Any] = field(default_factory=dict)
    packed: bool = False
    template: Template | None = None
    towers: tuple[dict[str, Any], ...] = ()
    default_prompt_name: str | None = None
    exact_without_vnni: bool = False
    schema_version: int = SCHEMA_VERSION

    def prompt(self, name: str | None = None) -> str:
        """The text put before an input, by default the default prompt; KeyError if unknown.

        An empty name is no prompt, unless there is one of that name.
        """
        name = self.default_prompt_name if name is None else name
        return self.prompts.get("", "") if not name else self.prompts[name]

    def role_prompt_name(self, role: Role) -> str | None:
        """The prompt of texts of a role, None where the model names none.

        Its names are sentence-transformers' for the role, in its order, and then Cohere's.
        """
        return next((name for name in _ROLE_PROMPTS[role] if name in self.prompts), None)

    @property
    def pools_prompts(self) -> bool:
        """Whether the tokens of a prompt are pooled like its text's, not only attended to."""
        return POOLING_MASK not in self.inputs

    @property
    def max_input_length(self) -> int:
        """Tokens that a text may have: special tokens count, those of a template do not."""
        return self.max_seq_length - (self.template.length if self.template else 0)

    @property
    def backbone_name(self) -> str:
        """The model that the first of the runs began with, or else what was exported."""
        name, record = self.backbone.get("name"), self.training
        while record:
            name = record.get("backbone", {}).get("name", name)
            record = record.get("began_from", {})
        return str(name or "not named")

    @property
    def full_depth(self) -> int | None:
        """The number of blocks; None where the manifest does not have it."""
        return self.backbone.get("num_blocks")

    @property
    def all_depths(self) -> tuple[int, ...]:
        """Every depth that an encoder can be asked for: its exits, and full depth."""
        return self.depths if self.full_depth is None else (*self.depths, self.full_depth)

    @property
    def is_for_gpu(self) -> bool:
        """Whether each depth has a graph of its own, for a GPU (`model.export.gpu`)."""
        return any(name.startswith(TOKEN_PLACES) for name in self.inputs)

    @property
    def min_cosine(self) -> float | None:
        """The least cosine of the parity check, at any depth; None where there is no number."""
        depths = self.parity.get("depths")
        reports = [self.parity, *(depths.values() if isinstance(depths, dict) else ())]
        found = [each.get("min_cosine") for each in reports if isinstance(each, dict)]
        return min((each for each in found if isinstance(each, float)), default=None)

    @property
    def converts_to_int8(self) -> bool:
        """Whether `model.export.int8.conversion` takes such an artifact."""
        return self.form in ("fp32", "weight-int8")

    @property
    def in_two_files(self) -> bool:
        """Whether the graph is so large that its weights are in a file of their own."""
        return WEIGHTS in self.files

    @property
    def form(self) -> str:
        """The precision, and what else stands against a conversion to int8."""
        packed = "" if self.packed else ", not packed"
        return self.precision + packed + (", in two files" if self.in_two_files else "")

    def to_json(self) -> str:
        """The manifest as indented JSON, ending in a newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    def fused_blocks(self, depth: int | None = None) -> range:
        """The blocks that the selector fuses at ``depth``, 0 the embedding output; none without."""
        if self.selector is None:
            return range(0)
        lowest = 0 if self.selector.get("block_choice") == "skip_last" else 1
        stop = (depth or int(self.backbone["num_blocks"])) + lowest
        return range(max(lowest, stop - int(self.selector["num_blocks"])), stop)

    @classmethod
    def from_json(cls, content: str | bytes) -> Self:
        """Parse manifest.json; raises MalformedManifest or UnsupportedSchema."""
        fields = parse_object(content, MANIFEST)
        version = fields.get("schema_version")
        if version != SCHEMA_VERSION:
            raise UnsupportedSchema(
                f"{MANIFEST} has schema_version {version!r}; this program reads {SCHEMA_VERSION}."
                f" Use a matching version of s2sent. {REEXPORT}"
            )
        types, own = get_type_hints(cls), dataclasses.fields(cls)
        required = {each.name for each in own if each.default is each.default_factory}  # MISSING
        if wrong := sorted((required - fields.keys()) | (fields.keys() - types.keys())):
            raise MalformedManifest(
                f"{MANIFEST} misses or does not know the fields {', '.join(wrong)}. {REEXPORT}"
            )
        for name, value in fields.items():
            kinds = _json_kinds(types[name])
            if type(value) not in kinds:
                names = " or ".join(kind.__name__ for kind in kinds)
                raise _malformed(f"{name} must be {names}, got {value!r}")
        _check_values(fields)
        return cls(
            **fields
            | {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
            | {"files": _parse_files(fields["files"])}
            | {"template": _parse_template(fields.get("template"))}
        )


def parse_object(content: str | bytes, name: str) -> dict[str, Any]:
    """The JSON object in the content of the file ``name``; raises MalformedManifest."""
    try:
        value = json.loads(content if isinstance(content, str) else content.decode())
    except UnicodeDecodeError:
        raise MalformedManifest(f"{name} is not UTF-8 text. {REEXPORT}") from None
    except RecursionError:
        raise MalformedManifest(f"{name} is nested too deep. {REEXPORT}") from None
    except ValueError as error:  # JSONDecodeError, or a number of too many digits
        raise MalformedManifest(f"{name} is not JSON: {error}. {REEXPORT}") from None
    if not isinstance(value, dict):
        raise MalformedManifest(f"{name} must hold one object. {REEXPORT}")
    return value


def _json_kinds(hint: Any) -> list[type]:
    """The types that JSON gives a field of this annotation."""
    alternatives = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = [get_origin(each) or each for each in alternatives]
    return [{tuple: list, Template: dict}.get(kind, kind) for kind in kinds]


def _check_values(fields: Mapping[str, Any]) -> None:
    """Raise MalformedManifest for values that no encoder has, of fields whose type is right."""
    numbers = {name: [fields[name]] for name in ("dim", "max_seq_length")}
    numbers |= {name: fields.get(name, ()) for name in ("depths", "comparable_depths")}
    numbers["backbone.num_blocks"] = [fields["backbone"].get("num_blocks", 1)]
    if fields["selector"] is not None:
        numbers["selector.num_blocks"] = [fields["selector"].get("num_blocks")]
    for name, value in ((name, value) for name, values in numbers.items() for value in values):
        if type(value) is not int or value < 1:
            raise _malformed(f"{name} has {value!r}, which is no number above 0")
    prompts, default = fields["prompts"], fields.get("default_prompt_name")
    if not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise _malformed("prompts must be texts")
    if default is not None and default not in prompts:
        raise _malformed(f"default_prompt_name is {default!r}, which prompts do not have")


def _parse_template(fields: dict[str, Any] | None) -> Template | None:
    match fields:
        case None:
            return None
        case {
            "prefix": list(prefix),
            "suffix": list(suffix),
            "read": int() | None as read,
            "space": str(space),
            "clean_up": str(clean_up),
        } if (
            len(fields) == len(dataclasses.fields(Template))
            and {*map(type, prefix + suffix)} <= {int}
            and (read is None or read == -1 or -len(suffix) <= read < len(prefix))
            and clean_up in CLEAN_UPS
        ):
            return Template(tuple(prefix), tuple(suffix), read, space, cast(CleanUp, clean_up))
    raise _malformed(
        "template needs the token ids prefix and suffix, read as one of their places, space, and"
        f" clean_up as one of {', '.join(CLEAN_UPS)}"
    )


def _parse_files(files: Mapping[str, Any]) -> dict[str, FileEntry]:
    entries = {}
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or name == MANIFEST:
            raise MalformedManifest(
                f"{MANIFEST} lists {name!r}, which does not stay inside the artifact. {REEXPORT}"
            )
        match entry:
            case {"sha256": str(digest), "bytes": int(size)} if size >= 0:
                entries[name] = FileEntry(digest, size)
            case _:
                raise _malformed(f"files[{name!r}] needs sha256 and bytes")
    return entries


def _malformed(what: str) -> MalformedManifest:
    return MalformedManifest(f"{MANIFEST}: {what}. {REEXPORT}")
