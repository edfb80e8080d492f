"""Products of int8 are what the formula says, and no token's rounding knows of another token."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.graph import OPSET, POOLING
from s2sent.model.export.int8.calibration import (
    LEAST_MEASURED,
    Rounding,
    measure_tokens,
    rounding_of,
)
from s2sent.model.export.int8.pairs import quantize_in_pairs
from s2sent.model.export.int8.products import multiply_as_int8
from s2sent.model.export.int8.storage import MIN_ROUNDED_ELEMENTS
from s2sent.model.export.options import ExportError, ExportOptions
from s2sent.model.network.encoder import build_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import POOLED_OUTPUT, OnnxEncoder
from tests.support.few import FEW_SENTENCES
from tests.support.server_process import running_server
from tests.support.tiny import tiny_backbone

Matrix = NDArray[np.float32]

WIDTH, WIDE = 40, 72  # no multiples of what a kernel takes at a time
TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3, "a car"]


def matrix(rows: int = WIDTH, columns: int = WIDE, seed: int = 0) -> Matrix:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


BIAS = np.linspace(-1, 1, WIDE, dtype=np.float32)


FACTORS = np.geomspace(0.1, 10, WIDTH).astype(np.float32)


def a_graph(*nodes: NodeProto, outputs: tuple[str, ...], **weights: Matrix) -> onnx.ModelProto:
    """x [tokens, WIDTH] -> ``nodes`` -> ``outputs``."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", None])

    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", WIDTH])],
        [value(name) for name in outputs],
        [numpy_helper.from_array(weight, name) for name, weight in weights.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def a_product() -> onnx.ModelProto:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    return a_graph(node, outputs=("y",), w=matrix(), b=BIAS)


def a_session(model: onnx.ModelProto) -> ort.InferenceSession:
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def product() -> ort.InferenceSession:
    model = a_product()
    assert multiply_as_int8(model.graph, {"x": Rounding(FACTORS)}) == 1
    return a_session(model)


def divided(tokens: Matrix) -> Matrix:
    return (tokens * (1 / FACTORS)).astype(np.float32)


def stored() -> tuple[NDArray[np.int8], Matrix]:
    return quantize_in_pairs(matrix() * FACTORS[:, None])


def by_formula(tokens: Matrix) -> NDArray[np.float64]:
    """The module's first paragraph, in numpy: whole numbers in int64, scales in float64."""
    whole, channel_scale = stored()
    scale = np.maximum(np.abs(divided(tokens)).max(1, keepdims=True), 1e-20) * np.float32(1 / 127)
    rounded = np.rint(divided(tokens) / scale).astype(np.int64)
    sums: NDArray[np.int64] = rounded @ whole.astype(np.int64)
    result: NDArray[np.float64] = sums * scale.astype(float) * channel_scale + BIAS
    return result


tokens_of_any_size = st.tuples(
    st.integers(1, 9), st.integers(0, 2**31), st.sampled_from([1e-6, 1.0, 1e4])
)


@given(tokens_of_any_size)
def test_the_result_is_the_formulas(
    product: ort.InferenceSession, drawn: tuple[int, int, float]
) -> None:
    count, seed, size = drawn
    tokens = size * matrix(count, WIDTH, seed)
    (found,) = product.run(None, {"x": tokens})
    expected = by_formula(tokens)
    # A quotient that lies between two whole numbers may fall to either side: one step of a token.
    largest_weight = np.abs(matrix() * FACTORS[:, None]).max()
    step = np.abs(divided(tokens)).max(1, keepdims=True) / 127 * largest_weight
    close = np.abs(found - expected) <= 1e-5 * (1 + np.abs(expected))
    assert close.all() or (np.abs(found - expected) <= step + 1e-5).all()
    assert close.mean() > 0.9


@given(tokens_of_any_size)
def test_the_result_is_as_near_to_float_as_half_a_step_of_each_factor(
    product: ort.InferenceSession, drawn: tuple[int, int, float]
) -> None:
    count, seed, size = drawn
    tokens = size * matrix(count, WIDTH, seed)
    whole, channel_scale = stored()
    rounded = whole * channel_scale.astype(float)
    (found,) = product.run(None, {"x": tokens})
    half_a_step = np.abs(divided(tokens)).max(1, keepdims=True) / 254
    bound = half_a_step * np.abs(rounded).sum(0) * 1.001 + 1e-5
    assert (np.abs(found - (divided(tokens).astype(float) @ rounded + BIAS)) <= bound).all()


@given(tokens_of_any_size, st.integers(0, 8))
def test_a_tokens_result_is_the_same_bytes_beside_any_others(
    product: ort.InferenceSession, drawn: tuple[int, int, float], place: int
) -> None:
    """Beside tokens a million times as large, too: one scale for all would leave nothing of it."""
    count, seed, size = drawn
    token = matrix(1, WIDTH, seed + 1)
    others = 1e6 * size * matrix(count, WIDTH, seed)
    together = np.insert(others, min(place, count), token, axis=0)
    (alone,), (found,) = (product.run(None, {"x": rows}) for rows in (token, together))
    assert found[min(place, count)].tobytes() == alone[0].tobytes()


def test_a_token_of_zeros_gives_the_bias(product: ort.InferenceSession) -> None:
    (found,) = product.run(None, {"x": np.zeros((2, WIDTH), np.float32)})
    np.testing.assert_array_equal(found, [BIAS, BIAS])


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_stays_visible_and_in_its_token(product: ort.InferenceSession, bad: float) -> None:
    """Rounded to a byte it would look like any number."""
    tokens = matrix(3, WIDTH)
    (right,) = product.run(None, {"x": tokens})
    tokens[1, 7] = bad
    (found,) = product.run(None, {"x": tokens})
    assert not np.isfinite(found[1]).any()
    np.testing.assert_array_equal(found[[0, 2]], right[[0, 2]])


def test_tokens_that_meet_several_matrices_are_rounded_once() -> None:
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}y"]) for name in "qkv"]
    weights = {name: matrix(seed=seed) for seed, name in enumerate("qkv")}
    model = a_graph(*nodes, outputs=("qy", "ky", "vy"), **weights)
    before = a_session(model).run(None, {"x": matrix(5, WIDTH)})
    assert multiply_as_int8(model.graph, measure_tokens(model, [{"x": matrix(64, WIDTH)}])) == 3
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("QuantizeLinear") == 1
    assert operators.count("MatMulIntegerToFloat") == 3
    after = a_session(model).run(None, {"x": matrix(5, WIDTH)})
    for right, found in zip(before, after, strict=True):
        assert np.corrcoef(right.ravel(), found.ravel())[0, 1] > 0.999


