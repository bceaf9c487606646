"""The books of a pool: whose tasks are in it, and who is told of their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flowpregel._core.effects import Ended, Event
from flowpregel._core.records import Kind, Node, Withdrawn
from flowpregel._engine.inbox import RunInbox
from flowpregel.context import TaskInfo
from flowpregel.executors.base import Job
from flowpregel.executors.processes.books import Books
from flowpregel.executors.processes.slot import Flight, Landing, Party


def flight(number: int, mailbox: Any = None, attended: bool = True, attempt: int = 1) -> Flight:
    """Return a flight of a task that is named after its number, without the hundreds."""
    info = TaskInfo(f"t{number % 100}", "n", "", 0, 1, attempt)
    return Flight(Job(info, Kind.PULL, Node(name="n"), None), mailbox, Party(attended), number)


def books_of(*flights: Flight) -> Books:
    """Return books with these in them."""
    books = Books()
    for each in flights:
        books.add({each.number: each}, each.party.attended)
    return books


def landed(*flights: Flight) -> list[Landing]:
    """Return how flights have ended."""
    return [(each, each.ended(Withdrawn(), None)) for each in flights]


def told(mailbox: RunInbox) -> list[str]:
    """Return the tasks of whose ends a run was told."""
    return [event.task_id for event in mailbox.drain() if isinstance(event, Ended)]


def test_each_run_is_told_of_its_own_in_their_order() -> None:
    """Also where one worker had tasks of both."""
    ours, theirs = RunInbox(), RunInbox()
    flights = [flight(1, ours), flight(2, theirs), flight(3, theirs), flight(4, ours)]
    books = books_of(*flights)

    books.strike(landed(*flights))
    books.tell()

    assert (["t1", "t4"], ["t2", "t3"]) == (told(ours), told(theirs))
    assert not books


class Interrupted(RunInbox):
    """A mailbox on whose run's OS thread the user presses Ctrl-C, once."""

    is_over = False

    def post_all(self, events: Sequence[Event]) -> None:
        """Deliver events, but the first time."""
        if not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt
        super().post_all(events)


def test_ctrl_c_loses_no_other_runs_news() -> None:
    """It may come while one OS thread tells the runs of several."""
    first, stopped, other = RunInbox(), Interrupted(), RunInbox()
    flights = [flight(1, first), flight(2, stopped), flight(3, other)]
    books = books_of(*flights)
    books.strike(landed(*flights))

    with pytest.raises(KeyboardInterrupt):
        books.tell()

    assert (["t2"], ["t3"]) == (told(stopped), told(other))
    assert {"t1"} == {*told(first)}, "perhaps twice"


def test_what_has_ended_twice_is_told_once() -> None:
    """Ctrl-C came after the books were right: what the worker has sent is read again."""
    mailbox = RunInbox()
    both = flight(1, mailbox, attended=False), flight(2, mailbox, attended=False)
    books = books_of(*both)

    books.strike(landed(both[0]))
    books.strike(landed(*both))
    books.tell()

    assert ["t1", "t2"] == told(mailbox)
    assert 0 == books.unattended


def test_a_job_is_found_whenever_it_came() -> None:
    """Before anybody asked for one by its task, or after; once it has ended, no more."""
    first, second = flight(1), flight(2)
    books = books_of(first)
    assert first is books.find(("t1", 1))
    books.add({2: second}, True)

    assert second is books.find(("t2", 1))
    books.strike(landed(second))
    assert books.find(("t2", 1)) is None
    assert first is books.find(("t1", 1))
    books.strike(landed(first))
    assert books.find(("t1", 1)) is None


def test_the_end_of_an_earlier_attempt_does_not_hide_the_later() -> None:
    """They have the task in common."""
    earlier, later = flight(1, RunInbox()), flight(101, attempt=2)
    books = books_of(earlier, later)

    assert books.find(("t1", 1)) is None
    books.strike(landed(earlier))

    assert later is books.find(("t1", 2))
