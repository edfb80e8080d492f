"""Attention without padding: on a CPU by a function in the place of the GPU's operator."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from s2sent.model.artifact.manifest import UNPADDED_MODEL
from s2sent.model.artifact.reader import graph_at
from s2sent.model.export.gpu.operators import AVOIDED
from s2sent.model.export.gpu.unpadded import OPERATOR
from s2sent.model.runtime.encoder import TEXT_ENDS, TOKEN_OFFSETS, OnnxEncoder, padded_inputs
from tests.support.fake_runtime import FakeRuntime
from tests.support.packed_attention import with_reference

LENGTHS = ([5, 1, 60, 17, 60, 2], [9], [12, 12, 12])
FAMILIES = ("exits", "bert", "roberta", "distilbert", "electra")
OTHERS = ("mpnet", "t5", "llama")  # whose attention has a bias, or looks back only


def batch_of(lengths: list[int]) -> list[list[int]]:
    numbers = np.random.default_rng(0)
    return [[int(each) for each in numbers.integers(5, 30, length)] for length in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_depth_has_the_vectors_of_the_padded_form(
    converted: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = converted(family, "fp32")
    padded = OnnxEncoder(made)
    runtime = FakeRuntime(rewritten=with_reference).install(monkeypatch)
    unpadded = OnnxEncoder(made, device="cuda")
    assert unpadded.warning == ""
    depths = (*made.manifest.depths, None)
    assert len(runtime.sessions) == 2 * len(depths)
    for depth in depths:
        for lengths in LENGTHS:
            rows = batch_of(lengths)
            expected, found = (each.run(rows, depth=depth) for each in (padded, unpadded))
            np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_its_graphs_have_one_operator_for_attention(
    converted: Any, family: str, precision: str
) -> None:
    """ONNX Runtime takes its types and shapes: a CPU lacks the operator's kernel alone."""
    made = converted(family, precision)
    for depth in (*made.manifest.depths, None):
        content = made.read(graph_at(depth, unpadded=True))
        graph = onnx.load_from_string(content).graph
        operators = [node.op_type for node in graph.node]
        assert operators.count(OPERATOR) == (depth or made.manifest.full_depth)
        assert not {*AVOIDED, "MultiHeadAttention", "Attention"}.intersection(operators)
        assert {each.name for each in graph.input} == {
            *made.manifest.inputs, TOKEN_OFFSETS, TEXT_ENDS
        }  # fmt: skip
        with pytest.raises(Exception, match=f"NOT_IMPLEMENTED.*{OPERATOR}"):
            ort.InferenceSession(str(made.path / graph_at(depth, unpadded=True)))


@pytest.mark.parametrize("family", OTHERS)
def test_other_attention_stays_padded(converted: Any, family: str) -> None:
    assert UNPADDED_MODEL not in converted(family, "fp32").manifest.files


def test_inputs_tell_where_tokens_and_padding_stand() -> None:
    """As ONNX Runtime's operators define them: tokens first, then padding."""
    names = ["input_ids", TOKEN_OFFSETS, TEXT_ENDS]
    inputs = padded_inputs([[7, 7], [7, 7, 7, 7], [7]], names, 0)
    assert inputs[TOKEN_OFFSETS].tolist() == [[0, 1, 4, 5], [6, 7, 8, 2], [3, 9, 10, 11]]
    assert inputs[TEXT_ENDS].tolist() == [0, 2, 6, 7]
    assert {inputs[name].dtype for name in names[1:]} == {np.dtype(np.int32)}


def exchanged(operator: str, other: str) -> Callable[[bytes], bytes]:
    """The function with another operator."""

    def rewritten(graph: bytes) -> bytes:
        made = onnx.load_from_string(with_reference(graph))
        for node in (node for function in made.functions for node in function.node):
            node.op_type = other if node.op_type == operator else node.op_type
        content: bytes = made.SerializeToString()
        return content

    return rewritten


@pytest.mark.parametrize(
    ("rewritten", "why"),
    [
        (exchanged("LessOrEqual", "Less"), "a component is off by 0"),  # sees a token of the next
        (exchanged("Sqrt", "Acos"), "a component is off by nan"),
        (lambda graph: graph, f".*{OPERATOR}"),
    ],
    ids=["wrong", "not-a-number", "no-kernel"],
)
def test_without_agreement_attention_runs_with_padding(
    converted: Any, rewritten: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = converted("exits", "fp32")
    expected = OnnxEncoder(made).run(batch_of([3, 9]))
    FakeRuntime(rewritten=rewritten).install(monkeypatch)
    encoder = OnnxEncoder(made, device="cuda")
    assert re.match(f"attention runs with padding: {why}", encoder.warning)
    np.testing.assert_allclose(encoder.run(batch_of([3, 9])), expected, atol=1e-6)
