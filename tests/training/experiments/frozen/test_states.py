"""The cache of states: one process computes them, and none does for a plan that is refused."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s2sent.model.network.encoder import build_plain_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TemplateError
from s2sent.training.experiments.frozen import states
from s2sent.training.experiments.frozen.setting import frozen_encoder
from s2sent.training.experiments.frozen.states import BlockStates, cached_states
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import SENTENCES


def states_of(backbone: Path, cache: Path) -> BlockStates:
    encoder = build_plain_encoder(backbone, max_seq_length=24)
    return cached_states(encoder, SENTENCES[:6], SelectorConfig(width=32), cache)


def test_a_depth_is_refused_before_any_state_is_computed(
    backbone: Path, tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "s2sent.training.experiments.frozen.run.read_setting",
        lambda *_, **__: pytest.fail("computed"),
    )
    where = ["--data", tmp_path, "--cache", tmp_path / "cache", "--backbone", backbone]
    said = refusal("frozen", *where, "--depths", 9, "--output", tmp_path / "out.jsonl")
    assert "Depth 9 is outside 3 to 4" in said


def test_a_decoder_without_a_template_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"^The tokenizer of .* or --template of"):
        frozen_encoder(str(tiny_decoder(tmp_path / "decoder")), None)


def test_processes_that_share_a_cache_compute_its_states_once(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first; it would delete what that writes."""
    started, computed = threading.Event(), []
    compute = states._compute

    def slow(*arguments: Any) -> Any:
        computed.append(arguments[-1])
        started.set()
        time.sleep(0.5)
        return compute(*arguments)

    monkeypatch.setattr(states, "_compute", slow)
    first = threading.Thread(target=states_of, args=(backbone, tmp_path))
    first.start()
    assert started.wait(60)
    found = states_of(backbone, tmp_path)
    first.join()
    assert len(computed) == 1
    assert np.abs(found.pooled).min(axis=(1, 2)).all()
