"""ONNX Runtime's execution providers: which one each device needs, and with which options.

This module does not import ONNX Runtime; `model.runtime.sessions` opens the sessions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from s2sent.model.artifact.manifest import Manifest
from s2sent.model.artifact.reader import Artifact

Device = Literal["cpu", "cuda", "tensorrt"]

# The provider that runs the encoder first, then those for the nodes that it does not take.
PROVIDERS: dict[Device, tuple[str, ...]] = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
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


@dataclass(frozen=True, kw_only=True)
class TensorRTPlan:
    """The range of shapes that a TensorRT engine is built for, and the folder that keeps it.

    Building takes minutes; loading from the folder ``cache`` takes seconds. A cached engine fits
    one artifact, GPU model and TensorRT version, and is built again where one of them differs.
    """

    max_batch_texts: int = 128
    max_batch_tokens: int = 16_384
    cache: Path | None = None


def provider_options(
    artifact: Artifact, device: Device, plan: TensorRTPlan | None = None
) -> list[tuple[str, dict[str, str]]]:
    """The providers for a device in their order, each with its options."""
    options = {"CUDAExecutionProvider": CUDA_OPTIONS}
    if device == "tensorrt":
        options["TensorrtExecutionProvider"] = tensorrt_options(artifact, plan or TensorRTPlan())
    return [(name, options.get(name, {})) for name in PROVIDERS[device]]


def tensorrt_options(artifact: Artifact, plan: TensorRTPlan) -> dict[str, str]:
    """Options of the TensorRT provider for an artifact.

    One profile covers every batch: from one token to ``max_batch_texts`` rows of the longest text,
    tuned for a full batch of rows an eighth as long.
    https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
    """
    manifest = artifact.manifest
    longest = manifest.max_seq_length
    usual = max(1, longest // 8)
    rows = max(1, min(plan.max_batch_texts, plan.max_batch_tokens // usual))
    options = {
        "trt_profile_min_shapes": _shapes(manifest.inputs, 1, 1),
        "trt_profile_opt_shapes": _shapes(manifest.inputs, rows, usual),
        "trt_profile_max_shapes": _shapes(manifest.inputs, plan.max_batch_texts, longest),
        # Only what was exported, and compared with torch, in fp16 runs in fp16.
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


def require_artifact_fits(manifest: Manifest, device: Device) -> None:
    """Raise ProviderUnavailable where the device cannot run this kind of graph."""
    if device == "tensorrt":
        _refuse_what_tensorrt_lacks(manifest)
    if manifest.precision == "int8":
        _require_int8_products(manifest, device)


def _refuse_what_tensorrt_lacks(manifest: Manifest) -> None:
    if manifest.fused:
        raise ProviderUnavailable(
            f"the graph has {', '.join(manifest.fused)}, which are ONNX Runtime's own operators and"
            " unknown to TensorRT. Export the checkpoint with --standard-operators, or choose the"
            " device cuda."
        )
    if manifest.depths:
        # A compiler may take an input's default value for a constant and answer at full depth.
        raise ProviderUnavailable(
            f"the graph can stop at depth {', '.join(map(str, manifest.depths))}, which was never"
            " tried with TensorRT. Export the checkpoint without --depths, or choose the device"
            " cuda."
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
