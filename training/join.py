"""Joins two checkpoints as they are: twins whose embedding is the sum of both vectors."""

from pathlib import Path

from sentence_transformers import SentenceTransformer

from s2sent.model.network.encoder import load_encoder
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.twins import join_towers
from s2sent.training.backbones import resolve
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.files.record import read_record, write_record


def join_checkpoints(first: str, second: str, output: Path) -> None:
    """Save the twins of two checkpoints or ``pypi:`` names to ``output``, with their records.

    Raises `ConfigError` when ``output`` exists, and `EncoderError` for a folder that is no
    checkpoint and for two that are not built alike.
    """
    if output.exists():
        raise ConfigError(f"{output} exists already: name a new folder, or delete it first.")
    joined(first, second).save(str(output), create_model_card=False)
    records = {"began_from": first, "second_tower": second}
    found = {key: read_record(Path(resolve(name))) for key, name in records.items()}
    write_record(output, {"backbone": found["began_from"].get("backbone", {}), **found})


def joined(first: str, second: str) -> SentenceTransformer:
    """The twins of two checkpoints, which end in Normalize. Raises `EncoderError`."""
    try:
        towers = [load_encoder(resolve(name)) for name in (first, second)]
        return join_towers(*towers, normalize=True)
    except (CheckpointError, EncoderError) as error:
        raise EncoderError(f"{first} and {second} cannot be joined: {error}") from None
