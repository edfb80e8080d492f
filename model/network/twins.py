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
from sentence_transformers.base.modules.input_module import InputModule
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import PreTrainedTokenizerBase

from s2sent.model.network.checkpoint import MODULES_FILE, CheckpointError, read_json
from s2sent.model.network.encoder import (
    assemble,
    find_selector,
    find_template,
    load_encoder,
    pooling_mode,
)

TOWERS = ("tower_a", "tower_b")  # the folders of a checkpoint


class TwinEncoder(InputModule):
    """Two towers that end in their pooling: ``sentence_embedding`` is the sum of their vectors.

    ``tower_embeddings`` has the two vectors [B, D] one by one. Texts are cut where the tower that
    reads fewer tokens cuts them.
    """

    def __init__(self, tower_a: SentenceTransformer, tower_b: SentenceTransformer) -> None:
        """Raises `CheckpointError` for towers that are not built alike."""
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        _require_alike(tower_a, tower_b)
        self.tower_a = tower_a
        self.tower_b = tower_b
        limits = [tower.max_seq_length for tower in self.towers]
        self.max_seq_length = min((limit for limit in limits if limit is not None), default=None)

    @property
    def towers(self) -> tuple[SentenceTransformer, SentenceTransformer]:
        """Both towers, the first one first."""
        return self.tower_a, self.tower_b

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:  # type: ignore[override]  # an attribute there
        """The first tower's tokenizer, which the other's equals."""
        tokenizer: PreTrainedTokenizerBase = self.tower_a.tokenizer
        return tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """How many tokens of a text both towers read."""
        return self.tower_a.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, limit: int | None) -> None:
        for tower in self.towers:
            tower.max_seq_length = limit

    def preprocess(
        self, inputs: list[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The features that the first tower makes of texts, for both towers."""
        features: dict[str, Any] = self.tower_a.preprocess(inputs, prompt=prompt, **kwargs)
        return features

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """``sentence_embedding`` [B, D] and ``tower_embeddings``, a pair of [B, D]."""
        first, second = (
            tower(dict(features))["sentence_embedding"]  # a tower writes into its features
            for tower in self.towers
        )
        features["tower_embeddings"] = first, second
        features["sentence_embedding"] = first + second
        return features

    def get_embedding_dimension(self) -> int:
        """D; sentence-transformers asks its modules for it."""
        return int(self.tower_a.get_embedding_dimension() or 0)

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write each tower as a checkpoint of its own below ``output_path``."""
        for name, tower in zip(TOWERS, self.towers, strict=True):
            tower.save(str(Path(output_path, name)), create_model_card=False)


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
    towers = [
        assemble([module for module in tower if not isinstance(module, Normalize)], **prompts)
        for tower, prompts in zip((tower_a, tower_b), settings, strict=True)
    ]
    twins: list[torch.nn.Module] = [TwinEncoder(*towers)]
    return assemble([*twins, Normalize()] if normalize else twins, **settings[0])


def is_twin_checkpoint(checkpoint: str | Path) -> bool:
    """Whether a folder is a checkpoint of twins, which `load_twin_encoder` opens."""
    modules = Path(checkpoint) / MODULES_FILE
    return modules.is_file() and _name(TwinEncoder) in modules.read_text(encoding="utf-8")


def load_twin_encoder(checkpoint: str | Path) -> SentenceTransformer:
    """Load the twins that ``encoder.save(checkpoint)`` wrote; none of the checkpoint's code is run.

    Raises `CheckpointError` for anything but a TwinEncoder and, optionally, Normalize, and for
    towers that `model.network.encoder.load_encoder` refuses or that are not built alike.
    """
    checkpoint = Path(checkpoint)
    names = [entry["type"] for entry in read_json(checkpoint / MODULES_FILE)]
    if names[:1] != [_name(TwinEncoder)] or [n.rpartition(".")[2] for n in names[1:]] not in (
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
        "prompts": (tower.prompts, tower.default_prompt_name),
        "backbone": cast(Any, tower[0]).auto_model.config.model_type,
    }


def _tokenizer_sha256(tokenizer: Any) -> str:
    """The first digits of a hash of what decides the tokens of a text, but for its length."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {key: value for key, value in state.items() if key not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _name(kind: type) -> str:
    """The name of a class in modules.json."""
    return f"{kind.__module__}.{kind.__name__}"
