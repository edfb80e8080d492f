"""Who works for a client is told once when it leaves, also when it has left already."""

from service.http.disconnect import Departure


def test_watchers_are_told_once() -> None:
    departure, told = Departure(), list[str]()
    departure.watch(lambda: told.append("one"))
    departure.watch(lambda: told.append("two"))
    departure.come()
    departure.come()
    assert sorted(told) == ["one", "two"]


def test_who_comes_too_late_is_told_at_once() -> None:
    departure, told = Departure(), list[str]()
    departure.come()
    departure.watch(lambda: told.append("late"))
    assert told == ["late"]


def test_who_no_longer_watches_is_not_told() -> None:
    departure, told = Departure(), list[str]()

    def watcher() -> None:
        told.append("told")

    departure.watch(watcher)
    departure.unwatch(watcher)
    departure.unwatch(watcher)
    departure.come()
    assert told == []
