"""How ONNX Runtime's sessions are opened on each device, and what is proved before they serve.

ONNX Runtime goes on with the CPU where it cannot have a provider or where a provider has no kernel
for a node, and only logs it. Here both are errors.

On a GPU runs side by side share one session: each takes a CUDA stream of its own, with its own
cuBLAS handle, from a pool in the session, so further sessions would only hold the weights once
more.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# ONNX Runtime 1.31 sends usage reports to its maker, and keeps them in the user's cache folder,
# unless this variable is set before its first import: no later call can prevent it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.artifact.reader import Artifact
from model.runtime.lookup_tables import read_lookup_tables

Device = Literal["cpu", "cuda", "tensorrt"]

# What runs the encoder, then what takes the nodes that this leaves.
PROVIDERS: dict[Device, tuple[str, ...]] = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
}

CUDA_OPTIONS = {
    # The warm-up runs the largest batch: memory grows to what that takes, not to a power of two.
    "arena_extend_strategy": "kSameAsRequested",
    # float32 stays float32. TF32 rounds every factor to 11 bits, so the last bit of a sum, which
    # may differ with the batch, can decide a rounding. The fast artifact for a GPU is fp16.
    "use_tf32": "0",
}

# What an encoder's time goes into. What else is found on the CPU computes shapes or chooses a
# branch; ONNX Runtime puts that there on purpose, where its results are needed. Its own option
# session.disable_cpu_ep_fallback counts those nodes too and would refuse every graph.
ENCODER_OPERATORS = frozenset(
    ("Attention", "MultiHeadAttention", "MatMul", "FusedMatMul", "Gemm", "Softmax")
    + ("EmbedLayerNormalization", "SkipLayerNormalization", "LayerNormalization")
    + ("Gelu", "BiasGelu", "FastGelu", "Erf")
)

SPIN_MICROSECONDS = "50"

# Without one of these x86 adds products of bytes in 16 bits, which overflow without a sign of it.
VNNI = frozenset(("avx512_vnni", "avx_vnni"))
CPU_INFO = Path("/proc/cpuinfo")

# Where ONNX Runtime would slow a graph down: the reason is in `model.export.graph.fuse`.
UNWANTED_FUSIONS: dict[Device, list[str]] = {
    "cpu": ["SkipLayerNormFusion"],
    "cuda": [],
    "tensorrt": [],
}


class ProviderUnavailable(RuntimeError):
    """The device that was asked for is not one this installation of ONNX Runtime can use."""


@dataclass(frozen=True, kw_only=True)
class TensorRTPlan:
    """What TensorRT has to know when it builds an engine: it is built for a range of shapes.

    Building takes minutes; an engine kept in the folder ``cache`` is loaded in seconds. It fits
    one artifact, GPU model and version of TensorRT, and is built again where one of them differs.
    """

    max_batch_texts: int = 128
    max_batch_tokens: int = 16_384
    cache: Path | None = None


def open_sessions(
    artifact: Artifact,
    device: Device,
    *,
    threads: Sequence[int] = (0,),
    cpus: Sequence[int] = (),
    tensorrt: TensorRTPlan | None = None,
) -> list[ort.InferenceSession]:
    """Open the artifact's graph on ``device``, and prove that the encoder runs there.

    Returns a session for each count of ``threads``, where 0 is one for each core. On a CPU they
    share the tables that they look rows up in, and one with as many threads as ``cpus`` keeps its
    own threads on all of these but the first. Raises ProviderUnavailable when the device cannot
    be used, or not for this graph.
    """
    _require_provider(device)
    if device == "tensorrt":
        _refuse_what_tensorrt_lacks(artifact)
    if artifact.manifest.precision == "int8":
        _require_int8_products(device)
    if device != "cpu":
        return [_open_on_gpu(artifact, device, count, tensorrt) for count in threads]
    options = [_session_options(artifact, count, cpus) for count in threads]
    with closing(artifact.take_graph()) as graph:
        tables = {
            name: ort.OrtValue.ortvalue_from_numpy(table)  # without a copy
            for name, table in read_lookup_tables(graph.content).items()
        }
        return [_open_on_cpu(graph.source, each, tables) for each in options]


def run_bound(
    session: ort.InferenceSession, output: str, inputs: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """One run whose inputs are copied to where the graph reads them before it starts.

    May be called from several threads: the binding is the call's own. Of the outputs only
    ``output``, the pooled rows [n, dim], is copied back.
    """
    binding = session.io_binding()
    for name, array in inputs.items():
        # `bind_cpu_input` would refuse an input that has a default value, as depth has.
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output(output, "cpu")
    # The copies are in the default stream, which the stream of a run does not wait for.
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    embeddings: NDArray[np.float32] = binding.copy_outputs_to_cpu()[0]
    return embeddings


def tensorrt_options(artifact: Artifact, plan: TensorRTPlan) -> dict[str, str]:
    """Options of TensorRT's provider for an artifact.

    One profile covers every batch: from one token to ``max_batch_texts`` rows of the longest text,
    tuned for a full batch of rows an eighth as long.
    """
    manifest = artifact.manifest
    longest = manifest.max_seq_length
    usual = max(1, longest // 8)
    rows = max(1, min(plan.max_batch_texts, plan.max_batch_tokens // usual))
    options = {
        "trt_profile_min_shapes": _shapes(manifest.inputs, 1, 1),
        "trt_profile_opt_shapes": _shapes(manifest.inputs, rows, usual),
        "trt_profile_max_shapes": _shapes(manifest.inputs, plan.max_batch_texts, longest),
        # An artifact that was proved in float32 is not rounded further behind the parity report.
        "trt_fp16_enable": str(int(manifest.precision == "fp16")),
        # The squares of a LayerNorm's inputs do not fit into float16.
        "trt_layer_norm_fp32_fallback": "1",
    }
    if plan.cache:
        options |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(plan.cache),
            "trt_engine_cache_prefix": artifact.fingerprint[:16],
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(plan.cache),
        }
    return options


def _shapes(inputs: tuple[str, ...], rows: int, length: int) -> str:
    return ",".join(f"{name}:{rows}x{length}" for name in inputs)


def _require_provider(device: Device) -> None:
    available = ort.get_available_providers()
    if PROVIDERS[device][0] not in available:
        raise ProviderUnavailable(
            f"ONNX Runtime {ort.__version__} here has {', '.join(available)}, not"
            f" {PROVIDERS[device][0]}. Install s2sent[gpu] without s2sent[cpu] beside it, or choose"
            " the device cpu."
        )


def _refuse_what_tensorrt_lacks(artifact: Artifact) -> None:
    if fused := artifact.manifest.fused:
        raise ProviderUnavailable(
            f"the graph has {', '.join(fused)}, which are ONNX Runtime's own operators and unknown"
            " to TensorRT. Export the checkpoint with --standard-operators, or choose the device"
            " cuda."
        )
    if depths := artifact.manifest.depths:
        # A compiler may take an input's default value for a constant and answer at full depth.
        raise ProviderUnavailable(
            f"the graph can stop at depth {', '.join(map(str, depths))}, which was never tried with"
            " TensorRT. Export the checkpoint without --depths, or choose the device cuda."
        )


def _require_int8_products(device: Device) -> None:
    if device != "cpu":
        raise ProviderUnavailable(
            f"an int8 artifact is for a CPU, not for {device}. Choose the device cpu, or export the"
            " checkpoint with --precision fp16."
        )
    if not multiplies_int8():
        raise ProviderUnavailable(
            f"this processor has none of {', '.join(sorted(VNNI))}, without which products of int8"
            " overflow. Serve a weight-int8 artifact: the one this was made of, or an export."
        )


def multiplies_int8() -> bool:
    """Whether products of int8 are exact here: on x86 with VNNI, as far as Linux tells."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.is_file() else []
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return not VNNI.isdisjoint(next(flags, VNNI))