def test_a_bias_that_is_added_behind_the_product_is_added_in_it() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["b", "product"], ["y"]),
    ]
    model = a_graph(*nodes, outputs=("y",), w=matrix(), b=BIAS)
    multiply_as_int8(model.graph, {"x": Rounding(FACTORS, largest=4.0)})
    assert [node.op_type for node in model.graph.node][-1] == "MatMulIntegerToFloat"
    tokens = matrix(5, WIDTH, seed=2) * FACTORS
    (found,) = a_session(model).run(None, {"x": tokens})
    assert np.corrcoef(found.ravel(), (tokens @ matrix() + BIAS).ravel())[0, 1] > 0.999


def test_a_product_that_something_else_reads_keeps_its_sum_outside() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    model = a_graph(*nodes, outputs=("y", "product"), w=matrix(), b=BIAS)
    multiply_as_int8(model.graph, {"x": Rounding(FACTORS)})
    y, product = a_session(model).run(None, {"x": matrix(5, WIDTH)})
    np.testing.assert_array_equal(y, product + BIAS)


def one_scale() -> ort.InferenceSession:
    model = a_product()
    multiply_as_int8(model.graph, {"x": Rounding(FACTORS, largest=12.7)})
    return a_session(model)


def test_tokens_of_one_scale_are_whole_numbers_of_its_steps() -> None:
    """Steps of 0.1, up to 12.7; what is larger counts as 12.7."""
    steps = np.random.default_rng(3).integers(-127, 128, (6, WIDTH)).astype(np.float32)
    steps[1, 5] = 300
    whole, channel_scale = stored()
    (found,) = one_scale().run(None, {"x": steps * 0.1 * FACTORS})
    expected = 0.1 * np.clip(steps, -128, 127) @ (whole * channel_scale.astype(float)) + BIAS
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def gelu(numbers: Matrix) -> Matrix:
    values = torch.nn.functional.gelu(torch.from_numpy(numbers)).numpy()
    return np.asarray(values, np.float32)


