"""A folder that holds a backbone alone, which is no encoder: told without loading a library."""

from pathlib import Path

from s2sent.model.artifact.manifest import MANIFEST

MODULES_FILE = "modules.json"  # where sentence-transformers lists the modules of a checkpoint


def told_of_bare(folder: Path) -> str | None:
    """What to say of a folder with a backbone and no pooling; None for any other folder."""
    others = (MODULES_FILE, MANIFEST, "adapter_config.json")
    if not (folder / "config.json").is_file() or any((folder / n).is_file() for n in others):
        return None
    return (
        f"{folder} holds a backbone alone, and nothing says how its tokens are pooled"
        f" ({MODULES_FILE}): let sentence-transformers add mean pooling, by"
        f" SentenceTransformer({str(folder)!r}).save(NEW_FOLDER), and export that, or train it with"
        " s2sent-train fit, a decoder with a template in [backbone]."
    )