def _session_options(
    artifact: Artifact, threads: int, cpus: Sequence[int] = ()
) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if len(cpus) == threads > 1:  # the caller is the first of the threads
        others = ";".join(str(cpu + 1) for cpu in cpus[1:])  # ONNX Runtime counts from 1
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    options.inter_op_num_threads = 1
    # Plans made for one shape are of no use to the next batch, and an arena keeps for ever what
    # the largest one took; without it memory goes back, at no loss of speed that could be measured.
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    # Threads wait this long for the next operator before they sleep. The default, a millisecond
    # and more, burns time that the event loop and other runs need; none at all slows a lone run.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
    if artifact.manifest.depths:
        options.log_severity_level = 3  # it warns that depth has a default, which is what we want
    return options


def _open_on_cpu(
    graph: str | bytes, options: ort.SessionOptions, tables: Mapping[str, ort.OrtValue]
) -> ort.InferenceSession:
    for name, table in tables.items():
        options.add_initializer(name, table)
    session = _create(graph, options, "cpu", {})
    session._tables = tables  # ONNX Runtime points into them and does not keep them alive
    return session


def _open_on_gpu(
    artifact: Artifact, device: Device, threads: int, tensorrt: TensorRTPlan | None
) -> ort.InferenceSession:
    ort.preload_dlls()  # CUDA and cuDNN from wheels, where the loader would not look
    options = _session_options(artifact, threads)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    provider_options: dict[str, dict[str, str]] = {"CUDAExecutionProvider": CUDA_OPTIONS}
    if device == "tensorrt":
        plan = tensorrt or TensorRTPlan()
        provider_options["TensorrtExecutionProvider"] = tensorrt_options(artifact, plan)
    try:
        session = _create(_take_bytes(artifact), options, device, provider_options)
    except Exception as error:  # ONNX Runtime raises classes of its own
        raise _not_started(device, str(error).strip().rstrip(".")) from error
    if session.get_providers()[0] != PROVIDERS[device][0]:
        raise _not_started(device, f"ONNX Runtime offered {', '.join(session.get_providers())}")
    _require_encoder_on(session, PROVIDERS[device][0])
    return session


