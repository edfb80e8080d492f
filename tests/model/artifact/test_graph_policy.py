"""A graph that does more than compute is refused, wherever in it that stands."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from s2sent.model.artifact.graph_policy import ALLOWED_DOMAINS, MESSAGES, GraphRefused, check_graph
from s2sent.model.artifact.manifest import MODEL
from s2sent.service.settings import DEFAULT_ARTIFACT

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
WEIGHT = numpy_helper.from_array(np.ones(4, np.float32), "w")
ADD = helper.make_node("Add", ["x", "w"], ["y"])
OPSETS = [helper.make_opsetid("", 18)]


def a_model(*nodes: NodeProto, weights: list[TensorProto] | None = None) -> ModelProto:
    graph = helper.make_graph([*nodes], "g", [X], [Y], [WEIGHT] if weights is None else weights)
    return helper.make_model(graph, opset_imports=OPSETS)


def external(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def a_node(operator: str, domain: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(operator, ["x"], ["y"], domain=domain, **attributes)


def in_a_subgraph(node: NodeProto) -> ModelProto:
    branch = helper.make_graph([node], "branch", [], [Y])
    condition = numpy_helper.from_array(np.array(True), "condition")
    choice = helper.make_node(
        "If", ["condition"], ["y"], then_branch=branch, else_branch=a_branch(branch)
    )
    return a_model(choice, weights=[condition])


def a_branch(within: onnx.GraphProto) -> onnx.GraphProto:
    """A branch with another one in it."""
    inner = helper.make_node("If", ["condition"], ["y"], then_branch=within, else_branch=within)
    return helper.make_graph([inner], "outer", [], [Y])


def in_a_function(node: NodeProto) -> ModelProto:
    model = a_model(ADD)
    model.functions.append(helper.make_function("", "F", ["x"], ["y"], [node], OPSETS))
    return model


def in_training(node: NodeProto) -> ModelProto:
    model = a_model(ADD)
    model.training_info.add().algorithm.node.append(node)
    return model


def a_function_of(domain: str) -> ModelProto:
    model = a_model(ADD)
    model.functions.append(helper.make_function(domain, "F", ["x"], ["y"], [ADD], OPSETS))
    return model


def sparse(tensor: TensorProto) -> ModelProto:
    model = a_model(ADD)
    model.graph.sparse_initializer.add().values.CopyFrom(tensor)
    return model


PLACES = [a_model, in_a_subgraph, in_a_function, in_training]


@pytest.mark.parametrize("domain", ["", "ai.onnx", "com.microsoft"])
@pytest.mark.parametrize("place", PLACES)
def test_what_computes_is_accepted(place: Callable[[NodeProto], ModelProto], domain: str) -> None:
    check_graph(place(a_node("Neg", domain)).SerializeToString())


def test_the_embedded_model_is_accepted() -> None:
    check_graph((DEFAULT_ARTIFACT / MODEL).read_bytes())


@pytest.mark.parametrize("domain", ["evil.example", "ai.onnx.ml", "trt.plugins", "ai.onnx.contrib"])
@pytest.mark.parametrize("place", PLACES)
def test_an_operator_of_another_domain_is_refused(
    place: Callable[[NodeProto], ModelProto], domain: str
) -> None:
    with pytest.raises(GraphRefused, match=f"domain '{domain}'"):
        check_graph(place(a_node("Evil", domain)).SerializeToString())


@pytest.mark.parametrize("place", PLACES)
def test_a_compiled_context_is_refused(place: Callable[[NodeProto], ModelProto]) -> None:
    """It names a file that an execution provider loads, or holds what a compiler wrote."""
    node = a_node("EPContext", "com.microsoft", embed_mode=0, ep_cache_context="../engine")
    with pytest.raises(GraphRefused, match="operator 'EPContext'"):
        check_graph(place(node).SerializeToString())


def test_a_function_of_another_domain_is_refused() -> None:
    with pytest.raises(GraphRefused, match=r"domain 'evil\.example'"):
        check_graph(a_function_of("evil.example").SerializeToString())


@pytest.mark.parametrize("location", ["weights.bin", "../secret", "/etc/passwd"])
@pytest.mark.parametrize(
    "build",
    [
        lambda tensor: a_model(ADD, weights=[tensor]),
        lambda tensor: a_model(a_node("Constant", value=tensor)),
        lambda tensor: in_a_subgraph(a_node("Constant", value=tensor)),
        lambda tensor: in_a_function(a_node("Constant", value=tensor)),
        lambda tensor: a_model(a_node("Custom", values=[tensor])),
        sparse,
    ],
)
def test_data_in_another_file_is_refused(
    build: Callable[[TensorProto], ModelProto], location: str
) -> None:
    """Inside the folder too: the manifest could not say what ONNX Runtime will read."""
    with pytest.raises(GraphRefused, match="data is in another file"):
        check_graph(build(external(location)).SerializeToString())


def test_either_sign_of_another_file_is_enough() -> None:
    """A reader may go by the location's kind or by the location."""
    only_kind, only_place = external("a"), external("a")
    del only_kind.external_data[:]
    only_place.ClearField("data_location")
    for tensor in (only_kind, only_place):
        with pytest.raises(GraphRefused, match="data is in another file"):
            check_graph(a_model(ADD, weights=[tensor]).SerializeToString())


