"""The arithmetic of the studies: growth of memory, and where a request's time goes."""

import pytest

from benchmarks.studies.profile import attribute, read_totals
from benchmarks.studies.soak_memory import growth_percent


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    assert growth_percent([1, 9, 100, 100, 130, 140, 110, 110]) == pytest.approx(10)


METRICS = """\
# TYPE s2sent_request_duration_seconds histogram
s2sent_request_duration_seconds_bucket{route="/embed",le="+Inf"} COUNT
s2sent_request_duration_seconds_sum{route="/embed"} SUM
s2sent_request_duration_seconds_count{route="/embed"} COUNT
s2sent_request_duration_seconds_bucket{route="/metrics",le="+Inf"} 7
s2sent_request_duration_seconds_sum{route="/metrics"} 99
s2sent_request_duration_seconds_count{route="/metrics"} 7
# TYPE s2sent_inference_duration_seconds histogram
s2sent_inference_duration_seconds_bucket{le="+Inf"} COUNT
s2sent_inference_duration_seconds_sum RUN
s2sent_inference_duration_seconds_count COUNT
"""


def test_a_profile_splits_the_client_s_latency_and_leaves_nothing_out() -> None:
    """Ten requests of 4 ms, 3 of them in the run, seen as 5 ms; other routes do not count."""
    before = METRICS.replace("SUM", "1.0").replace("RUN", "0.5").replace("COUNT", "20")
    after = METRICS.replace("SUM", "1.04").replace("RUN", "0.53").replace("COUNT", "30")
    stages = attribute(read_totals(before), read_totals(after), client_ms=5.0)
    assert stages["run"] == pytest.approx(3)
    assert stages["the rest inside the service"] == pytest.approx(1)
    assert stages["HTTP server, sockets and client"] == pytest.approx(1)
    assert stages["tokenise"] is None
