"""What the studies compute: growth of memory, where a request's time goes, a graph cut down."""

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.studies import lanes, mixed_depths
from benchmarks.studies.bulk import high_water_mb
from benchmarks.studies.cosines import cosines, with_noise
from benchmarks.studies.int8_graph import table, time_graph
from benchmarks.studies.profile import attribute, read_totals
from benchmarks.studies.soak_memory import growth_percent
from benchmarks.studies.unfetched_output import (
    cost_percent,
    count_nodes,
    cut_output,
    describe,
    open_session,
)
from benchmarks.systems.running import NotMeasured
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import (
    BLOCK_WEIGHTS_OUTPUT,
    POOLED_OUTPUT,
    OnnxEncoder,
    padded_inputs,
)
from s2sent.service.lanes import Lane


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    assert growth_percent([1, 9, 100, 100, 130, 140, 110, 110]) == pytest.approx(10)


def test_two_graphs_are_compared_within_a_turn(exits_artifact: Artifact) -> None:
    """The middle ratio is of one turn, not of two medians; a graph is run at every length."""
    turns = [[{(1, 8): ours}, {(1, 8): 0.002}] for ours in (0.001, 0.004, 0.003)]
    assert table(turns).splitlines()[2] == "| 1 | 8 | 3.00 | 2.00 | 1.50 (0.50 to 2.00) |"
    seen = time_graph(exits_artifact.path / "onnx/model.onnx", lengths=(8, 12), seconds=0.01)
    assert sorted(seen) == [(1, 8), (1, 12), (2, 8), (2, 12)]
    assert min(seen.values()) > 0


@pytest.mark.parametrize(
    ("bulk", "answers", "what"),
    [(None, 0, "lone requests"), ("bulk", 0, "answers to bulk"), ("bulk", 1, "runs")],
)
def test_a_window_too_short_to_measure_is_refused(
    monkeypatch: pytest.MonkeyPatch, bulk: Lane | None, answers: int, what: str
) -> None:
    ended: list[float] = []

    monkeypatch.setattr(lanes, "lone_requests", lambda *_: [])
    monkeypatch.setattr(lanes, "bulk_clients", lambda *_: nullcontext(ended))
    monkeypatch.setattr(lanes, "_runs", lambda _: (1.0, 5.0))
    monkeypatch.setattr(lanes, "WARM_UP_SECONDS", 0)
    monkeypatch.setattr(
        time, "sleep", lambda seconds: ended.extend([0.0] * answers * (seconds > 0))
    )
    scene = lanes.Scene("a scene", lone=bulk is None, bulk=bulk)
    with pytest.raises(NotMeasured, match=f"a scene: a window of 0.001 s had no {what}. Give more"):
        lanes.play(scene, "http://nowhere", ["a"], 0.001, seed=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--count", "3"], "a round has 3 texts and a group up to 32; give more with --count"),
        (["--rounds", "0"], "--rounds is 0; give at least 1."),
    ],
)
def test_too_few_texts_or_rounds_to_compare_depths_are_refused(
    exits_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    command = ["mixed_depths", "--artifact", str(exits_artifact.path), *options]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        mixed_depths.main()
    assert sentence in capsys.readouterr().err


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


def test_a_graph_without_an_output_computes_the_others_with_fewer_nodes(
    exits_artifact: Artifact,
) -> None:
    model = onnx.load(exits_artifact.path / "onnx/model.onnx")
    inputs = padded_inputs([[5, 6, 7], [8, 9]], exits_artifact.manifest.inputs, pad_id=0)
    nodes = count_nodes(model.graph)
    before = open_session(model, 1).run([POOLED_OUTPUT], inputs)[0]
    cut_output(model.graph, BLOCK_WEIGHTS_OUTPUT)
    session = open_session(model, 1)
    np.testing.assert_array_equal(session.run([POOLED_OUTPUT], inputs)[0], before)
    assert BLOCK_WEIGHTS_OUTPUT not in {output.name for output in session.get_outputs()}
    assert count_nodes(model.graph) < nodes


def test_noise_is_in_the_last_place_of_every_float32_weight(
    exits_artifact: Artifact, tmp_path: Path
) -> None:
    """So float32 embeddings stay, to six digits; those of other weights would not."""
    noisy = with_noise(exits_artifact, tmp_path / "noisy")
    before, after = (
        {
            each.name: numpy_helper.to_array(each)
            for each in onnx.load(of.onnx_path).graph.initializer
        }
        for of in (exits_artifact, noisy)
    )
    for name in (name for name, values in before.items() if values.dtype == np.float32):
        np.testing.assert_array_max_ulp(before[name], after[name], maxulp=1)
        assert (after[name] != before[name]).all()
    found = cosines(OnnxEncoder(exits_artifact), OnnxEncoder(noisy), ["the cat sings", "a car"])
    np.testing.assert_allclose(found, 1, atol=1e-5)


def test_a_cost_is_the_median_of_the_pairs_and_its_mean_over_sessions_has_an_interval() -> None:
    assert cost_percent([(1.01, 1.0), (1.02, 1.0), (1.5, 1.0)]) == pytest.approx(2.0)
    line = describe(1, "with / without", [1.0, 2.0, 3.0])  # t of two degrees of freedom is 4.303
    assert line.startswith("1 texts a run, with / without: +2.00 % (-0.48 to +4.48), 3 pairs")


def test_the_memory_of_a_child_is_its_own() -> None:
    held = bytearray(300_000_000)
    code = "import sys; held = bytearray(100_000_000); print('held', flush=True); sys.stdin.read()"
    child = [sys.executable, "-c", code]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert 100 < high_water_mb(process.pid) < 200 < len(held) / 1e6
    assert high_water_mb(process.pid) == 0
