"""Twin encoders: two towers read the same tokens, and the sum of their vectors is the embedding.

    tokens -> tower_a: backbone, selector or none, pooling -> h_a
                                                                  h_a + h_b -> Normalize, if any
    tokens -> tower_b: backbone, selector or none, pooling -> h_b

JTCSE and TNCSE train such twins (`training.objectives.jtcse`). On disk each tower is a folder of
its own, and an ordinary checkpoint.

Shapes: B texts, D features.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from s2sent.model.network.encoder import (
    assemble,
    find_selector,
    find_template,
    leaves_prompts_out,
    load_encoder,
    pooling_mode,
)
from s2sent.model.network.loading.checkpoint import CheckpointError, module_entries, names_module
from s2sent.model.network.twin_encoder import TOWERS, TwinEncoder


def join_towers(
    tower_a: SentenceTransformer, tower_b: SentenceTransformer, *, normalize: bool
) -> SentenceTransformer:
    """The twin encoder of two encoders, whose own Normalize is left out.

    The encoders become its towers; they are not copied. Raises `CheckpointError` where they are not
    built alike.
    """
    settings = [
        {"prompts": tower.prompts, "default_prompt_name": tower.default_prompt_name}
        for tower in (tower_a, tower_b)
    ]
    _require_alike(tower_a, tower_b)
    towers = [
        assemble([module for module in tower if not isinstance(module, Normalize)], **prompts)
        for tower, prompts in zip((tower_a, tower_b), settings, strict=True)
    ]
    twins: list[torch.nn.Module] = [TwinEncoder(*towers)]
    return assemble([*twins, Normalize()] if normalize else twins, **settings[0])


def is_twin_checkpoint(checkpoint: str | Path) -> bool:
    """Whether a folder is a checkpoint of twins, which `load_twin_encoder` opens."""
    return names_module(checkpoint, TwinEncoder)


def load_twin_encoder(checkpoint: str | Path) -> SentenceTransformer:
    """Load the twins that ``encoder.save(checkpoint)`` wrote; none of the checkpoint's code is run.

    Raises `CheckpointError` for anything but a TwinEncoder and, optionally, Normalize, and for
    towers that `model.network.encoder.load_encoder` refuses or that are not built alike.
    """
    checkpoint = Path(checkpoint)
    names = [name for name, _ in module_entries(checkpoint)]
    known = f"{TwinEncoder.__module__}.{TwinEncoder.__name__}"
    if names[0] != known or [n.rpartition(".")[2] for n in names[1:]] not in (
        [],
        [Normalize.__name__],
    ):
        raise CheckpointError(
            f"{checkpoint} holds {', '.join(names)}: twins are a TwinEncoder and, optionally, "
            "Normalize."
        )
    towers = [load_encoder(checkpoint / name) for name in TOWERS]
    return join_towers(*towers, normalize=len(names) == 2)


def get_twins(encoder: SentenceTransformer) -> TwinEncoder:
    """The twins of an encoder that this module built; raises TypeError for another one."""
    twins = encoder[0]
    if not isinstance(twins, TwinEncoder):
        raise TypeError("the encoder has no towers: build it with join_towers.")
    return twins


def _require_alike(tower_a: SentenceTransformer, tower_b: SentenceTransformer) -> None:
    if any(find_template(tower) for tower in (tower_a, tower_b)):
        raise CheckpointError(
            "a tower reads its sentences inside a template, which twins cannot: choose two without."
        )
    first, second = _build(tower_a), _build(tower_b)
    for what, of_first in first.items():
        if of_first != second[what]:
            raise CheckpointError(
                f"the towers differ in their {what}, {of_first} and {second[what]}: train both on "
                "one backbone, with one recipe and two seeds."
            )


def _build(tower: SentenceTransformer) -> dict[str, Any]:
    """What two towers must have in common for their vectors to be added."""
    selector = find_selector(tower)
    return {
        "width": tower.get_embedding_dimension(),
        "tokenizer": f"sha256 {_tokenizer_sha256(tower.tokenizer)}",
        "pooling": pooling_mode(tower),
        "selector": asdict(selector.config) if selector else None,
        "prompts": (tower.prompts, tower.default_prompt_name, leaves_prompts_out(tower)),
        "backbone": cast(Any, tower[0]).auto_model.config.model_type,
    }


def _tokenizer_sha256(tokenizer: Any) -> str:
    """The first digits of a hash of what decides the tokens of a text, but for its length."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {key: value for key, value in state.items() if key not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]
