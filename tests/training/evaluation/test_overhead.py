"""What a selector adds: exact counts, every cell, arms that agree, turns that are fair."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions
from s2sent.training.__main__ import main
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.evaluation.overhead.measurement import measure_artifacts
from s2sent.training.evaluation.overhead.rounds import Protocol, cell, orders, take_turns
from tests.support.tiny import tiny_backbone

QUICK = Protocol(batch_sizes=(1, 3), lengths=(4, 8), warm_ups=1, repeats=4)


def test_a_tiny_model_gives_all_cells_and_the_exact_number_of_parameters(tmp_path: Path) -> None:
    backbone = tiny_backbone(tmp_path / "tiny", width=48)
    options = ["--batch-sizes", "1,3", "--lengths", "4,8", "--warm-ups", "1", "--repeats", "4"]
    output = tmp_path / "overhead.json"
    with pytest.raises(SystemExit) as left:
        main(["overhead", "--backbone", str(backbone), "--output", str(output), *options])
    assert left.value.code == 0
    found = json.loads(output.read_text())
    width, hidden = 48, 48 // 12
    gates = width * hidden + hidden + 3 * (hidden * width + width)
    assert found["parameters"]["selector"] == gates
    assert found["parameters"]["share_percent"] == pytest.approx(
        100 * gates / found["parameters"]["backbone"]
    )
    cells = [(c["precision"], c["batch_size"], c["length"]) for c in found["cells"]]
    assert cells == list(itertools.product(("fp32", "bf16"), (1, 3), (4, 8)))
    for measured in found["cells"]:
        assert measured["rounds"] == 4
        assert set(measured["median_ms"]) == {"plain", "states", "selector", "tokens"}
        assert {"selector", "hidden_states", "selector_alone"} < set(measured)
    assert found["protocol"]["repeats"] == 4
    assert found["protocol"]["warm_ups"] == 1


def test_artifacts_are_measured_as_they_are_served(tiny_artifact: Artifact) -> None:
    found = measure_artifacts(tiny_artifact.path, tiny_artifact.path, QUICK)
    assert [(c["batch_size"], c["length"]) for c in found["cells"]] == [
        (1, 4),
        (1, 8),
        (3, 4),
        (3, 8),
    ]
    assert all(set(c["median_ms"]) == {"plain", "selector"} for c in found["cells"])


def test_artifacts_of_two_precisions_are_refused(
    tiny_artifact: Artifact, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    other = export_checkpoint(
        tiny_checkpoint, tmp_path / "other", ExportOptions(precision="weight-int8")
    )
    with pytest.raises(EncoderError, match=r"other is weight-int8 and .* is fp32, .* export both"):
        measure_artifacts(other.path, tiny_artifact.path, QUICK)


def test_every_arm_has_every_place_and_precedes_each_other_as_often() -> None:
    names = ("a", "b", "c", "d")
    rounds = list(itertools.islice(orders(names), 8))
    assert all(sorted(order) == list(names) for order in rounds)
    for place in range(4):
        assert set(Counter(order[place] for order in rounds).values()) == {2}
    for first, second in itertools.permutations(names, 2):
        assert sum(order.index(first) < order.index(second) for order in rounds) == 4


def test_warm_ups_do_not_count() -> None:
    calls: list[str] = []
    arms = {name: lambda name=name: calls.append(name) for name in ("plain", "selector")}
    seconds = take_turns(arms, Protocol(warm_ups=3, repeats=5))
    assert Counter(calls) == {"plain": 8, "selector": 8}
    assert {name: len(of) for name, of in seconds.items()} == {"plain": 5, "selector": 5}


def test_a_cell_tells_medians_of_rounds_in_percent() -> None:
    plain = [(1.0, 1.0), (2.0, 2.0), (1.0, 1.0)]
    seconds = {
        "plain": plain,
        "states": [(1.1, 1.0), (2.2, 2.0), (1.1, 1.0)],
        "selector": [(1.2, 1.05), (2.4, 2.1), (1.3, 1.05)],
        "tokens": [(1.5, 1.5), (3.0, 3.0), (1.5, 1.5)],
    }
    found = cell(1, 32, seconds)
    assert found["rounds"] == 3
    assert found["selector"]["median_percent"] == pytest.approx(20)
    assert found["selector"]["processor_median_percent"] == pytest.approx(5)
    assert found["hidden_states"]["median_percent"] == pytest.approx(10)
    assert found["selector_alone"]["median_percent"] == pytest.approx(10)
    assert found["selector_by_token"]["median_percent"] == pytest.approx(50)


def test_a_cell_stops_when_its_time_is_over() -> None:
    arms = {"plain": lambda: None, "selector": lambda: None}
    seconds = take_turns(arms, Protocol(warm_ups=0, repeats=10**6, seconds_per_cell=1e-9))
    assert len(seconds["plain"]) == 1


def test_what_cannot_be_measured_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="fp8 is no precision: choose from fp32, bf16"):
        Protocol(precisions=("fp32", "fp8"))
    with pytest.raises(ConfigError, match="batch_sizes has 0, below 1: it must be at least 1"):
        Protocol(batch_sizes=(0,))
    with pytest.raises(ConfigError, match="lengths is empty, which measures nothing"):
        Protocol(lengths=())
    below: list[dict[str, Any]] = [{"warm_ups": -1}, {"threads": -1}, {"seconds_per_cell": -1}]
    for options in below:
        with pytest.raises(ConfigError, match="is -1: it must be at least 0"):
            Protocol(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-blocks", "0"], "The selector does not fit {backbone}: num_blocks is 0"),
        (["--num-blocks", "5"], "The selector does not fit {backbone}: num_blocks is 5 but the"),
        (["--lengths", "8,500"], "{backbone} reads 130 tokens, fewer than 500: name shorter"),
        (["--threads", "-1"], "threads is -1: it must be at least 0."),
        (["--batch-sizes", ""], "The list of batch sizes is empty: give one at least"),
        (["--lengths", ","], "The list of lengths is empty: give one at least"),
        (["--device", "cuda"], "torch finds no GPU for the device cuda: choose cpu."),
        (["--output", "{folder}"], "cannot be written (Is a directory): name a file in"),
    ],
)
def test_what_the_command_cannot_measure_is_one_sentence(
    tmp_path: Path,
    options: list[str],
    message: str,
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing is measured before it is said."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    module = "s2sent.training.evaluation.overhead.measurement.take_turns"
    monkeypatch.setattr(module, lambda *_: pytest.fail("measured"))
    backbone = tiny_backbone(tmp_path / "tiny", width=48)
    given = [option.replace("{folder}", str(tmp_path)) for option in options]
    where = ["--backbone", backbone, "--output", tmp_path / "overhead.json"]
    assert message.format(backbone=backbone) in refusal("overhead", *where, *given)


def test_artifacts_without_their_device_are_one_sentence(tiny_artifact: Artifact) -> None:
    with pytest.raises(EncoderError, match="CUDA"):
        measure_artifacts(tiny_artifact.path, tiny_artifact.path, replace(QUICK, device="cuda"))
