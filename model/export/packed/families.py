"""Which backbones are exported from their own layers on packed tokens, by their ``model_type``."""

from collections.abc import Sequence
from typing import Any

from s2sent.model.export.packed.deberta import PackedDeberta
from s2sent.model.export.packed.decoder import PackedDecoder
from s2sent.model.export.packed.encoder import PackedEncoder
from s2sent.model.export.packed.modernbert import PackedModernBert
from s2sent.model.export.packed.mpnet import PackedMPNet
from s2sent.model.export.packed.t5 import PackedT5
from s2sent.model.network.transformer import is_causal

ENCODERS: dict[str, type[PackedEncoder]] = {
    "deberta-v2": PackedDeberta,  # DeBERTa v3 too
    "modernbert": PackedModernBert,
    "mpnet": PackedMPNet,
    "t5": PackedT5,
}


BY_ATTENTION = ("gemma3_text",)  # transformers' own, where the tokens see both sides


def has_packed_form(config: Any) -> bool:
    """Whether a backbone of this configuration has a form on packed tokens here."""
    return config.model_type in (*ENCODERS, *BY_ATTENTION) or is_causal(config)


def is_only_packed(config: Any) -> bool:
    """Whether such a backbone has no other form here: decoders, and transformers' DeBERTa.

    That one has branches, which cannot be cut at the block states.
    """
    return config.model_type in ("deberta-v2", *BY_ATTENTION) or is_causal(config)


def pack_backbone(
    backbone: Any, prefix: Sequence[int] = (), *, fused: bool
) -> PackedEncoder | PackedDecoder:
    """The packed form of a backbone, which may change it.

    ``prefix`` are the tokens that stand before every text of a decoder; with ``fused`` attention is
    ONNX Runtime's own operator.
    """
    if is_causal(backbone.config):
        return PackedDecoder(backbone, prefix, fused=fused)
    if backbone.config.model_type in BY_ATTENTION:
        return PackedDecoder(backbone, fused=fused)
    family: Any = ENCODERS[backbone.config.model_type]
    packed: PackedEncoder = family(backbone, fused=fused)
    return packed
