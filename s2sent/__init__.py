"""S2Sent sentence embeddings: build and train encoders, export them to ONNX, serve and score them.

The names of `__all__` are the public interface (docs/library.md). Each is imported when it is first
used, so importing this package is quick, and torch is loaded only by what needs it.

In a clone `s2sent.model`, `s2sent.service` and `s2sent.training` are links to the folders of the
same names at its top level; a wheel holds them as folders.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s2sent.model.artifact.reader import Artifact
    from s2sent.model.export.checkpoint import export_checkpoint as export
    from s2sent.model.export.options import ExportOptions
    from s2sent.model.network.encoder import build_encoder, load_encoder
    from s2sent.model.network.selector import S2SentSelector
    from s2sent.model.network.selector_config import SelectorConfig
    from s2sent.model.runtime.encoder import OnnxEncoder
    from s2sent.training.evaluation.sts import score as score_sts

__all__ = [
    "Artifact",
    "ExportOptions",
    "OnnxEncoder",
    "S2SentSelector",
    "SelectorConfig",
    "build_encoder",
    "export",
    "load_encoder",
    "score_sts",
]

_PLACES = {
    "Artifact": "model.artifact.reader:Artifact",
    "ExportOptions": "model.export.options:ExportOptions",
    "OnnxEncoder": "model.runtime.encoder:OnnxEncoder",
    "S2SentSelector": "model.network.selector:S2SentSelector",
    "SelectorConfig": "model.network.selector_config:SelectorConfig",
    "build_encoder": "model.network.encoder:build_encoder",
    "export": "model.export.checkpoint:export_checkpoint",
    "load_encoder": "model.network.encoder:load_encoder",
    "score_sts": "training.evaluation.sts:score",
}


def __getattr__(name: str) -> Any:
    """Import a public name, or ``__version__``, when it is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value  # found without this function the next time
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