def test_data_that_says_it_is_in_the_file_is_accepted() -> None:
    weight = TensorProto()
    weight.CopyFrom(WEIGHT)
    weight.data_location = TensorProto.DEFAULT
    check_graph(a_model(ADD, weights=[weight]).SerializeToString())


def test_every_cut_is_refused_or_has_lost_nothing_but_whole_fields() -> None:
    """A cut never raises anything else, and one within the graph never passes."""
    content = a_model(ADD).SerializeToString()
    end_of_graph = content.index(a_model(ADD).graph.SerializeToString()) + len(
        a_model(ADD).graph.SerializeToString()
    )
    for length in range(end_of_graph):
        with pytest.raises(GraphRefused):
            check_graph(content[:length])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08\x08",  # a version and no graph
        b'{"is": "JSON"}',
        b"\x18\x00\x00\x00ORTM\x3a\x00",  # ONNX Runtime's own format
        b"\x3a\x00\x3b",  # a group
        b"\x3a\x00\x02\x00",  # field 0
        b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",  # a length of eleven bytes
        b"\x3a\x7f",  # longer than the file
        b"\x38\x00",  # a number in the graph's place
        b"\xba\x80\x80\x80\x10\x00\x3a\x00",  # field 7 + 2 ** 29, in 32 bits field 7
        b"\x08" + b"\x80" * 9 + b"\x02\x3a\x00",  # a version above 64 bits
    ],
    ids=lambda content: content.hex(),
)
def test_what_is_not_onnx_is_refused(content: bytes) -> None:
    with pytest.raises(GraphRefused):
        check_graph(content)


def test_nesting_has_no_limit_that_could_be_hit() -> None:
    """A graph in an attribute of a node in a graph, a thousand times."""
    content = b""
    for _ in range(1_000):
        for field in (0x0A, 0x2A, 0x32):  # node, attribute, g; from the inside out
            content = bytes([field]) + _length(content) + content
    with pytest.raises(GraphRefused, match="domain 'x'"):
        check_graph(b"\x3a" + _length(content) + content + b"\x3a\x05\x0a\x03\x3a\x01x")


def _length(content: bytes) -> bytes:
    """The length as a varint."""
    number, varint = len(content), bytearray()
    while number > 0x7F:
        varint.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*varint, number])


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_field_numbers_are_those_of_onnx(kind: str) -> None:
    """Every field that can hold a node or a tensor, directly or not, is looked into."""
    fields = getattr(onnx, kind).DESCRIPTOR.fields
    found = {
        field.number: field.message_type.name
        for field in fields
        if field.message_type and field.message_type.name in MESSAGES
    }
    assert found == MESSAGES[kind]


def test_the_fields_that_are_judged_are_those_of_onnx() -> None:
    def number(kind: str, name: str) -> int:
        found: int = getattr(onnx, kind).DESCRIPTOR.fields_by_name[name].number
        return found

    assert (number("NodeProto", "op_type"), number("NodeProto", "domain")) == (4, 7)
    assert number("FunctionProto", "domain") == 10
    assert number("TensorProto", "external_data") == 13
    assert number("TensorProto", "data_location") == 14
    assert {b"", b"ai.onnx", b"com.microsoft"} == ALLOWED_DOMAINS
