"""The executor that runs async jobs on an event loop."""

from __future__ import annotations

import sys
import threading
from typing import Any

from flowpregel._core.records import Raised
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.coroutines import CoroutineExecutor
from tests.unit.executors.quick_pools import Events, job_of


async def doubled(number: int) -> int:
    """Return twice *number*."""
    return 2 * number


def refuse_threads(frame: Any, event: str, _: Any) -> None:
    """Raise an error where an OS thread is started, as if there were too many."""
    if event == "call" and frame.f_code is threading.Thread.start.__code__:
        sys.setprofile(None)
        raise RuntimeError("can't start new thread")


def test_jobs_fail_by_name_if_no_os_thread_can_be_started_for_their_loop() -> None:
    """A later job starts as soon as the system allows another OS thread."""
    executor = CoroutineExecutor()
    events = Events()
    refused = [job_of(doubled, 1), job_of(doubled, 2)]
    later = job_of(doubled, 3)

    sys.setprofile(refuse_threads)
    try:
        executor.start(refused, events)
    finally:
        sys.setprofile(None)

    for outcome in events.outcomes(*refused):
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.error, ExecutorUnavailableError)
        assert str(outcome.error).startswith(
            "no OS thread can be started for task 'doubled' (can't start new thread)"
        )
    executor.start([later], events)
    assert 6 == events.value(later)
    executor.close()
    assert events.is_empty()
