"""What a run is given of what has arrived for it, and when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from flowpregel._core.effects import Emitted, Event
from flowpregel._engine.inbox import MOST_AT_ONCE, LoopInbox, RunInbox
from flowpregel.executors.base import BACKLOG
from flowpregel.executors.unread import UnreadEvent


def payloads(events: list[Event]) -> list[object]:
    """Return what the events carry."""
    return [event.payload for event in events if isinstance(event, Emitted)]


@pytest.fixture
def inbox() -> RunInbox:
    """Return an inbox that nothing has arrived in."""
    return RunInbox()


def fill(inbox: RunInbox, count: int) -> None:
    """Post so many events."""
    for number in range(count):
        inbox.post(Emitted("t", number))


def test_of_thousands_of_events_a_run_gets_some_at_a_time_and_all_in_their_order(
    inbox: RunInbox,
) -> None:
    """What the first ask for is begun before the last are looked at."""
    fill(inbox, 2_000)
    taken: list[list[object]] = []
    while events := inbox.take(0):
        taken.append(payloads(events))

    assert list(range(2_000)) == [each for part in taken for each in part]
    assert MOST_AT_ONCE == max(map(len, taken))


def test_the_backlog_counts_until_everything_was_taken(inbox: RunInbox) -> None:
    """Who streams too fast is held back that long."""
    fill(inbox, 2_000)
    inbox.backlog.add(10)
    inbox.take(0)
    first = inbox.backlog.size
    while inbox.take(0):
        pass

    assert (10, 0) == (first, inbox.backlog.size)


def test_who_is_held_back_goes_on_when_the_run_has_taken_everything(
    inbox: RunInbox,
) -> None:
    released: list[str] = []
    fill(inbox, 1)
    assert inbox.backlog.add(BACKLOG + 1)
    assert inbox.backlog.hold(lambda: released.append("now"))

    inbox.take(0)
    assert [] == released
    inbox.take(0)

    assert ["now"] == released
    assert not inbox.backlog.hold(lambda: released.append("again"))


def test_what_is_posted_together_arrives_in_its_order(inbox: RunInbox) -> None:
    fill(inbox, 1)

    inbox.post(*(Emitted("t", number) for number in (1, 2)))

    assert [0, 1, 2] == payloads(inbox.take(0))


def soon(seconds: float) -> int:
    """Return when these seconds are over, in monotonic nanoseconds."""
    return time.monotonic_ns() + int(seconds * 1e9)


def posting(inbox: RunInbox, count: int) -> threading.Thread:
    """Return an OS thread that posts *count* events, one by one."""
    return threading.Thread(target=fill, args=(inbox, count))


def test_a_run_that_waits_is_woken_by_each_post(inbox: RunInbox) -> None:
    """However the posts of other OS threads fall between looking and sleeping."""
    count = 2_000
    poster = posting(inbox, count)
    poster.start()
    arrived: list[object] = []
    while len(arrived) < count:
        found = payloads(inbox.take(soon(30)))
        assert found
        arrived += found
    poster.join()

    assert [*range(count)] == arrived
    assert [] == inbox.take(soon(0.01))


@pytest.mark.parametrize("start", [threading.Thread.start, threading.Thread.run])
def test_a_run_on_a_loop_is_woken_from_any_os_thread(
    start: Callable[[threading.Thread], None],
) -> None:
    """Its own among them."""

    async def main() -> list[object]:
        inbox = LoopInbox(asyncio.get_running_loop())
        start(posting(inbox, 2_000))
        arrived: list[object] = []
        while len(arrived) < 2_000:
            found = payloads(await inbox.take_on_loop(soon(30)))
            assert found
            arrived += found
        assert [] == await inbox.take_on_loop(soon(0.01))
        return arrived

    assert [*range(2_000)] == asyncio.run(main())


class Endless(UnreadEvent):
    """Is read for ever, unless it is given up."""

    is_plain = False

    def __init__(self) -> None:
        self.is_over = threading.Event()

    def read(self) -> Event:
        """Wait."""
        self.is_over.wait()
        return Emitted("t", "read")

    def give_up(self) -> Event:
        """Return another event."""
        return Emitted("t", "given up")


def test_a_value_that_takes_too_long_to_read_is_given_up_alone() -> None:
    """On an event loop, where reading has a limit; the events around it are taken."""
    endless = Endless()

    async def take() -> list[object]:
        inbox = LoopInbox(asyncio.get_running_loop())
        inbox.post(Emitted("t", "before"), endless, Emitted("t", "after"))
        inbox.reading_limit = 0.01
        taken: list[Event] = []
        while len(taken) < 3:
            taken += await inbox.take_on_loop(None)
        return payloads(taken)

    try:
        assert ["before", "given up", "after"] == asyncio.run(
            asyncio.wait_for(take(), 60)
        )
    finally:
        endless.is_over.set()
