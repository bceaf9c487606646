"""The adapter that runs tasks on any `concurrent.futures.Executor`.

::

    start(jobs) -> submit(perform_packed, job as bytes) -> somewhere -> outcome as bytes
    | mailbox <-------------------- Ended ------------------- done callback <-+

The other library's executor (the *engine*) gets the function `perform_packed`, and
bytes that contain everything that the task needs. So an engine can consist of OS
threads, processes or a cluster. While a task runs, it has no connection to its run: it
cannot be stopped, stream chunks or call other tasks, as `capabilities` states.
"""

from __future__ import annotations

import concurrent.futures
import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from flowpregel._core.effects import Ended
from flowpregel._core.ids import Span
from flowpregel._core.records import Raised, Withdrawn
from flowpregel.channels.context import contexts_in
from flowpregel.context import Job, RunClient
from flowpregel.errors import ExecutorUnavailableError, WorkerDiedError
from flowpregel.executors.attempt import Stopwatch, perform
from flowpregel.executors.base import Capabilities, Executor, JobKey, Mailbox
from flowpregel.executors.processes.coordinator.arrivals import AnyOutcome, UnreadEnd
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.code_cache import codes
from flowpregel.executors.processes.wire import messages
from flowpregel.executors.processes.wire.messages import pack_job, unpack_job
from flowpregel.executors.processes.wire.node_code import NodeCode

_HERE: Final = os.urandom(16)
"""The id of this process, which no other process on any machine has."""
PackedEnd: TypeAlias = tuple[Span | None, bytes]
"""A pair: the span of an attempt (its time, place and cost), or None if the attempt
could not begin, and the packed outcome of the attempt.
"""


class FuturesExecutor(Executor):
    """An executor that runs tasks on a `concurrent.futures.Executor` of another
    library.

    Args:
        engine: The executor to which tasks are submitted. `close` does not shut it
            down.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> FuturesExecutor(ThreadPoolExecutor(2)).capabilities.times_out
        False
    """

    capabilities: Capabilities = Capabilities(streams=False, calls=False)

    def __init__(self, engine: concurrent.futures.Executor) -> None:
        self._engine = engine
        self._futures: dict[JobKey, concurrent.futures.Future[PackedEnd]] = {}

    def start(self, jobs: Sequence[Job], mailbox: Mailbox) -> None:
        """Submit *jobs*, and post exactly one `Ended` for each."""
        for job in jobs:
            try:
                code = job.task.code or codes.code_of(job.task.node)
                body, _ = pack_job(job, None)
                future = self._engine.submit(perform_packed, code.data, body, _HERE)
            except Exception as error:  # noqa: BLE001 - the task fails with the error
                mailbox.post(Ended(*job.key, Raised(error)))
                continue
            self._futures[job.key] = future
            future.add_done_callback(partial(self._finish, job, mailbox))

    def _finish(
        self, job: Job, mailbox: Mailbox, future: concurrent.futures.Future[PackedEnd]
    ) -> None:
        self._futures.pop(job.key, None)
        span: Span | None = None
        outcome: AnyOutcome
        try:
            span, packed = future.result()
            outcome = messages.PackedOutcome(packed)
        except concurrent.futures.CancelledError:
            outcome = Withdrawn()
        except concurrent.futures.BrokenExecutor as error:
            died = WorkerDiedError(job.task.name, 0, f"its engine broke: {error}")
            died.__cause__ = error
            outcome = Raised(died)
        except BaseException as error:  # noqa: BLE001 - whatever the engine raises
            outcome = Raised(error)
        # The outcome is posted as bytes, because unpickling it may run a user's code,
        # which must not block the engine's OS thread.
        task = InFlight(0, job, mailbox, NodeCode(b"", b""))
        mailbox.post(UnreadEnd(task, outcome, span))

    def cancel(self, key: JobKey, *, kill: bool) -> None:
        """Withdraw a job that has not begun. A running job continues."""
        if (future := self._futures.get(key)) is not None:
            future.cancel()

    def running(self) -> dict[JobKey, tuple[int, int]]:
        """Return the running jobs, each with 0 as its pid, which is known only when the
        job ends.
        """
        return {
            key: (0, 0) for key, future in [*self._futures.items()] if future.running()
        }


def perform_packed(code: bytes, body: bytes, home: bytes) -> PackedEnd:
    """Run a packed job in this process, and return its span and packed outcome. This
    never raises.

    Args:
        code: The pickle of a pair: the name of the node, and the pickle of the node.
        body: The rest of the packed job.
        home: The id (`_HERE`) of the process that drives the run.
    """
    try:
        watch = Stopwatch()
        _, packed = pickle.loads(code)
        node = pickle.loads(packed)
        job = unpack_job(body, node, _refusing("reach the run's store"), None)
        # The run client (the task's connection to its run) has no function for signs of
        # life (`beat`), because the engine offers no way to send them.
        client = RunClient(
            call=_refusing("call another task"),
            save=_refusing("save its state"),
            channels=_refusing("read a channel that its node did not declare"),
        )
        outcome = job.variables.run(perform, job, client)
        if node.contexts and home != _HERE:
            # The contexts of the node's `Context` channels are exited now, because this
            # process may get no other task of this run, and so no other occasion to
            # exit them.
            for channel in contexts_in(job.task.input):
                channel.close(outcome.error if isinstance(outcome, Raised) else None)
    except BaseException as error:  # noqa: BLE001
        # Every error is caught, because an error that escapes could end the engine's
        # worker.
        return None, messages.pack_outcome(Raised(error), "?")
    span = watch.stop("futures")._replace(preview=job.preview)
    return span, messages.pack_outcome(outcome, job.task.name)


def _refusing(purpose: str) -> Callable[..., Any]:
    """Return a function that raises an error: a task on this executor cannot do
    *purpose*, such as ``"call another task"``.
    """

    def refuse(*_: Any) -> Any:
        raise ExecutorUnavailableError(
            f"a task in process {os.getpid()} cannot {purpose}: its executor has no "
            "connection to the run while a task runs; do it in the entrypoint's "
            "body, or use executor='processes' or 'threads'"
        )

    return refuse
