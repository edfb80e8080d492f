"""Twin encoders as one module: two towers read a text, and their vectors are added.

Every checkpoint of twins carries a copy of this file as ``modeling_s2sent_twins.py``, so that it
loads where this project is not installed: hence it imports nothing else of it.

Shapes: B texts, D features.
"""

from pathlib import Path
from typing import Any, Self

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.input_module import InputModule
from transformers import PreTrainedTokenizerBase

MODULE_FILE = "modeling_s2sent_twins.py"
TOWERS = ("tower_a", "tower_b")  # the folders of a checkpoint
SOURCE_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")


class TwinEncoder(InputModule):
    """Two towers that end in their pooling: ``sentence_embedding`` is the sum of their vectors.

    ``tower_embeddings`` has the two vectors [B, D] one by one. Texts are cut where the tower that
    reads fewer tokens cuts them.
    """

    # The name in modules.json: the copy in the checkpoint, not the package that saved it.
    __module__ = Path(MODULE_FILE).stem

    def __init__(self, tower_a: SentenceTransformer, tower_b: SentenceTransformer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
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
        """Write each tower as a checkpoint of its own below ``output_path``, and this code."""
        for name, tower in zip(TOWERS, self.towers, strict=True):
            tower.save(str(Path(output_path, name)), create_model_card=False)
        Path(output_path, MODULE_FILE).write_bytes(Path(__file__).read_bytes())

    @classmethod
    def load(  # type: ignore[override]  # the library gives the other options by name
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Load what `save` wrote, from a folder or from the hub; for sentence-transformers."""
        source = {name: value for name, value in kwargs.items() if name in SOURCE_OPTIONS}
        trusts = bool(kwargs.get("trust_remote_code"))
        folders = (
            cls.load_dir_path(model_name_or_path, subfolder=str(Path(subfolder, name)), **source)
            for name in TOWERS
        )
        return cls(*(SentenceTransformer(f, trust_remote_code=trusts) for f in folders))

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would look the class up under __module__, which names no importable module.
        return _empty_encoder, (), self.__dict__


def _empty_encoder() -> TwinEncoder:
    return TwinEncoder.__new__(TwinEncoder)
