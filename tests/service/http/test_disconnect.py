"""Callbacks run once when the client disconnects, at once if it has disconnected already."""

from s2sent.service.http.disconnect import DisconnectSignal


def test_callbacks_are_called_once() -> None:
    signal, called = DisconnectSignal(), list[str]()
    signal.add_callback(lambda: called.append("one"))
    signal.add_callback(lambda: called.append("two"))
    signal.fire()
    signal.fire()
    assert sorted(called) == ["one", "two"]


def test_a_callback_added_too_late_is_called_at_once() -> None:
    signal, called = DisconnectSignal(), list[str]()
    signal.fire()
    signal.add_callback(lambda: called.append("late"))
    assert called == ["late"]


def test_a_removed_callback_is_not_called() -> None:
    signal, called = DisconnectSignal(), list[str]()

    def callback() -> None:
        called.append("called")

    signal.add_callback(callback)
    signal.remove_callback(callback)
    signal.remove_callback(callback)
    signal.fire()
    assert called == []
