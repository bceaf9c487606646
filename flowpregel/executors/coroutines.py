"""An executor that runs async tasks on an event loop: the loop of the run, or a new
loop on a separate OS thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from math import inf

from flowpregel._core.effects import Ended
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import Job
from flowpregel.executors.attempt import aperform, outcome_of
from flowpregel.executors.base import Capabilities, Executor, JobKey, Mailbox
from flowpregel.executors.calls import OpenCalls
from flowpregel.executors.local import LocalRunClient, no_os_thread, stop_calls


class CoroutineExecutor(Executor):
    """An executor that runs each job as an `asyncio.Task` of an event loop.

    Args:
        loop: The running loop of the caller. If it is None, a new loop on a separate OS
            thread is created when the first job arrives.
    """

    capabilities: Capabilities = Capabilities(
        times_out=True, cancels=True, runs_here=True
    )

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._calls: dict[JobKey, OpenCalls] = {}

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Start each job as a coroutine."""
        try:
            loop = self._loop or self._start_loop()
        # A RuntimeError means that the operating system refuses another OS thread.
        except RuntimeError as error:
            for job in jobs:
                failure = Raised(no_os_thread(job, error))
                mailbox.post(Ended(*job.key, failure))
            return
        for job in jobs:
            loop.call_soon_threadsafe(self._begin, job, mailbox)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        """Create the event loop and its OS thread, and return the loop.

        Raises:
            RuntimeError: No more OS threads can be started.
        """
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=loop.run_forever, name="flowpregel-loop", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            loop.close()
            raise
        self._loop = loop
        self._thread = thread
        return loop

    def _begin(self, job: Job, mailbox: Mailbox) -> None:
        attempt = self._run(job, mailbox)
        loop = asyncio.get_running_loop()
        task = loop.create_task(attempt, context=job.variables.copy())
        self._tasks[job.key] = task

        def forget(done: asyncio.Task[None]) -> None:
            self._tasks.pop(job.key, None)
            if done.cancelled():
                # If an asyncio task is cancelled before it has run its first line, its
                # code cannot post the end of the job. So the end is posted here.
                mailbox.post(Ended(*job.key, Withdrawn()))

        task.add_done_callback(forget)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Cancel the coroutine of a job. If the job has made calls that have not
        succeeded, cancel it only if *kill*.
        """
        if self._loop is not None and (kill or not self._calls.get(key)):
            self._loop.call_soon_threadsafe(self._cancel, key)

    def warn(self, key: JobKey) -> None:
        """Do nothing, because a running job can see in this process whether its run
        will end.
        """

    def _cancel(self, key: JobKey) -> None:
        stop_calls(self._calls.get(key, ()), "the run was stopped")
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the jobs that have not ended. None of them waits for a free place to
        run.
        """
        return dict.fromkeys([*self._tasks], (os.getpid(), 0))

    def close(self) -> None:
        """End the event loop, if this executor created it."""
        if self._thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = self._loop = None

    async def _run(self, job: Job, mailbox: Mailbox) -> None:
        client = LocalRunClient(job, mailbox)
        calls = client.open_calls
        self._calls[job.key] = calls
        try:
            outcome = await _timed(job, client)
        except asyncio.CancelledError:
            outcome = Withdrawn()
        except BaseException as error:  # noqa: BLE001 - how it ended is the result
            outcome = outcome_of(job, error)
        # The reference to the asyncio task of the attempt is dropped. Otherwise a
        # future that the user's code still refers to would keep that task alive.
        calls.home = None
        del self._calls[job.key]
        client.end(outcome, "coroutines")


async def _timed(job: Job, client: LocalRunClient) -> Outcome:
    """Run an attempt, and stop it if it takes too long or shows no sign of life."""
    policy = job.task.timeout
    if policy is None:
        client.open_calls.home = asyncio.current_task()
        return await aperform(job, client)
    began = client.last_activity
    attempt = asyncio.create_task(aperform(job, client))
    client.open_calls.home = attempt
    try:
        while True:
            now = time.monotonic()
            limit = policy.next_limit(began, client.last_activity)
            remaining = limit.at - now
            if remaining <= 0:
                break
            timeout = None if remaining == inf else remaining
            done, _ = await asyncio.wait({attempt}, timeout=timeout)
            if done:
                return attempt.result()
    finally:
        if not attempt.done():
            attempt.cancel()
            await asyncio.wait({attempt})
    return Raised(limit.error(job.task.name, now - began))
