"""ONNX Runtime sessions over an artifact's graph, opened and checked for each device.

ONNX Runtime falls back to the CPU when a provider cannot be loaded or has no kernel for a node, and
only logs it. Here both raise ProviderUnavailable.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# ONNX Runtime 1.31 sends usage reports to its maker, and keeps them in the user's cache folder,
# unless this variable is set before its first import: no later call can prevent it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact, graph_at
from s2sent.model.artifact.weights_file import weights_of
from s2sent.model.runtime.lookup_tables import read_lookup_tables
from s2sent.model.runtime.providers import (
    PROVIDERS,
    Device,
    ProviderUnavailable,
    provider_options,
    require_artifact_fits,
)

# The operators that take an encoder's time, which must run on the GPU. The other nodes that may be
# on the CPU compute shapes or choose a branch; ONNX Runtime puts them there on purpose. Its own
# option session.disable_cpu_ep_fallback counts those too and would refuse every graph.
ENCODER_OPERATORS = frozenset(
    (
        "Attention",
        "MultiHeadAttention",
        "PackedMultiHeadAttention",
        "MatMul",
        "FusedMatMul",
        "Gemm",
        "Softmax",
    )
    + ("EmbedLayerNormalization", "SkipLayerNormalization", "LayerNormalization")
    + ("Gelu", "BiasGelu", "FastGelu", "Erf")
)

# ONNX Runtime writes its log to the process's stderr, past the service's log and in colours. What
# it calls an error it raises too, and the service logs what is raised.
SILENT = 4

# ONNX Runtime fuses the residual sum into the layer norm of a graph whose tokens are not packed,
# with a CPU kernel that makes a batch on one thread 9 to 16 % slower.
UNWANTED_FUSIONS: dict[Device, list[str]] = {
    "cpu": ["SkipLayerNormFusion"],
    "cuda": [],
}


def open_sessions(
    artifact: Artifact, *, threads: Sequence[int] = (0,)
) -> list[ort.InferenceSession]:
    """Open a session on a CPU for each count of ``threads``; 0 is one thread for each core.

    The sessions share their lookup tables. Each keeps the memory of its runs for the next one,
    except of runs with `memory_returning_options`. Raises ProviderUnavailable for a graph that this
    processor cannot run.
    """
    require_artifact_fits(artifact.manifest, "cpu")
    options = [_session_options(count) for count in threads]
    graph = artifact.take_graph()
    tables = _values(read_lookup_tables(graph))  # without a copy
    weights = _values(_weights_apart(graph, artifact.take_weights()))
    return [_open_sharing(graph, each, "cpu", tables, weights) for each in options]


class SessionsByDepth:
    """Opens the sessions of an artifact with a graph for each depth.

    They share their weights, which are on ``device`` once. Raises ProviderUnavailable when the
    device cannot be used.
    """

    def __init__(self, artifact: Artifact, device: Device, *, threads: int = 0) -> None:
        _require_provider(device)
        require_artifact_fits(artifact.manifest, device)
        if device != "cpu":
            ort.preload_dlls()  # CUDA and cuDNN from wheels, where the loader would not look
        self._artifact, self._device, self._threads = artifact, device, threads
        self._weights = artifact.take_weights()
        self._placed: dict[tuple[Any, ...], ort.OrtValue] = {}

    def open(self, *, unpadded: bool = False) -> dict[int | None, ort.InferenceSession]:
        """A session for each depth, and None for all blocks; ``unpadded`` as in `graph_at`.

        Raises ProviderUnavailable when the device cannot be used for such a graph.
        """
        opened = {}
        for depth in (None, *self._artifact.manifest.depths):
            graph = self._artifact.read(graph_at(depth, unpadded=unpadded))
            arrays = _weights_apart(graph, self._weights)
            shared = {
                name: _placed(array, self._device, self._placed) for name, array in arrays.items()
            }
            options = _session_options(self._threads)
            opened[depth] = _open_sharing(graph, options, self._device, shared, _values(arrays))
        return opened


def outputs_of(session: ort.InferenceSession) -> frozenset[str]:
    """The names of what the graph of a session gives."""
    return frozenset(output.name for output in session.get_outputs())


def run_bound(
    session: ort.InferenceSession, output: str, inputs: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """Run a session on a GPU, with the inputs copied to the device before the run starts.

    One call at a time: see `model.runtime.encoder.OnnxEncoder`. Only ``output``, such as the pooled
    rows [n, dim], is copied back.
    https://onnxruntime.ai/docs/api/python/api_summary.html#iobinding
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


