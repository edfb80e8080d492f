"""Which settings of a backbone no graph of it can have, whatever the length of a text."""

from typing import Any

from s2sent.model.export.options import ExportError, ExportOptions

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def require_traceable(config: Any, options: ExportOptions) -> None:
    """Raise `ExportError` for a backbone of which a graph would be another function, or none."""
    settings, kind = config.to_dict(), config.model_type
    if any((settings.get(name) or 0) > 1 for name in EXPERTS):
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
