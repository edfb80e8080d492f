"""A short storm over real sockets; `python -m tests.support.chaos` is the long one."""

import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support import chaos
from tests.support.chaos_clients import Tally

pytestmark = pytest.mark.usefixtures("each_form")


def everything_happened(tally: Tally) -> bool:
    statuses = {200, 400, 415, 422, 424}
    return bool(
        tally.vectors > 500 and tally.left and tally.reloads and statuses <= tally.answered.keys()
    )


def test_in_a_storm_every_accepted_request_is_answered_and_no_vector_is_anothers(
    tiny_artifact: Artifact,
) -> None:
    tally, watches, problems = chaos.run(
        tiny_artifact.path,
        seconds=1.5,
        rounds=2,
        clients=24,
        faults=3,
        seed=1,
        enough=everything_happened,
    )
    assert problems == [], chaos.report(tally, watches, problems)
