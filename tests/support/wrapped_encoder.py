"""What a test puts around a real encoder, to make single runs go wrong."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from s2sent.service.engine.types import TokenEncoder


class WrappedEncoder:
    """All that a `TokenEncoder` has but `run`, as the encoder inside has it."""

    def __init__(self, encoder: TokenEncoder) -> None:
        self._encoder = encoder
        self.dim = encoder.dim
        self.max_seq_length = encoder.max_seq_length
        self.provider = encoder.provider
        self.has_block_weights = encoder.has_block_weights

    def block_weights(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """Those of the real encoder."""
        return self._encoder.block_weights(sequences, all_threads=all_threads, depth=depth)

    def return_memory(self) -> None:
        """As the real encoder."""
        self._encoder.return_memory()
