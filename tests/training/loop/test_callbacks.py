"""What the log says of a run's progress."""

import io
import logging
import sys
from unittest.mock import MagicMock

import pytest
from rich.progress import TimeRemainingColumn
from transformers import TrainerControl, TrainerState

from s2sent.training.loop.callbacks import Progress


def test_a_line_before_the_first_step_says_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """A run that is resumed scores its step first: it has no loss and no speed yet, and that score
    is not among those to choose from; the best one so far is."""
    progress = Progress("dev", batch_size=8)
    state, control = TrainerState(max_steps=4, global_step=2), TrainerControl()
    state.best_metric, state.best_global_step = 70.25, 1
    progress.on_train_begin(None, state, control)
    with caplog.at_level(logging.INFO):
        progress.on_evaluate(None, state, control, metrics={"dev": 70.5})
        progress.on_log(None, state, control, logs={"loss": 0.25})
        state.global_step = 3
        progress.on_evaluate(None, state, control, metrics={"dev": 71.0})
    first, second = caplog.messages
    assert first == "step 2/4  dev 70.50  best 70.25 at 1"
    assert second.startswith("step 3/4  loss 0.25  dev 71.00  best 71.00 at 3  ")
    assert second.endswith(" s left")
    assert "nan" not in second


def test_the_start_is_not_called_the_best_step(caplog: pytest.LogCaptureFixture) -> None:
    """The trainer keeps one of the steps it trained, also where all are below the start."""
    progress = Progress("dev", batch_size=8)
    state, control = TrainerState(max_steps=4, global_step=0), TrainerControl()
    progress.on_train_begin(None, state, control)
    with caplog.at_level(logging.INFO):
        progress.on_evaluate(None, state, control, metrics={"dev": 71.0})
        state.global_step = 2
        progress.on_evaluate(None, state, control, metrics={"dev": 70.5})
    first, second = caplog.messages
    assert first == "step 0/4  dev 71.00"
    assert second.startswith("step 2/4  dev 70.50  best 70.50 at 2  ")


@pytest.mark.parametrize(
    ("loss", "shown"), [(2.34567, "2.35"), (0.0000431, "4.31e-05"), (0.00432, "0.00432")]
)
def test_a_loss_has_three_digits_however_small_it_is(
    caplog: pytest.LogCaptureFixture, loss: float, shown: str
) -> None:
    progress = Progress("dev", batch_size=8)
    state, control = TrainerState(max_steps=4, global_step=2), TrainerControl()
    progress.on_train_begin(None, state, control)
    with caplog.at_level(logging.INFO):
        progress.on_log(None, state, control, logs={"loss": loss})
        progress.on_evaluate(None, state, control, metrics={"dev": 71.0})
    assert f"loss {shown}  dev" in caplog.messages[0]


def test_a_terminal_shows_one_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    columns: list[object] = []

    def bar(*of_bar: object, **_: object) -> MagicMock:
        columns.extend(of_bar)
        return MagicMock()

    monkeypatch.setattr("s2sent.training.loop.callbacks.Bar", bar)
    progress = Progress("dev", batch_size=8)
    progress.on_train_begin(None, TrainerState(max_steps=4), TrainerControl())
    assert not any(isinstance(column, TimeRemainingColumn) for column in columns)
    assert columns
