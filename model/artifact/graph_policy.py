"""The security policy for ONNX graphs, checked on a graph's bytes before a session is opened.

A graph that is served may only compute: it may not read files or load code. Refused are tensors
outside the file (but for weights that `model.artifact.weights_file` finds), operators of domains
other than ONNX's and ONNX Runtime's, EPContext (which loads a device compiler's output from any
path) and ONNX Runtime's own file format. ONNX Runtime refuses most of this itself; this check does
so on every version and device.

The format is protocol buffers (https://protobuf.dev/programming-guides/encoding/), the field
numbers are those of onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Only the
standard library is imported, because serving does not need the package ``onnx``.
"""

from collections.abc import Iterator

ALLOWED_DOMAINS = frozenset({b"", b"ai.onnx", b"com.microsoft"})
FORBIDDEN_OPERATORS = frozenset({b"EPContext"})

# The messages that can contain a node or a tensor: by field number, the message of that field.
MESSAGES: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        **{5: "TensorProto", 10: "TensorProto", 6: "GraphProto", 11: "GraphProto"},
        **{22: "SparseTensorProto", 23: "SparseTensorProto"},
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
_MAIN_GRAPH = "main graph"
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_ABOVE_64_BITS = 1 << 64
_MAX_FIELDS = 1 << 29

Value = int | memoryview
Fields = dict[int, list[Value]]


class GraphRefused(ValueError):
    """The graph may not be served; the message says what it contains."""


def check_graph(content: bytes | memoryview, *, weights_apart: bool = False) -> None:
    """Raise GraphRefused unless ``content`` is an ONNX model that only computes.

    With ``weights_apart`` the main graph's own initializers may be in another file.
    """
    if content[4:8] == b"ORTM":
        raise GraphRefused("it is in ONNX Runtime's own format")
    waiting = [("ModelProto", memoryview(content), "")]
    seen = set()
    while waiting:  # not recursive, because the file would determine the depth
        kind, message, parent = waiting.pop()
        seen.add(kind)
        own = _MAIN_GRAPH if (kind, parent) == ("GraphProto", "ModelProto") else kind
        may_be_apart = weights_apart and (kind, parent) == ("TensorProto", _MAIN_GRAPH)
        for number, value in fields_of(message):
            _check_field(kind, number, value, may_be_apart=may_be_apart)
            if number in MESSAGES[kind]:
                waiting.append((MESSAGES[kind][number], content_of(value), own))
    if "GraphProto" not in seen:
        raise GraphRefused("it has no graph")


def _check_field(kind: str, number: int, value: Value, *, may_be_apart: bool) -> None:
    match kind, number:
        case ("NodeProto", 7) | ("FunctionProto", 10):  # domain
            domain = bytes(content_of(value))
            if domain not in ALLOWED_DOMAINS:
                raise GraphRefused(f"it has an operator of the domain {_shown(domain)}")
        case ("NodeProto", 4):  # op_type
            operator = bytes(content_of(value))
            if operator in FORBIDDEN_OPERATORS:
                raise GraphRefused(f"it has the operator {_shown(operator)}")
        case ("TensorProto", 14) if value not in (0, 1):  # data_location: a reader takes 32 bits
            raise GraphRefused("it has a tensor whose data is in an unknown place")
        case ("TensorProto", 13 | 14) if not may_be_apart and (number == 13 or value):
            raise GraphRefused("it has a tensor whose data is in another file")  # 13: external_data


def fields_of(message: memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order, as (number, value); a field with a length as its bytes.

    Raises GraphRefused where the bytes are not a message.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < _MAX_FIELDS:  # a reader that takes 32 bits would see another field
            raise _malformed()
        if wire_type == _VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire_type == _LENGTH:
            length, place = _varint(message, place)
        elif wire_type in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if wire_type == _EIGHT_BYTES else 4
        else:  # groups, which onnx.proto does not have
            raise _malformed()
        if length > len(message) - place:
            raise _malformed()
        yield number, message[place : place + length]
        place += length


def fields_by_number(message: Value) -> Fields:
    """The values of each field of a message, in their order; raises as `fields_of`."""
    values: Fields = {}
    for number, value in fields_of(content_of(message)):
        values.setdefault(number, []).append(value)
    return values


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """A base-128 varint, lowest bits first, and the position after it."""
    value = 0
    for shift, byte in enumerate(message[place : place + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80 and value < _ABOVE_64_BITS:  # readers drop what is above
            return value, place + shift + 1
    raise _malformed()


def content_of(value: Value) -> memoryview:
    """The bytes of a field that has a length; raises GraphRefused for a number."""
    if isinstance(value, int):
        raise _malformed()
    return value


def _shown(name: bytes) -> str:
    return repr(name[:80].decode("utf-8", "replace"))


def _malformed() -> GraphRefused:
    return GraphRefused("it is not ONNX, or was cut off")
