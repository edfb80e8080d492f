"""Language models from GGUF files: opened and de-quantised once, kept as a transformers folder.

GGUF is the file format of llama.cpp (https://github.com/ggml-org/ggml).
"""

import hashlib
import logging
import tempfile
from pathlib import Path

from s2sent.training.errors import EncoderError

SUFFIX = ".gguf"
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gpt2")  # what GGUF calls them; mistral is a llama

log = logging.getLogger(__name__)


def convert(file: Path, target: Path) -> Path:
    """The model of a GGUF file as a folder of transformers, in float32; returns ``target``.

    ``target`` appears whole or not at all, and is left alone when it is there already. Raises
    `EncoderError` for a file that is no GGUF, or holds an architecture that is no causal language
    model this project can read.
    """
    if target.exists():
        return target
    _require_known(file)
    log.info("opening %s, which takes half a minute", file)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        content = Path(scratch, "content")
        _write(file, content)
        content.rename(target)
    return target


def key_of(file: Path) -> str:
    """A name for the folder of a file's model, different for different content."""
    with file.open("rb") as opened:
        return f"{file.stem}-{hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"


def _require_known(file: Path) -> None:
    from gguf import GGUFReader

    try:
        found = GGUFReader(file).get_field("general.architecture")
    except (OSError, ValueError, IndexError) as error:
        raise EncoderError(f"{file} is no GGUF file ({error}): fetch it again.") from error
    architecture = found.contents() if found else "nothing"
    if architecture not in ARCHITECTURES:
        raise EncoderError(
            f"{file} has the architecture {architecture}: use a GGUF file of "
            f"{', '.join(ARCHITECTURES)}."
        )


def _write(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from s2sent.model.network.loading.backbone import require_weights

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model, report = AutoModel.from_pretrained(
        **source, dtype=torch.float32, output_loading_info=True
    )
    require_weights(file, report)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)  # type: ignore[no-untyped-call]  # transformers is partly typed
    tokenizer.save_pretrained(folder)
