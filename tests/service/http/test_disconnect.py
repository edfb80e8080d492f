"""Who works for a client is told once when it leaves, also when it has left already."""

from service.http.disconnect import DisconnectSignal


def test_watchers_are_told_once() -> None:
    signal, told = DisconnectSignal(), list[str]()
    signal.add_callback(lambda: told.append("one"))
    signal.add_callback(lambda: told.append("two"))
    signal.fire()
    signal.fire()
    assert sorted(told) == ["one", "two"]


def test_who_comes_too_late_is_told_at_once() -> None:
    signal, told = DisconnectSignal(), list[str]()
    signal.fire()
    signal.add_callback(lambda: told.append("late"))
    assert told == ["late"]


def test_who_no_longer_watches_is_not_told() -> None:
    signal, told = DisconnectSignal(), list[str]()

    def watcher() -> None:
        told.append("told")

    signal.add_callback(watcher)
    signal.remove_callback(watcher)
    signal.remove_callback(watcher)
    signal.fire()
    assert told == []
