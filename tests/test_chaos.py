"""A short storm over real sockets; `python -m tests.support.chaos` is the long one."""

import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support import chaos

pytestmark = pytest.mark.usefixtures("each_form")


def test_in_a_storm_every_accepted_request_is_answered_and_no_vector_is_anothers(
    tiny_artifact: Artifact,
) -> None:
    tally, watches, problems = chaos.run(
        tiny_artifact.path, seconds=4, rounds=2, clients=24, faults=3, seed=1
    )
    assert problems == [], chaos.report(tally, watches, problems)
    assert tally.vectors > 500
    assert tally.left > 0
    assert tally.reloads > 0
    assert {200, 400, 415, 422, 424} <= tally.answered.keys()