def test_what_gelu_leaves_is_rounded_in_steps_of_about_half_the_size() -> None:
    tokens, unseen = (gelu(3 * matrix(40, WIDTH, seed=seed)) for seed in (1, 2))
    one_sided = rounding_of(tokens, [matrix()])
    assert one_sided == Rounding(least=float(tokens.min()))

    def error(rounding: Rounding) -> float:
        model = a_product()
        multiply_as_int8(model.graph, {"x": rounding})
        (found,) = a_session(model).run(None, {"x": unseen})
        rounded, scale = quantize_in_pairs(matrix())
        return float(np.sqrt(np.mean((found - unseen @ (rounded * scale) - BIAS) ** 2)))

    assert error(one_sided) < 0.6 * error(Rounding())


def test_one_sided_tokens_are_whole_numbers_of_their_steps() -> None:
    """Up from their least value; where no token is large, at the steps that leave room for it."""
    tokens = np.stack([2 * matrix(1, WIDTH)[0], np.full(WIDTH, -0.17), np.zeros(WIDTH)])
    tokens = np.maximum(tokens, -0.17).astype(np.float32)
    steps = np.maximum(tokens.max(axis=1, keepdims=True) / 231, 0.17 / 24)
    whole, channel_scale = quantize_in_pairs(matrix())
    model = a_product()
    multiply_as_int8(model.graph, {"x": Rounding(least=-0.17)})
    (found,) = a_session(model).run(None, {"x": tokens})
    rounded = np.clip(np.rint(tokens / steps), -24, 231)
    assert rounded[1].min() == -24
    expected = rounded @ (whole * channel_scale.astype(float)) * steps + BIAS
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("larger", "one"), [(1.5, True), (5.0, False)], ids=["near the others", "far above them"]
)
def test_tokens_have_one_scale_where_that_is_nearly_as_exact(larger: float, one: bool) -> None:
    """The cheapest way is taken whose squared error is nearly the least."""
    tokens = np.clip(matrix(LEAST_MEASURED, WIDTH), -1, 1)
    tokens[7] *= larger
    rounding = rounding_of(tokens, [matrix()])
    assert rounding.least is None
    assert (rounding.largest is not None) == one
    if rounding.largest:
        largest = np.abs(rounding.divided(tokens)).max()
        assert rounding.largest == pytest.approx(largest)


@pytest.mark.parametrize("larger", [1.5, 1.75, 2.0, 2.25, 2.5])
def test_weights_of_fewer_steps_choose_no_poorer_way_for_their_tokens(larger: float) -> None:
    """Products stay the same with every other channel's sign turned, and pairs have all steps."""
    turned = np.where(np.arange(WIDTH) % 2, -1, 1).astype(np.float32)
    tokens = np.clip(matrix(LEAST_MEASURED, WIDTH), -1, 1)
    tokens[7] *= larger
    of_one_sign = np.abs(matrix()) + 1
    fewer = rounding_of(tokens, [of_one_sign])
    all_steps = rounding_of(tokens * turned, [of_one_sign * turned[:, None]])
    assert (fewer.largest, fewer.factors is None) == (all_steps.largest, all_steps.factors is None)


ROUNDINGS = {
    "a scale a token": Rounding(),
    "balanced": Rounding(FACTORS),
    "one scale": Rounding(FACTORS, largest=3.0),
    "one-sided": Rounding(least=-0.3),
}


@given(st.sampled_from([*ROUNDINGS]).map(ROUNDINGS.__getitem__), st.integers(0, 2**31))
@settings(max_examples=20)
def test_a_rounding_foretells_what_the_graph_computes(rounding: Rounding, seed: int) -> None:
    """`Rounding.rounded`, by which the ways are compared, and the operators agree."""
    tokens = matrix(6, WIDTH, seed)
    if rounding.least is not None:
        tokens = np.maximum(tokens, rounding.least)
    model = a_product()
    multiply_as_int8(model.graph, {"x": rounding})
    (found,) = a_session(model).run(None, {"x": tokens})
    whole, steps = rounding.rounded(tokens)
    weights, scales = rounding.weights(matrix())
    expected = whole @ weights.astype(np.float32) * scales * steps + BIAS
    near = np.abs(found - expected) <= 1e-4 * (1 + np.abs(expected))
    assert near.mean() > 0.9  # a quotient may fall to either side of a half


