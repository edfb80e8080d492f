"""Tokenises each text of a run once: what an encoder reads of it is kept in memory, unpadded.

Shapes: B texts, L tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

TEXTS_PER_CALL = 1024  # that are tokenised together before training
# Two texts of different lengths, whose features show how an encoder pads.
PROBES = ["a", "one longer text"]

Preprocess = Callable[..., dict[str, Any]]


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
        # Of each text: its tokens [L, features], and the features that it has one value of.
        self._rows: dict[str, tuple[Tensor, list[Tensor]]] = {}
        mask = probe["attention_mask"]
        short = int(mask.sum(1).argmin())
        self._side = "right" if mask[short, 0] else "left"  # where the padding is
        padding = -1 if mask[short, 0] else 0
        tensors = {name: value for name, value in probe.items() if isinstance(value, Tensor)}
        self._padding = {
            name: int(value[short, padding])
            for name, value in tensors.items()
            if value.shape == mask.shape
        }
        self._of_texts = [name for name in tensors if name not in self._padding]
        self._others = {name: value for name, value in probe.items() if name not in tensors}

    def add(self, texts: Sequence[str]) -> None:
        """Tokenise the texts that are not known yet."""
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if not new:
            return
        features = self._preprocess(new, prompt=None, task=self._task)
        mask = features["attention_mask"].bool()
        tokens = torch.stack([features[name] for name in self._padding], dim=2).int()
        for place, text in enumerate(new):
            own = [features[name][place] for name in self._of_texts]
            self._rows[text] = tokens[place, mask[place]], own

    def batch(self, texts: Sequence[str]) -> dict[str, Any]:
        """The padded features [B, L] of known texts, those [B] of each text, and others."""
        rows, own = zip(*(self._rows[text] for text in texts), strict=True)
        padded = pad_sequence([*rows], batch_first=True, padding_side=self._side).long()
        features = dict(zip(self._padding, padded.unbind(2), strict=True))
        read = features["attention_mask"].bool()
        features = {name: features[name].where(read, self._padding[name]) for name in features}
        single = zip(self._of_texts, zip(*own, strict=True), strict=True)
        return features | {name: torch.stack(each) for name, each in single} | self._others
