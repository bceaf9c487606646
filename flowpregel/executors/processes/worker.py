"""The loop in a worker process: take an order, do it, answer.

::

    link --> inbox --> order --> perform(job) --> outcome --> outlet --> link
                                    | emit, call, beat, log, print ^

The main thread runs the tasks, so that signals reach them and libraries that
insist on the main thread work.
"""

from __future__ import annotations

import contextvars
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flowpregel import _fault
from flowpregel._core.records import Node, Outcome, Raised, Withdrawn
from flowpregel._fault import arm, fault
from flowpregel.context import Scope
from flowpregel.errors import TaskCancelled, TaskSerializationError
from flowpregel.executors.attempt import perform_in, scope_of
from flowpregel.executors.calls import caught_of
from flowpregel.executors.processes import birth, frames, messages, sent_ahead, serialization, talk
from flowpregel.executors.processes.board import Board
from flowpregel.executors.processes.brief import FIRST, LIKE, TASK, plain_write
from flowpregel.executors.processes.ends import TaskRunClient, WorkerRunClient
from flowpregel.executors.processes.likes import First, LateScope, Own
from flowpregel.executors.processes.serialization import BufferRef
from flowpregel.executors.processes.setup import Setup
from flowpregel.executors.processes.shared_memory import (
    Arena,
    BufferReader,
    FdSocket,
    ReleaseQueue,
    released_in,
)
from flowpregel.executors.processes.structured import Structured
from flowpregel.executors.processes.wire import Inbox, Outlet
from flowpregel.runinfo import RunInfo

if TYPE_CHECKING:
    from flowpregel.executors.processes.contexts import Contexts

BATCH: Final = 1
"""TASKS: there are several; each has a token."""
SPARE: Final = 2
"""TASKS: there is a CPU to spare."""
RAN: Final = Struct("<fq")
"""At the start of an ENDED frame: for how many seconds the task ran, and when it began."""
Order: TypeAlias = bytes | memoryview | Own
"""What there is to say of a task; a tuple if it is like another."""
_SMALL: Final = 4096
_HOLD: Final = 5_000_000
"""Nanoseconds for which results of a batch may be held back, to send many at once."""


def main(setup: Setup) -> None:
    """Live as a worker until the coordinator is gone or says stop."""
    arm("worker.")
    serialization.mark_as_worker()
    birth.settle(setup.stdout, setup.stderr, setup.coordinator)
    worker = Worker(setup)
    if worker.initialize(setup.initializer):
        worker.run()


