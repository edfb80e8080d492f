"""Whether this machine multiplies matrices of bfloat16 with instructions of its own."""

import torch

NO_BFLOAT16 = (
    "This processor has no instructions for bfloat16: its matrix products take some sixty times as"
    ' long as those of float32. Set [training] precision = "fp32".'
)


def has_bfloat16() -> bool:
    """Whether torch multiplies matrices of bfloat16 at about the speed of float32 or faster.

    True with a GPU. On a CPU it is what oneDNN says of itself: on x86 it needs AVX-512, without
    which torch multiplies one element at a time (0.8 beside 51 GFLOP/s on one core of a Zen 3).
    """
    if torch.cuda.is_available():
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # no public name
