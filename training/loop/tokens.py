"""Tokenises each text of a run once: what an encoder reads of it is kept in memory, unpadded.

Shapes: B texts, L tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TEXTS_PER_CALL = 1024  # that are tokenised together before training
# Two texts of different lengths, whose features show how an encoder pads.
PROBES = ["a", "one longer text"]

Preprocess = Callable[..., dict[str, Any]]
Row = NDArray[np.int64]  # [keys, tokens of one text], or [keys, 1] of what a text has one of


class TokenisedTexts:
    """An encoder's ``preprocess``, which remembers each text's tokens.

    Its features are those of ``preprocess``, to the bit, but for values at padding, which nothing
    reads. An encoder whose features have no ``attention_mask`` [B, L] is asked for every batch.
    """

    def __init__(self, preprocess: Preprocess) -> None:
        self._preprocess = preprocess
        self._of_task: dict[str | None, _TaskTexts | None] = {}

    def __call__(
        self, texts: Sequence[str], prompt: str | None = None, task: str | None = None
    ) -> dict[str, Any]:
        """The features of a batch of texts."""
        known = None if prompt else self._texts_of(task)
        if known is None:
            return self._preprocess([*texts], prompt=prompt, task=task)
        known.add(texts)
        return known.batch(texts)

    def read_ahead(self, texts: Sequence[str], task: str | None = None) -> None:
        """Tokenise texts before they are asked for, many together."""
        if (known := self._texts_of(task)) is not None:
            for start in range(0, len(texts), TEXTS_PER_CALL):
                known.add(texts[start : start + TEXTS_PER_CALL])

    def _texts_of(self, task: str | None) -> "_TaskTexts | None":
        if task not in self._of_task:
            probe = self._preprocess(PROBES, prompt=None, task=task)
            mask = probe.get("attention_mask")
            fits = isinstance(mask, Tensor) and mask.dim() == 2 and not mask.all()
            self._of_task[task] = _TaskTexts(self._preprocess, task, probe) if fits else None
        return self._of_task[task]


class _TaskTexts:
    """The tokens of texts that are read for one task."""

    def __init__(self, preprocess: Preprocess, task: str | None, probe: dict[str, Any]) -> None:
        self._preprocess, self._task = preprocess, task
        self._rows: dict[str, tuple[Row, Row]] = {}
        mask = probe["attention_mask"]
        short = int(mask.sum(1).argmin())
        self._left = not mask[short, 0]  # where the padding is
        tensors = {name: value for name, value in probe.items() if isinstance(value, Tensor)}
        self._of_tokens = [name for name, value in tensors.items() if value.shape == mask.shape]
        self._of_texts = [name for name in tensors if name not in self._of_tokens]
        self._others = {name: value for name, value in probe.items() if name not in tensors}
        padding = 0 if self._left else -1
        self._padding = [int(probe[name][short, padding]) for name in self._of_tokens]

    def add(self, texts: Sequence[str]) -> None:
        """Tokenise the texts that are not known yet."""
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if not new:
            return
        features = self._preprocess(new, prompt=None, task=self._task)
        mask = features["attention_mask"].numpy().astype(bool)
        tokens = np.stack([features[name].numpy() for name in self._of_tokens], axis=1)
        single = [features[name].numpy() for name in self._of_texts]
        for place, text in enumerate(new):
            own = np.array([values[place] for values in single])
            self._rows[text] = tokens[place][:, mask[place]].astype(np.int32), own

    def batch(self, texts: Sequence[str]) -> dict[str, Any]:
        """The padded features [B, L] of known texts, those [B] of each text, and others."""
        rows, single = zip(*(self._rows[text] for text in texts), strict=True)
        lengths = np.array([row.shape[1] for row in rows])
        places = np.arange(lengths.max())
        first = (lengths.max() - lengths)[:, None] if self._left else 0
        read = (places >= first) & (places < first + lengths[:, None])
        joined = np.concatenate(rows, axis=1)
        features: dict[str, Any] = {}
        for name, values, padding in zip(self._of_tokens, joined, self._padding, strict=True):
            padded = np.full(read.shape, padding, dtype=np.int64)
            padded[read] = values
            features[name] = torch.from_numpy(padded)
        for name, values in zip(self._of_texts, np.array(single).T, strict=True):
            features[name] = torch.from_numpy(values.copy())
        return features | self._others
