"""Tasks that a run starts once their rate and their executor allow."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from flowpregel import InMemorySaver
from flowpregel._engine.admission import AdmissionQueue
from flowpregel._engine.inbox import RunInbox
from flowpregel.context import Job
from flowpregel.executors.local import InlineExecutor
from flowpregel.executors.rates import RateLog, rates_of
from flowpregel.executors.resources import SharedLimits
from flowpregel.policies import Resources
from tests.unit.executors.quick_pools import job_of


class RecordingSaver(InMemorySaver):
    """A saver that keeps the record of a rate."""

    record: bytes | None = None

    def change_rate(self, _: str, change: Any) -> Any:
        """Change the record."""
        self.record, result = change(self.record)
        return result


def test_tokens_of_calls_that_have_lost_their_room_are_given_back() -> None:
    """They would start later than they have booked."""
    saver, room, begun = RecordingSaver(), [4], list[Job]()
    run: Any = SimpleNamespace(committer=SimpleNamespace(saver=saver))
    executor, jobs = InlineExecutor(print), []
    for _ in range(6):
        job = job_of(resources=Resources(rate="100/day"))
        jobs.append(replace(job, run=run, executor=executor))
    queue = AdmissionQueue(RunInbox(), lambda _: room[0] - len(begun), begun.append)
    queue.add(jobs, SharedLimits(), None)
    join_bookings()
    assert 4 == tokens_in(saver.record)

    room[0] = 1
    queue.start_ready()
    join_bookings()

    assert jobs[:1] == begun
    assert 1 == tokens_in(saver.record)
    assert all(rates_of(saver).must_ask(job.task.id) for job in jobs[1:])


def tokens_in(record: bytes | None) -> float:
    """Return the tokens that are booked: those of a day's rate that are not free."""
    free, now = 100, time.time()
    while not RateLog.of(record).book_now(free, (100, 86_400), now):
        free -= 1
    return 100 - free


def join_bookings() -> None:
    """Wait until no OS thread books or corrects."""
    for thread in threading.enumerate():
        if thread.name == "flowpregel-rates":
            thread.join(60)
