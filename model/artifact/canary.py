"""The canary of an artifact: one text and its embedding, with which a loaded encoder is checked."""

from dataclasses import dataclass
from typing import Self, TypeGuard

from s2sent.model.artifact.errors import REEXPORT, MalformedManifest
from s2sent.model.artifact.manifest import CANARY, parse_object


@dataclass(frozen=True)
class Canary:
    """One text and its L2-normalised embedding [dim], computed by torch at export."""

    text: str
    embedding: list[float]

    @classmethod
    def from_json(cls, content: bytes, dim: int) -> Self:
        """Parse canary.json; raises MalformedManifest unless it has a text and ``dim`` numbers."""
        fields = parse_object(content, CANARY)
        text, embedding = fields.get("text"), fields.get("embedding")
        if not isinstance(text, str) or not _is_vector(embedding, dim):
            raise MalformedManifest(f"{CANARY} needs a text and its {dim} numbers. {REEXPORT}")
        return cls(text, embedding)


def _is_vector(value: object, dim: int) -> TypeGuard[list[float]]:
    return isinstance(value, list) and len(value) == dim and {*map(type, value)} <= {int, float}
