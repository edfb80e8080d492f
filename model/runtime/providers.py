"""ONNX Runtime's execution providers: which one each device needs, and with which options.

This module does not import ONNX Runtime; `model.runtime.sessions` opens the sessions.
"""

from pathlib import Path
from typing import Literal

from s2sent.model.artifact.manifest import Manifest

Device = Literal["cpu", "cuda"]

# The provider that runs the encoder first, then those for the nodes that it does not take.
PROVIDERS: dict[Device, tuple[str, ...]] = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}

# https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
CUDA_OPTIONS = {
    # The warm-up runs the largest batch, so memory need not grow in powers of two beyond it.
    "arena_extend_strategy": "kSameAsRequested",
    # TF32 rounds every factor to 11 bits, and the rounding of a sum may differ with the batch.
    # The fast artifact for a GPU is fp16.
    "use_tf32": "0",
    # Flash (1), memory-efficient (2) and TensorRT's fused (4) attention, so not cuDNN's (8), which
    # is the default on Hopper: it plans anew for each shape of a batch in each thread, for 40 ms,
    # and 64 x 1 fell from 3,081 texts/s to 844 and 989 (benchmarks/journal/2026-11-26-gpu.md).
    "sdpa_kernel": "7",
}

# The CPU instructions (as /proc/cpuinfo names them) that multiply int8 and add in 32 bits. Without
# them x86 adds pairs of products in 16 bits, into which those of older artifacts may not fit.
VNNI = frozenset(("avx512_vnni", "avx_vnni"))
CPU_INFO = Path("/proc/cpuinfo")


class ProviderUnavailable(RuntimeError):
    """ONNX Runtime, as installed here, cannot use the requested device for this artifact."""


def provider_options(device: Device) -> list[tuple[str, dict[str, str]]]:
    """The providers for a device in their order, each with its options."""
    options = {"CUDAExecutionProvider": CUDA_OPTIONS}
    return [(name, options.get(name, {})) for name in PROVIDERS[device]]


def require_artifact_fits(manifest: Manifest, device: Device) -> None:
    """Raise ProviderUnavailable where the device cannot run this kind of graph."""
    if manifest.precision == "int8":
        _require_int8_products(manifest, device)
    if device != "cpu" and not manifest.is_for_gpu:
        raise ProviderUnavailable(
            "the graph of this artifact is for a CPU. Serve it with s2sent serve --device cuda,"
            " which converts it, or choose the device cpu."
        )


def _require_int8_products(manifest: Manifest, device: Device) -> None:
    if device != "cpu":
        raise ProviderUnavailable(
            f"an int8 artifact is for a CPU, not for {device}. Choose the device cpu, or export the"
            " checkpoint with --precision fp16."
        )
    if not (manifest.exact_without_vnni or adds_in_32_bits()):
        raise ProviderUnavailable(
            f"this processor has none of {', '.join(sorted(VNNI))}, without which products of this"
            " int8 artifact, made by an earlier version, overflow. Make it again: s2sent-train"
            " export --precision int8, or s2sent-train int8."
        )


def adds_in_32_bits() -> bool:
    """Whether this CPU adds products of any bytes in 32 bits, as far as Linux tells.

    x86 does with VNNI. A processor whose instructions are no ``flags``, such as arm64's
    ``Features``, counts as one that does.
    """
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.is_file() else []
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return not VNNI.isdisjoint(next(flags, VNNI))