class Worker:
    """Runs one task at a time.

    Args:
        setup: Where its ends are.
    """

    def __init__(self, setup: Setup) -> None:
        for fd in (setup.link, setup.door, setup.board, setup.tokens):
            os.set_inheritable(fd, False)
        link = socket.socket(fileno=setup.link)
        self._outlet = Outlet(link, setup.mark)
        self._inbox = Inbox(link, setup.mark, self._answered)
        self._board = Board(setup.board)
        self._turns = Turns(setup.tokens)
        door = FdSocket(socket.socket(fileno=setup.door))
        self._returns = ReleaseQueue()
        self._reader = BufferReader(door, self._returns)
        self._shares = Shares(Arena(setup.shared_limit, segments=setup.segments), door)
        self._flushed = self._now = self._offset = 0
        self._ends = ends = WorkerRunClient(self._outlet, self._inbox.listen)
        self._out, self._err = talk.take_over(self._outlet, setup.log_levels, lambda: ends.number)
        self._structured = Structured(self._outlet, lambda: ends.number)
        self._contexts: Contexts | None = None
        self._nodes: dict[bytes, bytes | Node] = {}
        self._runs: dict[int, Callable[[], RunInfo]] = {}
        self._stoppable = False
        self._stopped = False
        self._forked = False
        os.register_at_fork(after_in_child=self._after_fork)
        signal.signal(birth.STOP_SIGNAL, self._on_stop_signal)

    def initialize(self, initializer: bytes) -> bool:
        """Run the pool's initializer; tell the coordinator how that went."""
        try:
            if initializer:
                function, arguments = serialization.loads(initializer)
                function(*arguments)
        except BaseException as error:  # noqa: BLE001 - the coordinator is told why
            body = messages.pack_outcome(Raised(error), "initializer", None)
            self._outlet.send(frames.FAILED, 0, body)
            return False
        self._outlet.send(frames.READY)
        return True

    def run(self) -> None:
        """Do what the coordinator orders until it says stop, or is gone."""
        while (frame := self._inbox.next()) is not None:
            match frame.kind:
                case frames.TASKS:
                    self._run_tasks(frame.body)
                case frames.NODE:
                    digest = frame.body[: serialization.DIGEST_SIZE]
                    self._nodes[digest] = frame.body[serialization.DIGEST_SIZE :]
                case frames.RUN:
                    self._learn_run(frame)
                case frames.FREED:
                    for ref_id in released_in(frame.body):
                        self._shares.release(ref_id)
                case frames.LEAVE:
                    self._entered().leave(frame.body)
                case frames.STOP:
                    if self._contexts is not None:
                        self._contexts.leave_all()
                    return

    # ------------------------------------------------ tasks

    def _run_tasks(self, body: bytes) -> None:
        batch, flags = body[0], body[1]
        self._inbox.may_look = flags & SPARE != 0
        turns = self._turns.of(batch) if flags & BATCH else repeat(None)
        self._look_at_clocks()
        for (number, order), _ in zip(self._orders(body, 2), turns, strict=False):
            ended = self._run_task(number, order)
            if ended >= self._flushed + _HOLD:
                self._flush()
        # Also where the rest was recalled: nothing comes that would send what is held back.
        self._flush()

    def _orders(self, body: bytes, at: int) -> Iterator[tuple[int, Order]]:
        """Yield the numbers of the tasks that are to be done, and what is said of each."""
        first: First | None = None
        while at < len(body):
            number, length, form = TASK.unpack_from(body, at)
            start = at + TASK.size
            at = start + length
            part = body[start:at] if length < _SMALL else memoryview(body)[start:at]
            if form != LIKE:
                if form == FIRST:
                    first = First(bytes(part))
                yield number, part
            elif first is not None:
                others = first.others(part)
                # What it took to read all of them is not the time of the first of them.
                self._look_at_clocks()
                for own in others:
                    yield own[0], own

    def _flush(self) -> None:
        """Send the results that are held back, and what the tasks that have ended read no more."""
        if returned := self._returns.take():
            self._outlet.hold(frames.RETURNED, 0, returned)
        self._outlet.flush()
        self._look_at_clocks()
        self._flushed = self._now

    def _look_at_clocks(self) -> None:
        """Note what time it is, and how far the wall clock is from the monotonic one."""
        self._now = time.monotonic_ns()
        self._offset = time.time_ns() - self._now

    def _run_task(self, number: int, order: Order) -> int:
        """Run a task.

        Returns:
            When it ended: monotonic nanoseconds.
        """
        # Of those that follow each other, one begins when the one before it has ended.
        began, ends = self._now, self._ends
        if ends.is_used:
            ends.renew()
        ends.number, self._stopped = number, False
        name = messages.UNNAMED
        try:
            self._stoppable = True
            if self._board.begin(number, began):
                # The signal came before the task did.
                self._stopped = True
                raise TaskCancelled  # noqa: TRY301 - as the signal's handler does
            outcome, name = self._perform(order)
        except TaskCancelled:
            outcome = Withdrawn()
        finally:
            self._stoppable = False
        if self._forked:
            # A fork of the worker that came out of the task: it is not the worker.
            os._exit(0)
        if self._out.line or self._err.line:
            # The task may have put other streams in their place.
            self._out.flush()
            self._err.flush()
        if _fault.points is not None:
            fault("task.send.before")
        ended = self._now = time.monotonic_ns()
        seconds, at = (ended - began) / 1e9, began + self._offset
        made = ends.made
        if not (made.count or self._stopped) and (write := plain_write(outcome)):
            self._outlet.hold_result((number, seconds, at, *write))
            return ended
        body = RAN.pack(seconds, at)
        flags = frames.STOPPED if self._stopped else 0
        if made.count and (caught := caught_of(outcome, made)) is not None:
            flags |= frames.CAUGHT
            body += messages.pack_caught(caught)
        body += messages.pack_outcome(outcome, name, self._shares)
        self._outlet.hold(frames.ENDED, number, body, flags)
        return ended

    def _perform(self, order: Order) -> tuple[Outcome, str]:
        name, what = messages.UNNAMED, "the code"
        try:
            if isinstance(order, tuple):
                first = order[-1]
                node = first.node = first.node or self._node(first.digest)
                name, what = node.name, "the input"
                job = first.job_like(order, self._ends.store, self._runs)
                scope: Scope = LateScope(order, self._ends)
            else:
                node = self._node(bytes(order[: serialization.DIGEST_SIZE]))
                name, what = node.name, "the input"
                store, runs = self._ends.store, self._runs
                job = sent_ahead.unpack_job(order, node, store, self._reader.open, runs)
                scope = scope_of(job, TaskRunClient(self._ends, self._ends.number))
        except TaskCancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's __setstate__ may raise anything
            cause = f"{type(error).__name__}: {error} (in the worker)"
            failure = TaskSerializationError(name, what, what.removeprefix("the "), cause)
            failure.__cause__ = error
            return Raised(failure), name
        # Each task has its own context: what it sets does not leak into the next.
        if node.contexts:
            self._entered().keep(job.input)
        context = job.variables or contextvars.Context()
        if "structlog" in sys.modules:
            context.run(self._structured.begin, job.info)
        return context.run(perform_in, scope, job), name

    def _learn_run(self, frame: frames.Frame) -> None:
        """Note what the tasks of a run may know about it; an empty frame: forget all runs."""
        if not frame.body:
            self._runs.clear()
            return
        try:
            self._runs[frame.number] = sent_ahead.unpack_run(frame.body)
        except BaseException as error:  # noqa: BLE001 - a user's __setstate__ may raise anything
            self._runs[frame.number] = partial(_raise, error)

    def _entered(self) -> Contexts:
        """Return the contexts that tasks have entered here."""
        if self._contexts is None:
            # Imports all channels, which few workers need.
            from flowpregel.executors.processes.contexts import Contexts  # noqa: PLC0415

            self._contexts = Contexts()
        return self._contexts

    def _node(self, digest: bytes) -> Node:
        node = self._nodes[digest]
        if isinstance(node, Node):
            return node
        made: Node = serialization.loads(node)
        self._nodes[digest] = made
        return made

    # ------------------------------------------------ what comes from outside

    def _on_stop_signal(self, number: int, frame: Any) -> None:
        """Send what is held back; stop the running task if it is the one that is unwanted."""
        self._outlet.flush_from_handler()
        if not self._stoppable or self._board.unwanted != self._ends.number:
            return
        self._stopped, self._stoppable = True, False
        error = TaskCancelled("the task was stopped from outside")
        if not self._outlet.defer(error):
            raise error

    def _answered(self, frame: frames.Frame) -> None:
        self._ends.answered(frame)

    def _after_fork(self) -> None:
        self._forked = True
        self._stoppable = False
        self._outlet.forget()


