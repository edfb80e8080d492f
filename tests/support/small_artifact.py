"""Artifacts of a few bytes, whose graph computes nothing, for tests of the artifact folder."""

import json
from pathlib import Path

from s2sent.model.artifact.manifest import MODEL, REQUIRED_FILES, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged

CANARY = {"text": "hello", "embedding": [0.6, 0.8]}
GRAPH = b"\x08\x08\x3a\x00"  # ir_version 8 and a graph without nodes, as protocol buffers write it


def a_manifest() -> Manifest:
    return Manifest(
        name="tiny",
        dim=2,
        max_seq_length=16,
        pooling="mean",
        normalize=True,
        precision="fp32",
        inputs=("input_ids", "attention_mask"),
        selector={"num_blocks": 3},
        backbone={"name": "tiny-bert"},
        prompts={"query": "query: "},
        training={"seed": 1},
        scores={},
        parity={},
        fused={"Attention": 4},
        versions={"torch": "2"},
        files={},
    )


def fill(folder: Path) -> None:
    for name in REQUIRED_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(CANARY if name == "canary.json" else {"is": name}))
    (folder / MODEL).write_bytes(GRAPH)


def write_artifact(target: Path, *, overwrite: bool = False) -> Artifact:
    with staged(target, overwrite=overwrite) as folder:
        fill(folder)
        seal(folder, a_manifest())
    return Artifact.open(target)
