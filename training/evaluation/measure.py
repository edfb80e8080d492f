"""What is measured of one encoder: STS and transfer scores, geometry, cosines by gold score."""

from dataclasses import dataclass
from pathlib import Path

from s2sent.training.evaluation.geometry import Group, geometry, groups_by_gold
from s2sent.training.evaluation.sts import CachedEncode, Encode, score, with_average
from s2sent.training.evaluation.transfer import score_transfer

Scores = dict[str, float]  # score by task, and the average of the tasks


@dataclass(frozen=True)
class Measured:
    """The measurements of one encoder; ``transfer`` is None where it was not asked for."""

    name: str
    sts: Scores  # Spearman x 100
    geometry: dict[str, float]
    groups: list[Group]
    transfer: Scores | None = None  # accuracy x 100


def measure(name: str, encode: Encode, data: Path, *, transfer: bool = False) -> Measured:
    """Measure an encoder on ``sts/`` and, with ``transfer``, on ``transfer/`` of the data folder.

    Every text is embedded once. Raises `DataError` for a file that cannot be used.
    """
    encode = CachedEncode(encode)
    return Measured(
        name=name,
        sts=with_average(score(encode, data / "sts")),
        geometry=geometry(encode, data / "sts"),
        groups=groups_by_gold(encode, data / "sts"),
        transfer=with_average(score_transfer(encode, data / "transfer")) if transfer else None,
    )
