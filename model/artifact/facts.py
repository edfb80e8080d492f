"""What a manifest says of an encoder, as names and values for people."""

from s2sent.model.artifact.manifest import Manifest

Facts = list[tuple[str, str]]

MEGABYTE = 1e6


def facts_of(manifest: Manifest) -> Facts:
    """What the encoder is, and how large."""
    blocks = manifest.full_depth or ""
    depths = "".join(f"{depth}, " for depth in manifest.depths)
    size = sum(entry.bytes for entry in manifest.files.values())
    also = "; int8 with --precision int8" if manifest.converts_to_int8 else ""
    return [
        ("name", manifest.name),
        ("backbone", manifest.backbone_name),
        ("size", f"{size / MEGABYTE:.1f} MB"),
        ("dimensions", str(manifest.dim)),
        ("longest text", f"{manifest.max_seq_length} tokens"),
        ("depths", f"{depths}all {blocks} blocks".replace("  ", " ")),
        ("precision", manifest.precision + also),
        ("prompts", ", ".join(manifest.prompts) or "none"),
    ]


def scores_of(manifest: Manifest) -> Facts:
    """How it scored, Spearman x 100; that an int8 conversion is not measured."""
    if not manifest.scores and manifest.precision in ("int8", "fp16"):
        what = (
            f"not measured on this {manifest.precision} conversion; those of the model before are"
            " not its own"
        )
        return [("scores", what)]
    return [(task, f"{score:.2f}") for task, score in manifest.scores.items()]
