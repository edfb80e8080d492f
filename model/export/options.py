"""What an export can be asked for, and the error of one that cannot be done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from s2sent.model.artifact.errors import UserError

Precision = Literal["fp32", "fp16", "weight-int8", "int8"]
STORED_AS_INT8: frozenset[Precision] = frozenset(("weight-int8", "int8"))


class ExportError(UserError):
    """The checkpoint cannot be exported as asked; the message says why and what to change."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export a checkpoint, and what the manifest cannot take from it.

    backbone: the backbone's name and licence, for the manifest.
    sentences: the texts that parity is checked on; the built-in ones when empty.
    max_seq_length: the tokens of a text that are read; None for what the checkpoint says.
    depths: the blocks after which the encoder can also stop, besides the last one.
    standard_operators: fuse nothing, so that the graph has only operators of the ONNX standard,
        as other runtimes require.
    """

    precision: Precision = "fp32"
    name: str = "s2sent"
    backbone: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    sentences: Sequence[str] = ()
    max_seq_length: int | None = None
    depths: Sequence[int] = ()
    allow_unfused_attention: bool = False
    standard_operators: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ExportError(
                f"precision {self.precision!r} is not one of {', '.join(get_args(Precision))}."
            )
