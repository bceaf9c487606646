"""Where tasks run in this process: limits, nesting, time, cancelling, and what is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from flowpregel._core.effects import Ended
from flowpregel._core.records import Withdrawn
from flowpregel._host.loop_mailbox import LoopMailbox
from tests.graphs import fan_out


def fail(_: Any) -> None:
    """Fail at once."""
    raise ValueError("boom")


# -------------------------------------------------------------------- step timeout


@pytest.mark.slow
def test_a_step_timeout_ends_the_run_while_its_only_task_still_runs(drive: Any) -> None:
    """Nobody has to wait for the OS thread that hangs."""
    release = threading.Event()
    app = fan_out(lambda _: release.wait(10), step_timeout=0.05, executor="threads")
    began = time.monotonic()

    with pytest.raises(TimeoutError, match="n0"):
        drive.invoke(app, 1)

    assert time.monotonic() - began < 5
    release.set()


def test_a_step_timeout_cancels_async_tasks_that_still_run() -> None:
    """A coroutine does not go on behind the back of a run that has ended."""
    ended = []

    async def hang(_: Any) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await fan_out(hang, step_timeout=0.02).ainvoke(1)
        await asyncio.sleep(0)

    asyncio.run(main())

    assert ["cancelled"] == ended


def test_a_task_that_ends_after_its_loop_was_closed_disturbs_nobody() -> None:
    """It was left behind by a step timeout, and reports to a mailbox that nobody empties."""
    loop = asyncio.new_event_loop()
    mailbox = LoopMailbox(loop)
    loop.close()
    thread = threading.Thread(target=mailbox.post, args=(Ended("t", 1, Withdrawn()),))

    thread.start()
    thread.join()

    assert [Ended("t", 1, Withdrawn())] == mailbox.drain()


# -------------------------------------------------------------------- failing siblings


def test_a_coroutine_that_is_cancelled_before_it_began_does_not_hang_the_run() -> None:
    """Its sibling fails on the loop's own OS thread, before the loop had a turn."""

    async def never_begins(_: Any) -> str:
        return "ran"

    app = fan_out(fail, never_begins, executor="inline")

    with pytest.raises(ValueError, match="boom"):
        asyncio.run(asyncio.wait_for(app.ainvoke(1), 5))


# -------------------------------------------------------------------- OS threads


def test_no_more_os_threads_are_made_than_tasks_may_run() -> None:
    """However fast tasks are submitted."""
    names = set()
    lock = threading.Lock()
    before = threading.active_count()
    most = []

    def note(_: Any) -> None:
        with lock:
            names.add(threading.current_thread().name)
            most.append(threading.active_count() - before)

    app = fan_out(*[note] * 50, executor="threads")
    app.invoke(1, max_concurrency=3)

    assert max(most) <= 3
    assert len(names) <= 3
