"""Modules of a backbone replaced by others that compute the same and are traced to less."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class _RMSNorm(nn.Module):
    """RMSNorm in the form that ONNX Runtime knows as one operator: with a division, no rsqrt."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(weight), epsilon

    def forward(self, states: Tensor) -> Tensor:
        power = states.pow(2).mean(-1, keepdim=True) + self.epsilon
        scaled: Tensor = states / power.sqrt() * self.weight
        return scaled


def simplify(module: nn.Module) -> None:
    """Replace RMSNorms and GPT-2's Conv1Ds within ``module``, in place."""
    child: Any
    for name, child in module.named_children():
        if hasattr(child, "variance_epsilon"):
            setattr(module, name, _RMSNorm(child.weight, child.variance_epsilon))
        elif type(child).__name__ == "Gemma3RMSNorm":  # whose weights are counted from 1
            setattr(module, name, _RMSNorm(1 + child.weight, child.eps))
        elif isinstance(child, Conv1D):
            setattr(module, name, _linear(child))
        else:
            simplify(child)


def join_linears(*linears: nn.Linear) -> nn.Linear:
    """One Linear that gives what ``linears`` of the same input give, side by side."""
    weights: list[Tensor] = [each.weight for each in linears]
    biases: list[Tensor] = [each.bias for each in linears]
    joint = nn.Linear(weights[0].shape[1], sum(map(len, weights)), bias=biases[0] is not None)
    joint.weight = nn.Parameter(torch.cat(weights))
    if biases[0] is not None:
        joint.bias = nn.Parameter(torch.cat(biases))
    return joint


def _linear(conv: Any) -> nn.Linear:
    """GPT-2's Conv1D, which multiplies by its weight [in, out], as a Linear."""
    linear = nn.Linear(*conv.weight.shape)
    linear.weight = nn.Parameter(conv.weight.T.contiguous())
    linear.bias = conv.bias
    return linear
