"""What a run is given of what has arrived for it, and when."""

from __future__ import annotations

from flowpregel._core.effects import Emitted
from flowpregel._host.mailbox import ThreadMailbox


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
