"""Sessions are opened as the device needs it, and one that would not run there is refused."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from s2sent.model.artifact.manifest import WEIGHTS
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime import providers, sessions
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.model.runtime.lookup_tables import read_lookup_tables
from s2sent.model.runtime.providers import ProviderUnavailable
from s2sent.model.runtime.sessions import open_sessions
from tests.support.fake_runtime import FakeRuntime

CPU, CUDA = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA"))
TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city", "a red car"]


@pytest.fixture(scope="module")
def stopping_artifact(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The tiny encoder, which can also stop after its third block."""
    from s2sent.model.export.checkpoint import export_checkpoint
    from tests.support.few import FEW

    target = tmp_path_factory.mktemp("stopping") / "artifact"
    options = replace(FEW, depths=(3,), standard_operators=True)
    return export_checkpoint(tiny_checkpoint, target, options)


@pytest.fixture(scope="module")
def exits_on_gpu(exits_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The tiny encoder with exits, converted for a GPU in float32."""
    from s2sent.model.export.gpu.conversion import convert_for_gpu
    from tests.support.few import FEW_SENTENCES

    target = tmp_path_factory.mktemp("gpu") / "fp32"
    return convert_for_gpu(exits_artifact, target, "fp32", sentences=FEW_SENTENCES)


def rows(encoder: OnnxEncoder) -> list[list[int]]:
    return [list(row.input_ids) for row in encoder.tokenizer.tokenize(TEXTS)]


INT8_PRODUCTS = "int8 artifact is for a CPU, not for cuda. Choose the device cpu, or .* fp16"
X86 = "processor : 0\nflags : fpu avx2 {} sse\n"


def int8(artifact: Artifact, *, exact_without_vnni: bool = False) -> Artifact:
    manifest = replace(artifact.manifest, precision="int8", exact_without_vnni=exact_without_vnni)
    return Artifact(artifact.path, manifest)


def test_int8_products_are_for_a_cpu(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRuntime().install(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=INT8_PRODUCTS):
        OnnxEncoder(int8(tiny_artifact), device="cuda")


def test_a_graph_for_a_cpu_is_not_opened_on_a_gpu(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operators may give wrong vectors there."""
    runtime = FakeRuntime().install(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=r"is for a CPU\. Serve it with s2sent serve"):
        OnnxEncoder(tiny_artifact, device="cuda")
    assert not runtime.sessions


def test_int8_products_are_refused_where_they_would_overflow(
    tiny_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without VNNI, of those of earlier versions. Other weights do not mind."""
    monkeypatch.setattr(providers, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(X86.format("avx512f"))
    with pytest.raises(ProviderUnavailable, match=r"none of avx512_vnni, avx_vnni.* Make it again"):
        open_sessions(int8(tiny_artifact))
    assert open_sessions(int8(tiny_artifact, exact_without_vnni=True))
    assert open_sessions(tiny_artifact)


@pytest.mark.parametrize(
    "info", [X86.format("avx_vnni"), X86.format("avx512_vnni"), "Features : fp asimd\n", None]
)
def test_int8_products_are_served_where_they_do_not_overflow(
    tiny_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: str | None
) -> None:
    """ARM adds in 32 bits; where nothing is told, the canary is what decides."""
    monkeypatch.setattr(providers, "CPU_INFO", tmp_path / "cpuinfo")
    if info is not None:
        (tmp_path / "cpuinfo").write_text(info)
    assert open_sessions(int8(tiny_artifact))


def test_a_device_that_is_not_installed_is_refused_by_name(tiny_artifact: Artifact) -> None:
    """ONNX Runtime itself would go on with the CPU."""
    with pytest.raises(ProviderUnavailable, match=rf"not {CUDA}.*-m pip install 'onnxruntime-gpu"):
        OnnxEncoder(tiny_artifact, device="cuda")


def test_a_gpu_session_asks_for_cuda_first(
    gpu_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the libraries of its wheels loaded, float32 kept as it is, and no second try."""
    runtime = FakeRuntime().install(monkeypatch)
    encoder = OnnxEncoder(gpu_artifact, device="cuda")
    assert encoder.provider == CUDA
    assert list(runtime.session.providers) == [CUDA, CPU]
    assert runtime.session.providers[CUDA]["use_tf32"] == "0"
    attention = int(runtime.session.providers[CUDA]["sdpa_kernel"])
    assert attention & 8 == 0, "cuDNN's attention plans for each new shape"
    assert runtime.session.keywords == {"enable_fallback": 0, "disabled_optimizers": []}
    assert runtime.libraries_loaded == 1


def test_on_a_cpu_sums_stay_out_of_layer_norms(
    tiny_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime would put both into one operator when it loads the graph, and that is slower."""
    make, run_graph = sessions._session_options, tmp_path / "as_it_runs.onnx"

    def options(*arguments: Any) -> ort.SessionOptions:
        made = make(*arguments)
        made.optimized_model_filepath = str(run_graph)
        made.log_severity_level = 3  # it warns that this file is for this machine
        return made

    monkeypatch.setattr(sessions, "_session_options", options)
    open_sessions(tiny_artifact)
    operators = [node.op_type for node in onnx.load(run_graph).graph.node]
    assert operators.count("LayerNormalization") == 8
    assert "SkipLayerNormalization" not in operators


@pytest.fixture
def shared_tables(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was shared, one entry for each time that a graph was opened."""
    shared: list[dict[str, Any]] = []

    def read(content: bytes) -> dict[str, Any]:
        shared.append(read_lookup_tables(content))
        return shared[-1].copy()

    monkeypatch.setattr(sessions, "read_lookup_tables", read)
    return shared


def test_sessions_on_a_cpu_look_up_rows_in_one_table(
    tiny_artifact: Artifact, shared_tables: list[dict[str, Any]]
) -> None:
    """Who changes the one table changes what both sessions give: neither has a copy."""
    encoder = OnnxEncoder(tiny_artifact, intra_op_num_threads=2, concurrent_runs=2)
    before = encoder.run(rows(encoder))
    (tables,) = shared_tables
    assert len(tables) == 3  # words, positions and token types
    for table in tables.values():
        table[:] = table[::-1]
    together, alone = (
        encoder.run(rows(encoder), all_threads=all_threads) for all_threads in (False, True)
    )
    np.testing.assert_array_equal(together, alone)
    assert not np.allclose(alone, before, atol=1e-3)


@pytest.mark.parametrize("depth", [3, None])
def test_sharing_changes_no_bit(
    stopping_artifact: Artifact, monkeypatch: pytest.MonkeyPatch, depth: int | None
) -> None:
    sharing = OnnxEncoder(stopping_artifact, intra_op_num_threads=2, concurrent_runs=2)
    monkeypatch.setattr(sessions, "read_lookup_tables", lambda _: {})
    apart = OnnxEncoder(stopping_artifact, intra_op_num_threads=2, concurrent_runs=2)
    for all_threads in (True, False):
        np.testing.assert_array_equal(
            sharing.run(rows(sharing), all_threads=all_threads, depth=depth),
            apart.run(rows(apart), all_threads=all_threads, depth=depth),
        )


def test_tables_live_as_long_as_any_session_that_reads_them(
    tiny_artifact: Artifact, shared_tables: list[dict[str, Any]]
) -> None:
    """ONNX Runtime has a bare pointer: without the table it would read whatever is there then."""
    first, second = open_sessions(tiny_artifact, threads=(2, 1))
    tables = [weakref.ref(table) for table in shared_tables.pop().values()]
    del first
    gc.collect()
    assert all(table() is not None for table in tables)
    del second
    gc.collect()
    assert all(table() is None for table in tables)


def test_on_a_gpu_the_graphs_of_all_depths_share_one_copy_of_the_weights(
    exits_on_gpu: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of the file of weights are put on the card once, whatever graphs read them."""
    runtime = FakeRuntime().install(monkeypatch)
    OnnxEncoder(exits_on_gpu, device="cuda")
    assert len(runtime.sessions) == 4
    file = exits_on_gpu.manifest.files[WEIGHTS]
    assert 0 < runtime.bytes_placed <= file.bytes


def test_depths_share_their_weights_in_place(
    exits_on_gpu: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who changes a weight changes what every depth gives: none has a copy."""
    copies: dict[int, Any] = {}

    def placed(array: Any, _device: str, _placed: Any) -> ort.OrtValue:
        copy = copies.setdefault(array.ctypes.data, np.array(array))
        return ort.OrtValue.ortvalue_from_numpy(copy)

    monkeypatch.setattr(sessions, "_placed", placed)
    encoder = OnnxEncoder(exits_on_gpu)
    before = {depth: encoder.run(rows(encoder), depth=depth) for depth in (2, None)}
    vocabulary = encoder.tokenizer.vocab_size
    (words,) = [copy for copy in copies.values() if copy.shape == (vocabulary, 32)]
    words[:] = words[::-1]
    for depth, embeddings in before.items():
        assert not np.allclose(encoder.run(rows(encoder), depth=depth), embeddings, atol=1e-3)


def test_a_silent_fallback_to_the_cpu_is_refused(
    gpu_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where CUDA's libraries are missing ONNX Runtime logs it and opens a session on the CPU."""
    FakeRuntime(offered=[CPU]).install(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=f"{CUDA} could not be started.*Check the driver"):
        OnnxEncoder(gpu_artifact, device="cuda")


def test_a_provider_that_fails_is_refused_in_one_sentence(
    gpu_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRuntime(failure=RuntimeError("No device was found.\n")).install(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=r": No device was found\. Check .*cuDNN, or"):
        OnnxEncoder(gpu_artifact, device="cuda")


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "Gemm", "LayerNormalization"])
def test_an_encoder_that_is_partly_on_the_cpu_is_refused(
    gpu_artifact: Artifact, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    """One node without a kernel costs a round trip of the states through main memory."""
    FakeRuntime(placed={operator: CPU}).install(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=f"{CUDA} has no kernel for {operator}.*Export"):
        OnnxEncoder(gpu_artifact, device="cuda")


def test_shapes_may_be_computed_on_the_cpu(
    gpu_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime puts them there, where they are needed."""
    shapes = dict.fromkeys(("Shape", "Gather", "Slice", "Add", "Mul", "Div", "Concat"), CPU)
    FakeRuntime(placed=shapes).install(monkeypatch)
    assert OnnxEncoder(gpu_artifact, device="cuda").provider == CUDA


@pytest.mark.parametrize("depth", [3, None])
def test_a_bound_run_computes_what_a_plain_run_does(
    exits_on_gpu: Artifact, monkeypatch: pytest.MonkeyPatch, depth: int | None
) -> None:
    """Inputs are copied and waited for before the run; only the pooled rows come back."""
    plain = OnnxEncoder(exits_on_gpu)
    runtime = FakeRuntime().install(monkeypatch)
    bound = OnnxEncoder(exits_on_gpu, device="cuda")
    expected = plain.run(rows(plain), depth=depth)
    np.testing.assert_array_equal(bound.run(rows(bound), depth=depth), expected)
    (binding,) = [each for session in runtime.sessions for each in session.bindings]
    inputs = {f"copy {name}" for name in exits_on_gpu.manifest.inputs}
    assert set(binding.calls[:-3]) == inputs
    assert binding.calls[-3:] == ["take pooled_embedding on cpu", "wait for copies", "run"]


def test_on_a_gpu_runs_of_several_threads_wait_for_each_other(
    exits_on_gpu: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once gave wrong embeddings there, and depths have sessions of their own. Each run has
    its own binding, so its own rows."""
    runtime = FakeRuntime().install(monkeypatch)
    encoder = OnnxEncoder(exits_on_gpu, device="cuda", intra_op_num_threads=2, concurrent_runs=4)
    asked = [(row, depth) for row in rows(encoder) for depth in (2, None)]
    one_by_one = [encoder.run([row], depth=depth) for row, depth in asked] * 8
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda one: encoder.run([one[0]], all_threads=False, depth=one[1]), asked * 8)
        )
    np.testing.assert_allclose(together, one_by_one, atol=1e-6)
    bindings = [each for session in runtime.sessions for each in session.bindings]
    assert len(bindings) == len(asked) * 9
    assert runtime.most_at_once == 1