def test_tokens_of_zeros_have_no_one_scale() -> None:
    assert rounding_of(np.zeros((999, WIDTH), np.float32), [matrix()]).largest is None


def test_tokens_that_are_not_finite_are_rounded_each_by_itself() -> None:
    tokens = np.full((LEAST_MEASURED, WIDTH), np.nan, np.float32)
    assert rounding_of(tokens, [matrix()]) == Rounding()


def test_few_tokens_do_not_say_how_large_others_are() -> None:
    tokens = np.clip(matrix(LEAST_MEASURED, WIDTH), -1, 1)
    assert rounding_of(tokens, [matrix()]).largest is not None
    assert rounding_of(tokens[1:], [matrix()]).largest is None


def test_a_channel_that_is_far_larger_costs_the_others_nothing() -> None:
    """Undivided, it would leave them the steps between -1 and 1 of 127."""
    tokens = matrix(64, WIDTH)
    tokens[:, 3] *= 200
    weights = matrix()
    weights[3] /= 200  # as in an encoder, where such channels are answered by small weights
    node = helper.make_node("MatMul", ["x", "w"], ["y"])

    def error(rounding: Rounding) -> float:
        model = a_graph(node, outputs=("y",), w=weights)
        assert multiply_as_int8(model.graph, {"x": rounding}) == 1
        (found,) = a_session(model).run(None, {"x": tokens})
        return float(np.abs(found - tokens @ weights).mean())

    measured = measure_tokens(a_graph(node, outputs=("y",), w=weights), [{"x": tokens}])
    undivided = Rounding()
    assert error(measured["x"]) < 0.1 * error(undivided)


def test_tokens_are_measured_on_all_batches_and_the_graph_is_left_alone() -> None:
    model = a_product()
    before = model.SerializeToString()
    sizes = ((LEAST_MEASURED, 1), (9, 1.5))
    batches = [{"x": size * np.clip(matrix(n, WIDTH, n), -1, 1)} for n, size in sizes]
    for batch in batches:
        batch["x"][:, 5] *= 0.01
    (rounding,) = measure_tokens(model, batches).values()
    assert rounding.factors is not None
    assert model.SerializeToString() == before
    tokens = np.concatenate([batch["x"] for batch in batches])
    reached = np.quantile(np.abs(tokens), 0.99, axis=0)
    reached[5] = np.median(reached) / 2  # half of the usual one: it may be larger in other texts
    factors = reached**0.65 / np.abs(matrix()).max(axis=1) ** 0.35
    np.testing.assert_allclose(rounding.factors, factors / np.exp(np.log(factors).mean()), 1e-5)
    assert rounding.largest == pytest.approx(np.abs(tokens / rounding.factors).max(), rel=1e-5)


def test_a_channel_without_weights_or_tokens_is_no_reason_to_divide_by_zero() -> None:
    weights, tokens = matrix(), matrix(5, WIDTH)
    weights[7], tokens[:, 11] = 0, 0
    model = a_graph(helper.make_node("MatMul", ["x", "w"], ["y"]), outputs=("y",), w=weights)
    multiply_as_int8(model.graph, measure_tokens(model, [{"x": tokens}]))
    (found,) = a_session(model).run(None, {"x": tokens})
    assert np.corrcoef(found.ravel(), (tokens @ weights).ravel())[0, 1] > 0.99


