"""Spatial selection: the gate that gives each block and feature of a sentence its weight."""

import torch
from torch import Tensor, nn

from .selector_config import SelectorConfig

INIT_STD = 0.02


class SpatialSelection(nn.Module):
    """The gate: one weight per block and feature, computed from f (Eq. 3 and 4)."""

    def __init__(self, config: SelectorConfig) -> None:
        super().__init__()
        self.config = config
        hidden, outputs = config.width // config.reduction, config.num_heads * config.width
        self.reduce = nn.Linear(config.width, hidden, bias=config.bias)
        self.expand = nn.Linear(hidden, outputs, bias=config.bias)
        self.activation = nn.ReLU() if config.activation == "relu" else nn.Tanh()
        norm = {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[config.norm]
        self.norms = nn.ModuleList(norm(config.width, eps=1e-6) for _ in range(config.num_heads))
        for linear in (self.reduce, self.expand):
            nn.init.normal_(linear.weight, std=INIT_STD)
            if config.bias:
                nn.init.zeros_(linear.bias)

    def forward(self, f: Tensor, num_blocks: int) -> Tensor:
        """Weights [N, ..., D] from f [..., D]; fewer blocks than heads use the last heads."""
        z = self.activation(self.reduce(f.to(self.reduce.weight.dtype)))
        parts = self.expand(z).chunk(len(self.norms), dim=-1)
        gates = torch.stack([norm(part) for norm, part in zip(self.norms, parts, strict=True)])
        if self.config.spatial_selection == "1d":
            return self._normalise(gates).expand(num_blocks, *f.shape) / num_blocks
        return self._normalise(gates[-num_blocks:])

    def _normalise(self, gates: Tensor) -> Tensor:
        if self.config.weight_norm == "softmax_logits":
            return gates.softmax(0)
        excitation = gates.sigmoid()
        if self.config.weight_norm == "softmax_blocks":
            return excitation.softmax(0)
        if self.config.weight_norm == "none":
            return excitation
        gain = excitation.exp()
        return gain / gain.sum() if self.config.weight_norm == "global" else gain
