"""What a run is given of what has arrived for it, and when."""

from __future__ import annotations

import threading
from unittest import mock

from flowpregel._core.effects import Emitted
from flowpregel._engine import mailbox as mailboxes
from flowpregel._engine.mailbox import ThreadMailbox


def mailbox_with(count: int) -> ThreadMailbox:
    """Return a mailbox in which so many events lie."""
    mailbox = ThreadMailbox()
    for number in range(count):
        mailbox.post(Emitted("t", number))
    return mailbox


def payloads(events: list[object]) -> list[object]:
    """Return what the events carry."""
    return [event.payload for event in events if isinstance(event, Emitted)]


def test_of_thousands_of_events_a_run_gets_some_at_a_time_and_all_in_their_order() -> None:
    """What the first ask for is begun before the last are looked at."""
    mailbox = mailbox_with(2_000)
    taken: list[list[object]] = []
    while events := mailbox.take(0):
        taken.append(payloads([*events]))

    assert list(range(2_000)) == [each for part in taken for each in part]
    assert len(taken) > 1


def test_links_are_read_between_two_helpings() -> None:
    """Workers that have finished get more to do meanwhile."""
    mailbox = mailbox_with(2_000)
    waits: list[float | None] = []
    mailbox.attend = waits.append

    mailbox.take(None)

    assert [0] == waits


def test_what_an_inline_task_left_behind_is_taken_whole() -> None:
    """Its end, which is told beside, would overtake the rest."""
    assert 2_000 == len(mailbox_with(2_000).drain())


def test_the_backlog_counts_until_everything_was_taken() -> None:
    """Who streams too fast is held back that long."""
    mailbox = mailbox_with(2_000)
    mailbox.backlog.add(10)
    mailbox.take(0)
    first = mailbox.backlog.size
    while mailbox.take(0):
        pass

    assert (10, 0) == (first, mailbox.backlog.size)


def test_what_is_posted_together_arrives_in_its_order_with_one_interruption() -> None:
    """The run looks up once."""
    mailbox = mailbox_with(1)
    interruptions: list[int] = []
    mailbox.interrupt_attend = lambda: interruptions.append(1)

    mailbox.post_all([Emitted("t", number) for number in (1, 2)])

    assert [0, 1, 2] == payloads([*mailbox.take(0)])
    assert [1] == interruptions


def test_who_sleeps_is_woken_by_each_post_and_by_none_that_was_taken() -> None:
    """However the posts of other OS threads fall between looking and sleeping."""
    mailbox, count = ThreadMailbox(), 2_000

    def post() -> None:
        for number in range(count):
            mailbox.post(Emitted("t", number))

    poster = threading.Thread(target=post)
    poster.start()
    arrived: list[object] = []
    while len(arrived) < count:
        helping = payloads([*mailbox.take(30)])
        assert helping
        arrived += helping
    poster.join()

    assert [*range(count)] == arrived
    assert [] == mailbox.take(0.01)


def test_who_makes_very_many_calls_waits_until_they_are_taken() -> None:
    """So that the run, which has to start them, has the interpreter for itself."""
    mailbox = mailbox_with(3)
    begun, gone_on = threading.Event(), threading.Event()

    class Waiting(list[int]):
        """Tells that it is looked at, which is the last thing before the wait."""

        def __bool__(self) -> bool:
            begun.set()
            return True

    def give_way() -> None:
        mailbox.way.give(Waiting())
        gone_on.set()

    with mock.patch.object(mailboxes, "_MOMENT", 60):
        poster = threading.Thread(target=give_way)
        poster.start()
        assert begun.wait(30)
        assert [0, 1, 2] == payloads([*mailbox.take(0)])
        assert not gone_on.is_set(), "more may be on its way"
        assert [] == mailbox.take(0)
        assert gone_on.wait(30)
        poster.join()


def test_who_gives_way_to_nobody_goes_on_after_a_moment() -> None:
    """A run that has failed takes nothing any more, and its bodies go on to their ends."""
    mailbox = mailbox_with(1)
    mailbox.give_way()
    assert [0] == payloads([*mailbox.take(0)])


def test_nobody_waits_for_what_was_taken() -> None:
    mailbox = ThreadMailbox()
    with mock.patch.object(mailboxes, "_MOMENT", 60):
        mailbox.give_way()
