"""Refuses backbones of which a graph would be another function, whatever the length of a text."""

from typing import Any

from torch import nn

from s2sent.model.export.options import ExportError, ExportOptions

# Of modules; configurations name experts under other names yet, and of blocks that have none.
EXPERTS = ("num_experts", "n_routed_experts", "moe_num_experts")


def require_traceable(backbone: Any, options: ExportOptions) -> None:
    """Raise `ExportError` for a backbone of which a graph would be another function, or none."""
    settings, kind = backbone.config.to_dict(), backbone.config.model_type
    if any(map(_chooses_experts, backbone.modules())):
        raise ExportError(
            f"this {kind} chooses experts for each token, and a graph keeps those that the traced"
            " text chose: choose a backbone without experts."
        )
    if settings.get("pruned_heads") and not options.standard_operators:
        raise ExportError(
            f"this {kind} has pruned heads, and ONNX Runtime's attention needs as many in each"
            " block: export it with --standard-operators."
        )
    width, last = settings.get("hidden_size"), settings.get("word_embed_proj_dim")
    if options.depths and last not in (None, width):  # OPT's projection
        raise ExportError(
            f"the blocks of this {kind} give {width} numbers a token and the backbone {last}, so"
            " it cannot stop early: export it without depths."
        )


def _chooses_experts(module: nn.Module) -> bool:
    counts = (getattr(module, name, None) for name in EXPERTS)
    return hasattr(module, "experts") or any(isinstance(n, int) and n > 1 for n in counts)