def test_what_is_no_plain_product_with_a_large_matrix_is_left_alone() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["turned"], transB=1),
        helper.make_node("MatMul", ["x", "small"], ["few"]),
        helper.make_node("MatMul", ["x", f"{POOLING}w"], ["pooled"]),
    ]
    weights = {
        "w": matrix(WIDE, WIDTH),
        "small": matrix(WIDTH, MIN_ROUNDED_ELEMENTS // WIDTH),
        f"{POOLING}w": matrix(),
    }
    model = a_graph(*nodes, outputs=("turned", "few", "pooled"), **weights)
    before = model.SerializeToString()
    assert multiply_as_int8(model.graph, {"x": Rounding(FACTORS)}) == 0
    assert model.SerializeToString() == before


# --- a whole encoder -----------------------------------------------------------------------------


def a_checkpoint(folder: Path, family: str = "bert") -> Path:
    backbone = tiny_backbone(folder / "backbone", family, width=32)
    config = SelectorConfig.preset("default", width=32, reduction=4)
    build_encoder(backbone, config, max_seq_length=64).save(str(folder / "checkpoint"))
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("int8")
    options = ExportOptions(precision="int8", name="tiny")
    return export_checkpoint(a_checkpoint(folder), folder / "artifact", options)


def test_all_products_of_the_blocks_are_of_int8(exported: Artifact) -> None:
    graph = onnx.load_from_string(exported.read(MODEL)).graph
    kinds = {tensor.name: tensor for tensor in graph.initializer}
    operators = [node.op_type for node in graph.node]
    assert (
        operators.count("MatMulIntegerToFloat") == 4 * 4
    )  # query with key and value, out, up, down
    assert operators.count("QuantizeLinear") == 4 * 4
    matrices = [
        tensor
        for tensor in kinds.values()
        if len(tensor.dims) == 2
        and tensor.data_type == TensorProto.FLOAT
        and not tensor.name.startswith("pooling/")
        and np.prod(tensor.dims) >= MIN_ROUNDED_ELEMENTS
    ]
    assert not matrices


@pytest.mark.parametrize(
    ("family", "sentences"),
    [
        *((family, FEW_SENTENCES) for family in ("bert", "roberta", "distilbert", "electra")),
        ("bert", ("A lone sentence, alone.",)),
    ],
)
def test_it_is_near_the_checkpoint_and_the_same_in_any_batch(
    tmp_path: Path, family: str, sentences: tuple[str, ...]
) -> None:
    """ELECTRA's tokens are multiplied once before they are packed, which stays in float32."""
    options = ExportOptions(precision="int8", sentences=sentences)
    made = export_checkpoint(a_checkpoint(tmp_path, family), tmp_path / "artifact", options)
    assert made.manifest.precision == "int8"
    assert made.manifest.packed
    assert 0.99 <= made.manifest.parity["min_cosine"] < 1
    assert made.manifest.parity["batch_max_abs_diff"] <= 1e-6


def test_nan_reaches_the_embedding_of_its_text_and_no_other(exported: Artifact) -> None:
    """A maximum passes over NaN; what carries it on is the sum around each product."""
    model = onnx.load_from_string(exported.read(MODEL))
    encoder = OnnxEncoder(exported)
    first, second = (row.input_ids for row in encoder.tokenizer.tokenize(["the cat", "a car"]))
    table = next(
        t for t in model.graph.initializer if t.name.endswith("word_embeddings.weight_scale")
    )
    scales = numpy_helper.to_array(table).copy()
    scales[next(iter(set(first) - set(second)))] = np.nan
    table.CopyFrom(numpy_helper.from_array(scales, table.name))
    ids = np.array([first, second])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if "token_type_ids" in exported.manifest.inputs:
        inputs["token_type_ids"] = np.zeros_like(ids)
    poisoned, sound = a_session(model).run([POOLED_OUTPUT], inputs)[0]
    assert np.isnan(poisoned).all()
    assert np.isfinite(sound).all()


def test_one_thread_and_two_give_the_same(exported: Artifact) -> None:
    """A lone request may run on all threads, and one among others on a single one."""
    encoder = OnnxEncoder(exported, intra_op_num_threads=2, concurrent_runs=2)
    rows = [row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)]
    np.testing.assert_allclose(
        encoder.run(rows, all_threads=True), encoder.run(rows, all_threads=False), atol=1e-7
    )


def test_the_service_answers_with_it(exported: Artifact) -> None:
    """The canary is near enough, and a text has one embedding, alone and beside others."""
    with running_server(exported.path) as server:
        assert server.client.get("/info").json()["precision"] == "int8"
        together = server.client.post("/embed", json={"inputs": TEXTS}).json()
        alone = [server.client.post("/embed", json={"inputs": [t]}).json()[0] for t in TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_an_encoder_that_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    checkpoint = a_checkpoint(tmp_path)
    options = ExportOptions(precision="int8", standard_operators=True)
    with pytest.raises(ExportError, match=r"needs packed tokens.* Choose weight-int8\."):
        export_checkpoint(checkpoint, tmp_path / "artifact", options)
    assert not (tmp_path / "artifact").exists()
