"""Events of tasks whose values are still the bytes that workers have sent. The I/O
thread posts the events, and the OS thread of the run unpickles the values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from flowpregel._core.effects import Emitted, Ended, Request
from flowpregel._core.ids import Span
from flowpregel._core.records import Outcome, Raised, Returned, Withdrawn
from flowpregel._interrupts import is_from_handler
from flowpregel._loggers import worker_log
from flowpregel.context import Job
from flowpregel.errors import (
    ExecutorUnavailableError,
    MachineLostError,
    TaskSerializationError,
    WorkerDiedError,
)
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.io_loop import Action
from flowpregel.executors.processes.wire import serialization
from flowpregel.executors.processes.wire.messages import PackedOutcome
from flowpregel.executors.unread import UnreadEvent


class FailedStart:
    """The outcome of a task for which no worker can be started.

    Args:
        error: The reason why workers cannot start: an error of this process, or the
            packed error that the pool's initializer raised in a worker.
    """

    __slots__ = ("_error",)
    is_failure = True

    def __init__(self, error: BaseException | PackedOutcome) -> None:
        self._error = error

    def read(self) -> Outcome:
        """Return the outcome: an `ExecutorUnavailableError`."""
        error: Any = self._error
        if isinstance(error, PackedOutcome):
            failed = error.read()
            error = failed.error if isinstance(failed, Raised) else None
        failure = ExecutorUnavailableError(f"no worker process can be started: {error}")
        failure.__cause__ = error
        return Raised(failure)


AnyOutcome: TypeAlias = Outcome | PackedOutcome | FailedStart


@dataclass(slots=True, eq=False)
class UnreadEnd(UnreadEvent):
    """The end of a task's attempt: an `Ended` whose outcome may still be pickled."""

    task: InFlight
    outcome: AnyOutcome
    span: Span | None = None
    caught: Collection[str] | None = None
    is_plain: bool = False
    seconds: float = inf
    """The maximum number of seconds for unpickling the outcome."""
    earlier: Sequence[InFlight] = ()
    """Tasks of the same run that ended earlier. They are referenced here so that their
    inputs are freed when the run drops this event, on the OS thread of the run.
    """

    @property
    def is_failure(self) -> bool:
        """True if the attempt ended without a result."""
        outcome = self.outcome
        if isinstance(outcome, PackedOutcome | FailedStart):
            return outcome.is_failure
        return not isinstance(outcome, Returned)

    def read(self) -> Ended:
        """Return the `Ended` with the unpickled outcome. If unpickling raises an error,
        this error becomes the outcome.

        Raises:
            BaseException: A signal handler raised this error while the outcome was
                unpickled.
        """
        self.earlier = ()
        planned = self.task.job.task
        outcome = self.outcome
        if isinstance(outcome, PackedOutcome | FailedStart):
            try:
                outcome = outcome.read()
            except BaseException as error:
                if is_meant_for_program(error):
                    raise
                outcome = unreadable_result(planned.name, error)
        unreadable = self.task.execution.unreadable
        if unreadable is not None:
            pid = 0 if self.span is None else self.span.pid
            outcome = Raised(WorkerDiedError(planned.name, pid, unreadable))
        match outcome:
            case Raised(WorkerDiedError(call="") | MachineLostError(call="") as died):
                # The description of the call is added to the error only here, on the OS
                # thread of the run. It shows the call's arguments, which may have to be
                # unpickled, and the I/O thread, which noticed that the worker died,
                # must not do that.
                died.call = planned.call
                died.args = (*died.args[:-1], died.call)
        return Ended(*self.task.job.key, outcome, self.span, self.caught)

    def give_up(self) -> Ended:
        """Return an `Ended` as if the task had been withdrawn, and leave the outcome
        packed.
        """
        self.earlier = ()
        return Ended(*self.task.job.key, Withdrawn(), self.span, self.caught)

    def time_out(self) -> Ended:
        """Return the `Ended` of an attempt that exceeded its time limit while its
        outcome was unpickled.
        """
        task = self.task
        worker_log.warning(
            (
                "the result of task %r takes too long to unpickle: the run no longer "
                "waits for it"
            ),
            task.job.task.name,
        )
        task.execution.stopping = task.next_limit()
        return Ended(*task.job.key, task.stopped(), self.span, self.caught)


def is_meant_for_program(error: BaseException) -> bool:
    """Return whether *error* was raised by a signal handler (for Ctrl-C, for example),
    and not by code that unpickled a value.
    """
    return isinstance(error, KeyboardInterrupt) or is_from_handler(error)


def unreadable_result(task: str, error: BaseException) -> Raised:
    """Return the outcome of a task whose result could not be unpickled, because of
    *error*.
    """
    cause = f"{type(error).__name__}: {error} (in the coordinator)"
    return Raised(TaskSerializationError(task, "the result", "result", cause))


@dataclass(slots=True, eq=False)
class _FromTask(UnreadEvent):
    """A packed message that a running task has sent to its run. If the message cannot
    be unpickled, the task is ended.
    """

    task: InFlight
    body: bytes
    refuse: Action
    """A function that ends the task, unless it has ended."""

    @property
    def is_plain(self) -> bool:  # type: ignore[override]
        """True if unpickling the message runs no code of the user's."""
        return serialization.is_plain(self.body)

    def read(self) -> Request | Emitted | None:
        """Return the message as an event. If it cannot be unpickled, end the task and
        return None.
        """
        try:
            return self._decoded()
        except BaseException as error:
            if is_meant_for_program(error):
                raise
            self.task.execution.note_unreadable(error)
            self.refuse()
            return None

    def _decoded(self) -> Request | Emitted:
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class UnreadChunk(_FromTask):
    """A chunk for the run's stream mode ``custom``, or a `Report`."""

    def _decoded(self) -> Emitted:
        return Emitted(self.task.job.task.id, serialization.unpack(self.body))


@dataclass(slots=True, eq=False)
class UnreadCall(_FromTask):
    """A call that a task makes, or another request of a task that the run answers."""

    decode: Callable[[InFlight, bytes], Request]

    def _decoded(self) -> Request:
        return self.decode(self.task, self.body)


@dataclass(slots=True, eq=False)
class UnreadOutput(UnreadEvent):
    """The text that a task has printed or logged, for the run that stores it."""

    job: Job
    body: bytes
    text_of: Callable[[bytes], str]

    @property
    def is_plain(self) -> bool:  # type: ignore[override]
        """True if unpickling the text runs no code of the user's."""
        return serialization.is_plain(self.body)

    def read(self) -> None:
        """Pass the text to the run, which stores it."""
        try:
            self.job.run.keep_output(self.job, self.text_of(self.body))
        except Exception:  # noqa: BLE001 - the task and its run go on
            worker_log.exception(
                "the output of task %r cannot be stored", self.job.task.name
            )
