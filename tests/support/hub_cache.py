"""A local cache laid out as huggingface_hub's, in place of a hub."""

from pathlib import Path

import pytest
from huggingface_hub import constants

REVISION = "0123456789abcdef0123456789abcdef01234567"


def use_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub read ``cache`` alone, as HF_HUB_CACHE and HF_HUB_OFFLINE=1 do."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def put_into_cache(cache: Path, name: str, folder: Path) -> str:
    """Put the files of ``folder`` into the cache as the model ``name``, as links to blobs."""
    model = cache / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    (model / "blobs").mkdir()
    for number, file in enumerate(each for each in folder.rglob("*") if each.is_file()):
        blob = model / "blobs" / f"{number:040}"
        blob.write_bytes(file.read_bytes())
        link = model / "snapshots" / REVISION / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return name
