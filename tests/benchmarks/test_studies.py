"""What the studies compute: growth of memory, where a request's time goes, a graph cut down."""

import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.studies import encoders, equal_lengths, in_turns, lanes
from benchmarks.studies.bulk import high_water_mb
from benchmarks.studies.cosines import cosines, with_noise
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
from s2sent.model.network.encoder import load_encoder, pooling_modes
from s2sent.model.runtime.encoder import (
    BLOCK_WEIGHTS_OUTPUT,
    POOLED_OUTPUT,
    OnnxEncoder,
    padded_inputs,
)
from s2sent.service.lanes import Lane
from tests.support import models_of_2026


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    assert growth_percent([1, 9, 100, 100, 130, 140, 110, 110]) == pytest.approx(10)


def test_encoders_are_compared_within_a_round() -> None:
    """The middle ratio is of one round, not of two medians."""
    made = in_turns.table(["a", "b"], [[1.0, 2.0], [4.0, 2.0], [3.0, 2.0]], texts=100, size=8)
    assert made.splitlines()[2:] == [
        "| a | 30.000 | 1.000 (1.000 to 1.000) |",
        "| b | 20.000 | 0.667 (0.583 to 1.333) |",
    ]


def test_every_batch_goes_to_every_encoder_in_turn() -> None:
    asked: list[tuple[str, list[str]]] = []
    encoders = [lambda batch, name=name: asked.append((name, batch)) for name in "ab"]
    assert len(in_turns.one_round(encoders, [["x"], ["y"]])) == 2
    assert asked == [("a", ["x"]), ("b", ["x"]), ("a", ["y"]), ("b", ["y"])]


def test_artifacts_run_at_each_depth_and_checkpoints_beside_them(
    exits_artifact: Artifact,
    exits_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = [str(exits_artifact.path), str(exits_checkpoint)]
    options = ["--sizes", "2", "--count", "4", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["in_turns", *folders, *options])
    in_turns.main()
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[2:-1]]
    depths = [f"| {folders[0]} at depth {depth}" for depth in exits_artifact.manifest.depths]
    assert rows == [f"| {folders[0]}", *depths, f"| {folders[1]}"]


def test_wide_models_are_made_once_and_timed_beside_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 1}
    monkeypatch.setattr(models_of_2026, "WIDE", {"mdbr-leaf": small})
    options = ["--wide", str(tmp_path), "--tokens", "5", "--batch", "1", "3", "--rounds", "1"]
    options += ["--threads", "1"]  # of torch in this process, for the tests that follow too
    monkeypatch.setattr(sys, "argv", ["encoders", *options])
    for _ in range(2):
        encoders.main()
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "| texts x tokens | 1 x 5 | 3 x 5 |"
        assert re.fullmatch(r"\| mdbr-leaf \| \d+\.\d\d \| \d+\.\d\d \|", lines[-1])
        monkeypatch.setattr(models_of_2026, "save_model", None)
    assert Artifact.open(tmp_path / "mdbr-leaf" / "artifact").manifest.dim == 64  # of its Dense


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


@pytest.mark.parametrize("family", equal_lengths.MODELS)
def test_decoders_of_equal_lengths_are_read_as_they_are_described(
    family: str, tmp_path: Path
) -> None:
    encoder = load_encoder(equal_lengths.save_model(tmp_path / "made", family))
    lengths = {
        name: {len(encoder.tokenizer(text)["input_ids"]) for text in texts}
        for name, texts in equal_lengths.TEXTS.items()
    }
    assert {name: len(each) for name, each in lengths.items()} == {"equal": 1, "different": 2}
    backbone: Any = encoder[0].get_submodule("auto_model")
    assert backbone.config.model_type == family
    pooled = equal_lengths.MODELS[family][1].removesuffix("_tokens")
    assert pooling_modes(encoder) == (pooled,)