def memory_returning_options() -> ort.RunOptions:
    """Options of a run at whose end the session's arena returns the memory it does not use.

    https://onnxruntime.ai/docs/get-started/with-c.html (memory arena shrinkage)
    """
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _require_provider(device: Device) -> None:
    available = ort.get_available_providers()
    if PROVIDERS[device][0] not in available:
        raise ProviderUnavailable(
            f"ONNX Runtime {ort.__version__} here has {', '.join(available)}, not"
            f" {PROVIDERS[device][0]}. Run {sys.executable} -m pip uninstall onnxruntime and then"
            f" {sys.executable} -m pip install 'onnxruntime-gpu[cuda,cudnn]', or choose the device"
            " cpu."
        )


def _session_options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if threads == 1:
        options.enable_mem_pattern = False  # one would be kept for each shape of a batch
    options.log_severity_level = SILENT
    return options


def _open_sharing(
    graph: bytes,
    options: ort.SessionOptions,
    device: Device,
    shared: Mapping[str, ort.OrtValue],
    weights: Mapping[str, ort.OrtValue],
) -> ort.InferenceSession:
    """A session that uses the values ``shared`` in place, and reads ``weights`` of another file.

    ONNX Runtime uses a value in place only where it is on the device on which it is needed.
    """
    for name, value in shared.items():
        options.add_initializer(name, value)
    options.add_external_initializers([*weights], [*weights.values()])
    opened = (
        _create(graph, options, device) if device == "cpu" else _open_on_gpu(graph, options, device)
    )
    # ONNX Runtime points into them and does not keep them alive.
    opened._tables = [shared, weights]
    return opened


def _weights_apart(graph: bytes, weights: bytes | None) -> dict[str, NDArray[Any]]:
    """The verified weights of a graph that has them in another file, which must not be opened."""
    return {
        weight.name: np.frombuffer(weight.content, weight.kind).reshape(weight.shape)
        for weight in (weights_of(graph, memoryview(weights)) if weights is not None else ())
    }


def _values(arrays: Mapping[str, NDArray[Any]]) -> dict[str, ort.OrtValue]:
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


def _placed(
    array: NDArray[Any], device: Device, placed: dict[tuple[Any, ...], ort.OrtValue]
) -> ort.OrtValue:
    """The array on the device, once for each place in the file of weights."""
    place = (array.ctypes.data, array.dtype, array.shape)
    if place not in placed:
        placed[place] = ort.OrtValue.ortvalue_from_numpy(array, device)
    return placed[place]


def _open_on_gpu(graph: bytes, options: ort.SessionOptions, device: Device) -> ort.InferenceSession:
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = _create(graph, options, device)
    except Exception as error:  # ONNX Runtime raises classes of its own
        raise _not_started(device, str(error).strip().rstrip(".")) from error
    if session.get_providers()[0] != PROVIDERS[device][0]:
        raise _not_started(device, f"ONNX Runtime offered {', '.join(session.get_providers())}")
    _require_encoder_on(session, PROVIDERS[device][0])
    return session


def _create(graph: bytes, options: ort.SessionOptions, device: Device) -> ort.InferenceSession:
    """A session of ``graph``."""
    # With the fallback it would print what failed on stdout and open a session on the CPU.
    session = ort.InferenceSession(
        graph,
        options,
        providers=provider_options(device),
        enable_fallback=0,
        disabled_optimizers=UNWANTED_FUSIONS[device],
    )
    session._model_bytes = None  # kept for a change of providers, which never happens here
    return session


def _not_started(device: Device, reason: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"{PROVIDERS[device][0]} could not be started: {reason}. Check the driver and the libraries"
        " of CUDA and cuDNN, or choose the device cpu."
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