def _take_bytes(artifact: Artifact) -> bytes:
    """The graph as bytes: TensorRT takes a path for a part of the engine's name in its cache."""
    with closing(artifact.take_graph()) as graph:
        return bytes(graph.content)


def _create(
    graph: str | bytes,
    options: ort.SessionOptions,
    device: Device,
    provider_options: Mapping[str, dict[str, str]],
) -> ort.InferenceSession:
    """A session of ``graph``, verified bytes or a file of them that nobody can exchange."""
    providers = [(name, provider_options.get(name, {})) for name in PROVIDERS[device]]
    # With the fallback it would print what failed on stdout and open a session on the CPU.
    session = ort.InferenceSession(
        graph,
        options,
        providers=providers,
        enable_fallback=0,
        disabled_optimizers=UNWANTED_FUSIONS[device],
    )
    session._model_bytes = None  # it would keep them for a change of providers, which there is none
    return session


def _not_started(device: Device, reason: str) -> ProviderUnavailable:
    libraries = "CUDA, cuDNN and TensorRT" if device == "tensorrt" else "CUDA and cuDNN"
    return ProviderUnavailable(
        f"{PROVIDERS[device][0]} could not be started: {reason}. Check the driver and the libraries"
        f" of {libraries}, or choose the device cpu."
    )


def _require_encoder_on(session: ort.InferenceSession, provider: str) -> None:
    elsewhere = {
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != provider
        for node in part.get_nodes()
    }
    if misplaced := sorted(elsewhere & ENCODER_OPERATORS):
        raise ProviderUnavailable(
            f"{provider} has no kernel for {', '.join(misplaced)} of this graph, which would run"
            f" elsewhere. Export the checkpoint again with ONNX Runtime {ort.__version__}, or"
            " choose another device."
        )
