"""The identity of an encoder's vectors, by which a store knows which of them can be compared."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from s2sent.model.artifact.manifest import MODEL, TOKENIZER, WEIGHTS, Manifest


def vector_fingerprint(manifest: Manifest, depth: int | None = None) -> str:
    """A SHA-256 in hex that is equal exactly when embeddings can be compared with each other.

    It covers the graph, its weights and the tokenizer, by their hashes in the manifest, the
    precision, the template, and ``depth``, the last block that is run; None is all blocks. All
    comparable depths have the fingerprint of full depth. What leaves the vectors as they are (name,
    scores, prompts, the record of the training) is left out, unlike in `Artifact.fingerprint`.
    """
    if depth == manifest.full_depth or depth in manifest.comparable_depths:
        depth = None
    known = [name for name in (MODEL, WEIGHTS, TOKENIZER) if name in manifest.files]
    digests = {name: manifest.files[name].sha256 for name in known}
    identity: dict[str, Any] = {"files": digests, "precision": manifest.precision, "depth": depth}
    if manifest.template:  # left out otherwise, as it was before there were templates
        identity["template"] = asdict(manifest.template)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
