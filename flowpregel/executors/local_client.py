"""A task's ends of what connects it to its run, in the process that drives the run."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final
from weakref import ref

from flowpregel._core.copies import bring_back, keep
from flowpregel._core.effects import CANCEL, SAVE, Call, Emitted
from flowpregel._core.ids import Asked
from flowpregel._core.records import (
    Arguments,
    Node,
    Outcome,
    Raised,
    failed_calls,
)
from flowpregel.context import Job, RunClient
from flowpregel.errors import TaskCancelled
from flowpregel.executors.base import JobKey, Mailbox
from flowpregel.executors.calls import CallFuture, OpenCalls, on_event_loop
from flowpregel.executors.shared import captured, runs_elsewhere

_CALL_SIZE: Final = 32 << 10
"""Bytes that a call counts for in its run's `Backlog`."""
_LONGEST_HOLD: Final = 0.05
"""Seconds for which a body is held back at most; a run that has failed takes nothing in."""


class LocalRunClient(RunClient):
    """Connects a task in this process to its run.

    Args:
        job: What the task is.
        mailbox: Where its events go.
        turn: What `CallFuture` takes.
        before_first: Called before the task makes its first call. Given where a task has an OS
            thread to itself: one that makes many calls is held back until the run has taken
            them in.
    """

    def __init__(
        self,
        job: Job,
        mailbox: Mailbox,
        turn: Callable[[CallFuture[Any]], None] | None = None,
        before_first: Callable[[], None] | None = None,
    ) -> None:
        self._job = job
        self._mailbox = mailbox
        self._turn = turn
        self._before_first = before_first
        self.heard = time.monotonic()
        """When the task has shown last that it is alive."""
        self._all_count = job.task.timeout is not None and job.task.timeout.refresh_on == "auto"
        """Whether all that it does with its run shows that."""
        self.made = OpenCalls()
        self.made.cancel = partial(_cancel, ref(mailbox), job.key)
        """Its calls. One that succeeded is not kept, so that its result goes when its
        caller drops it."""

    def emit(self, payload: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        if self._all_count:
            self.beat()
        self._mailbox.post(Emitted(self._job.task.id, payload))

    def call(self, node: Node, arguments: Arguments, asked: Asked | None, *reply: Any) -> Any:
        """Make a call, and return its future: *reply*, if its caller has that already."""
        job = self._job
        if self._all_count:
            self.beat()
        if not self.made.count and self._before_first is not None:
            self._before_first()
        if runs_elsewhere(node, job.run.executor):
            may_wait = not reply and self._turn is None and not on_event_loop()
            arguments = captured(arguments, may_wait=may_wait)
        # Not CallFuture[Any](...): the alias would add an attribute to each future.
        future: CallFuture[Any] = reply[0] if reply else CallFuture(self._turn, self.made)
        call = Call(job.task.id, job.attempt, node, arguments, asked, future, copy_context())
        self._mailbox.post(call)
        backlog = self._mailbox.backlog
        is_alone = self._before_first is not None and not reply
        if is_alone and backlog is not None and backlog.add(_CALL_SIZE):
            # The body makes calls faster than its run starts them.
            taken = threading.Event()
            if backlog.hold(taken.set):
                taken.wait(_LONGEST_HOLD)
        return future

    def beat(self) -> None:
        """Show that the task is alive."""
        self.heard = time.monotonic()

    def is_ending(self) -> bool:
        """Return whether the run was told to end in time."""
        return bool(self._job.run.ending)

    def save(self, state: Any) -> None:
        """Keep a copy of *state* for the next attempt; on an event loop, without waiting."""
        job, reply = self._job, CallFuture[Any](self._turn)
        if self._all_count:
            self.beat()
        # One of its calls: a run that is stopped tells it so.
        self.made.add(reply)
        given = Arguments((bring_back(keep(state, "the saved state"), "it"),), {})
        self._mailbox.post(Call(job.task.id, job.attempt, SAVE, given, None, reply))
        reply.add_done_callback(self.made.discard)
        if self._turn is not None or not on_event_loop():
            reply.result()


def _cancel(mailbox: ref[Mailbox], key: JobKey, future: CallFuture[Any]) -> None:
    """Tell the run that a body no longer wants a call, if the run is still there."""
    if (there := mailbox()) is not None:
        there.post(Call(*key, CANCEL, Arguments((), {}), None, future))


def stop_calls(calls: Collection[CallFuture[Any]], reason: str) -> None:
    """Wake a body that waits for *calls*, which is to end."""
    for future in list(calls):
        with suppress(concurrent.futures.InvalidStateError):
            if not future.done():
                future.set_exception(TaskCancelled(reason))


def caught_of(outcome: Outcome, calls: OpenCalls) -> Collection[str] | None:
    """Return which of these calls' failures their body has seen; None: it made no call.

    A call that has not ended for it yet is among those that it has not seen.
    """
    if not calls.count:
        return None
    is_of_a_call = isinstance(outcome, Raised) and bool(failed_calls(outcome.error))
    caught: set[str] = set()
    for future in list(calls):
        unseen = not future.looked_at or (is_of_a_call and future.may_be_unseen)
        if not unseen and (failure := future.failure) is not None:
            caught |= failed_calls(failure)
    return caught