def _raise(error: BaseException) -> Any:
    raise error


class Turns:
    """The tokens of a batch: one has to be taken before each task.

    Args:
        fd: The reading end of the token pipe; reading never blocks.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._early = b""

    def of(self, batch: int) -> Iterator[None]:
        """Go on as long as the next task of *batch* is still ours to run."""
        fd, own = self._fd, bytes((batch,))
        try:
            while (token := self._early or os.read(fd, 1)) == own:
                self._early = b""
                yield
        except BlockingIOError:
            return
        # The rest of this batch was recalled, and a later one is on its way.
        self._early = token


class Shares:
    """Puts large results into the worker's arena, and hands them over.

    Args:
        arena: The worker's own.
        door: The way to the coordinator.
    """

    def __init__(self, arena: Arena, door: FdSocket) -> None:
        self._arena = arena
        self._door = door

    def share(self, data: memoryview) -> BufferRef | None:
        """Write *data* for the coordinator; None: there is no room."""
        ref = self._arena.share(data)
        if ref is None:
            return None
        try:
            self._door.send(ref.segment, self._arena.descriptor(ref))
        except OSError:
            self._arena.release(ref.id)
            return None
        return ref

    def release(self, ref_id: int) -> None:
        """Note that the coordinator is done with a buffer."""
        self._arena.release(ref_id)
