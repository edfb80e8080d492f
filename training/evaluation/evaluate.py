"""Scores encoders on development data and on the test tasks, as Markdown tables and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import record_scores
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import read_development_pairs, score_development
from s2sent.training.evaluation.encoders import is_url, open_encoder
from s2sent.training.evaluation.geometry import geometry
from s2sent.training.evaluation.results.markdown import markdown_head, markdown_row
from s2sent.training.evaluation.results.output import require_writable
from s2sent.training.evaluation.results.use_of_tests import log_test_use
from s2sent.training.evaluation.retrieval import read_retrieval
from s2sent.training.evaluation.sts import (
    AVERAGE,
    DEV_FILE,
    TASKS,
    CachedEncode,
    Encode,
    distinct,
    score,
    with_average,
)
from s2sent.training.evaluation.transfer import TASKS as TRANSFER_TASKS
from s2sent.training.evaluation.transfer import score_transfer
from s2sent.training.files.record import write_json

Show = Callable[[str], None]
Found = dict[str, dict[str, dict[str, float]]]  # encoder, kind of score, task


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_encoders` scores besides the STS tasks, and where the numbers go.

    dev_only: score development data alone; no test task is opened, scored or recorded.
    retrieval: a file of queries and documents, scored as development data.
    transfer: also score the transfer tasks.
    json_file: gets all scores unrounded, with geometry.
    record: write the STS scores of the first encoder, an artifact, into its manifest.
    """

    dev_only: bool = False
    retrieval: Path | None = None
    transfer: bool = False
    json_file: Path | None = None
    record: bool = False

    def __post_init__(self) -> None:
        for option, chosen in (("--record", self.record), ("--transfer", self.transfer)):
            if self.dev_only and chosen:
                raise ConfigError(
                    f"--dev-only opens no test, of which {option} needs the scores: leave one out."
                )


def evaluate_encoders(
    names: Sequence[str], data: Path, show: Show, options: Evaluation = Evaluation()
) -> None:
    """Score encoders and ``show`` the tables line by line, each as soon as it is known.

    Development scores follow the tests' where ``data`` has STS-B dev. Raises `ArtifactError` where
    a record is wanted of what is no artifact, `ConfigError` where of a URL, and a `TrainingError`
    for an encoder or data that cannot be used, or a file that cannot be written, before any test is
    opened.
    """
    if options.record and is_url(names[0]):
        raise ConfigError(
            f"--record writes into an artifact's manifest, and {names[0]} is the URL of a service:"
            " name the artifact's folder, or leave --record out."
        )
    artifact = Artifact.open(names[0]) if options.record else None
    if options.json_file is not None:
        require_writable(options.json_file)
    if options.retrieval is not None:
        read_retrieval(options.retrieval)
        read_development_pairs(data / "sts")
    encoders = {name: CachedEncode(open_encoder(name)) for name in distinct(names)}
    found: Found = {name: {} for name in encoders}
    if not options.dev_only:
        _test_tables(encoders, data, show, options, found, artifact)
    if options.dev_only or options.retrieval or (data / "sts" / DEV_FILE).is_file():
        _development_table(encoders, data, show, options.retrieval, found)
    if options.json_file is not None:
        write_json(options.json_file, found)


def _test_tables(
    encoders: Mapping[str, Encode],
    data: Path,
    show: Show,
    options: Evaluation,
    found: Found,
    artifact: Artifact | None,
) -> None:
    warnings = [warning for name in encoders if (warning := log_test_use(name))]
    show(markdown_head(["", *TASKS, AVERAGE], numeric=True))
    for name, encode in encoders.items():
        found[name]["sts"] = scores = with_average(score(encode, data / "sts"))
        show(_score_row(name, scores))
        if artifact is not None and artifact.path == Path(name):
            rounded = {task: round(value, 2) for task, value in scores.items()}
            record_scores(artifact, rounded, opened=datetime.now(UTC).date().isoformat())
        if options.transfer:
            found[name]["transfer"] = with_average(score_transfer(encode, data / "transfer"))
        if options.json_file is not None:
            found[name]["geometry"] = geometry(encode, data / "sts")
    if options.transfer:
        show("\n" + markdown_head(["", *TRANSFER_TASKS, AVERAGE], numeric=True))
        for name, of in found.items():
            show(_score_row(name, of["transfer"]))
    for warning in warnings:
        show(f"\n{warning}")


def _development_table(
    encoders: Mapping[str, Encode], data: Path, show: Show, retrieval: Path | None, found: Found
) -> None:
    """The scores by which recipes may be chosen, and how many of the pairs are in the tests."""
    pairs = read_development_pairs(data / "sts")
    for place, (name, encode) in enumerate(encoders.items()):
        found[name]["development"] = scores = score_development(encode, data / "sts", retrieval)
        if place == 0:
            show("\n" + markdown_head(["", *scores], numeric=True))
        show(_score_row(name, scores))
    show(
        f"\n{pairs.overlapping:,} of the {pairs.distinct:,} different pairs of STS-B dev also "
        "stand in STS12 to 16."
    )


def _score_row(name: str, scores: Mapping[str, float]) -> str:
    return markdown_row([name, *(f"{value:.2f}" for value in scores.values())])
