"""Runs async tasks on an event loop: the one a run is on, or one on an OS thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from flowpregel._core.effects import Call, Ended
from flowpregel._core.records import Outcome, Raised, Withdrawn
from flowpregel.context import RunClient
from flowpregel.errors import NodeTimeoutError
from flowpregel.executors.attempt import aperform, outcome_of
from flowpregel.executors.base import Capabilities, Executor, Job, JobKey, Mailbox, Stopwatch
from flowpregel.executors.calls import (
    LocalRunClient,
    OpenCalls,
    caught_of,
    resolve_future,
    stop_calls,
)


class CoroutineExecutor(Executor):
    """Runs each job as a task of an event loop.

    Args:
        loop: The running loop of the caller; None makes one, on an OS thread
            of its own, when the first job comes.
    """

    capabilities = Capabilities(times_out=True, cancels=True)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._made: dict[JobKey, OpenCalls] = {}

    def start(self, job: Job, mailbox: Mailbox) -> None:
        """Start *job* as a coroutine."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="flowpregel-loop", daemon=True
            )
            self._thread.start()
        if self._thread is None:
            self._begin(job, mailbox)
        else:
            self._loop.call_soon_threadsafe(self._begin, job, mailbox)

    def _begin(self, job: Job, mailbox: Mailbox) -> None:
        context = None if job.variables is None else job.variables.copy()
        task = asyncio.get_running_loop().create_task(self._run(job, mailbox), context=context)
        self._tasks[job.key] = task

        def forget(done: asyncio.Task[None]) -> None:
            self._tasks.pop(job.key, None)
            if done.cancelled():
                # It was cancelled before its first line ran, so it could not say so itself.
                mailbox.post(Ended(*job.key, Withdrawn()))

        task.add_done_callback(forget)

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Cancel a coroutine; one that waits for calls, only if *kill*."""
        if self._loop is None:
            return
        if self._made.get(key) and not kill:
            return
        if self._thread is None:
            self._cancel(key)
        else:
            self._loop.call_soon_threadsafe(self._cancel, key)

    def _cancel(self, key: JobKey) -> None:
        stop_calls(self._made.get(key, set()), "the run was stopped")
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    def resolve(self, call: Call, outcome: Outcome) -> None:
        """Hand the caller that made *call* its outcome."""
        resolve_future(call, outcome)

    def close(self) -> None:
        """End the loop, if it is our own."""
        if self._thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = self._loop = None

    async def _run(self, job: Job, mailbox: Mailbox) -> None:
        ends = LocalRunClient(job, mailbox)
        made = ends.made
        self._made[job.key] = made
        watch = Stopwatch()
        try:
            outcome = await _timed(job, ends, made)
        except asyncio.CancelledError:
            outcome = Withdrawn()
        except BaseException as error:  # noqa: BLE001 - how it ended is the result
            outcome = outcome_of(job, error)
        caught = caught_of(outcome, made)
        # Who keeps a future does not keep the body with it.
        made.home = None
        del self._made[job.key]
        mailbox.post(Ended(*job.key, outcome, watch.stop("coroutines"), caught))


async def _timed(job: Job, ends: RunClient, made: OpenCalls) -> Outcome:
    """Run an attempt, and stop it when it takes too long or shows no sign of life."""
    policy = job.timeout
    if policy is None:
        made.home = asyncio.current_task()
        return await aperform(job, ends)
    began = last = time.monotonic()

    def alive(*_: Any) -> None:
        nonlocal last
        last = time.monotonic()

    run_limit = float("inf") if policy.run_timeout is None else float(policy.run_timeout)  # type: ignore[arg-type]
    idle_limit = float("inf") if policy.idle_timeout is None else float(policy.idle_timeout)  # type: ignore[arg-type]
    attempt = asyncio.ensure_future(aperform(job, _watched(ends, alive, policy.refresh_on)))
    made.home = attempt
    try:
        while True:
            now = time.monotonic()
            over = began + run_limit, last + idle_limit
            if min(over) <= now:
                break
            done, _ = await asyncio.wait({attempt}, timeout=_finite(min(over) - now))
            if done:
                return attempt.result()
    finally:
        if not attempt.done():
            attempt.cancel()
            await asyncio.wait({attempt})
    if began + run_limit <= now:
        return Raised(NodeTimeoutError(job.node.name, now - began, "run", run_limit))
    return Raised(NodeTimeoutError(job.node.name, now - began, "idle", idle_limit))


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _watched(ends: RunClient, alive: Any, refresh_on: str) -> RunClient:
    """Return *ends* that take what passes through them as a sign of life."""
    if refresh_on == "heartbeat":
        return RunClient(ends.emit, ends.call, alive)

    def emit(payload: Any) -> None:
        alive()
        ends.emit(payload)

    def call(*args: Any) -> Any:
        alive()
        return ends.call(*args)

    return RunClient(emit, call, alive)
