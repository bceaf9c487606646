"""The part of a pool that accepts tasks, acts on the messages (frames) of workers, and
posts events.

All pools share this part, whether their workers run on this machine or on others.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from flowpregel._core.effects import CancelCall, Request, SaveState
from flowpregel._core.ids import Span
from flowpregel._core.previews import OUTPUTS_MARK
from flowpregel._core.records import (
    RETURN,
    Outcome,
    Raised,
    Returned,
    Withdrawn,
)
from flowpregel._loggers import worker_log
from flowpregel.context import Job, nothing
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import Backlog, JobKey, Mailbox
from flowpregel.executors.previews import note_outputs
from flowpregel.executors.processes.coordinator import encoder
from flowpregel.executors.processes.coordinator.arrivals import (
    AnyOutcome,
    FailedStart,
    UnreadCall,
    UnreadChunk,
    UnreadEnd,
    UnreadOutput,
    unreadable_result,
)
from flowpregel.executors.processes.coordinator.assign import InFlight, TaskQueue
from flowpregel.executors.processes.coordinator.crash_report import last_lines
from flowpregel.executors.processes.coordinator.io_loop import Action, IOLoop
from flowpregel.executors.processes.coordinator.request_threads import RequestThreads
from flowpregel.executors.processes.coordinator.resources import ResourceLedger
from flowpregel.executors.processes.coordinator.side_threads import (
    OutputThread,
    SideThread,
)
from flowpregel.executors.processes.wire import messages, protocol, serialization
from flowpregel.executors.processes.wire.protocol import (
    REQUEST,
    TASK_FIELDS,
    Frame,
    PoolSettings,
)
from flowpregel.executors.processes.wire.shared_memory import Arena
from flowpregel.executors.unread import UnreadEvent

CLOSED: Final = "this pool of worker processes was closed"
_FORMAT: Final = logging.Formatter("%(levelname)s %(name)s: %(message)s")
_CHUNK_COST: Final = 256
"""The number of bytes that a waiting chunk takes in addition to its content, as an
estimate.
"""
_TRY_AGAIN: Final = 1 << 20
"""The number of further unread bytes of a run after which the pool tries again to pause
a worker that it could not pause before.
"""
_DROPPED_AFTER: Final = 0.05
"""Seconds after the end of a task at which the pool drops this task, together with all
tasks that have ended in that time.
"""


class TaskPool(ABC):
    """The base class of pools: the tasks that wait, and those on workers, of this
    machine or of others.

    A pool is used on the I/O thread only. A handler of a message (frame) from a worker
    may raise any exception.

    Args:
        settings: The settings of the pool.
        arena: The shared memory for large inputs.
    """

    kind = "processes"
    """The name of the executor that is recorded with each attempt (in its span)."""

    def __init__(self, settings: PoolSettings, arena: Arena) -> None:
        self.settings = settings
        self.arena = arena
        self.loop: IOLoop = IOLoop(self._dispatch, self._log_error)
        self.output: OutputThread = OutputThread(self.loop)
        self.callbacks: SideThread = SideThread("flowpregel-callbacks")
        """The OS thread for the callbacks that users have added to the futures of
        `submit`.
        """
        self._dropping = SideThread("flowpregel-dropping")
        """The OS thread that frees the inputs of tasks."""
        self.encoder: encoder.JobEncoder = encoder.JobEncoder(arena)
        self.workers: set[Any] = set()
        """The pool's worker processes on this machine, if it has any."""
        self._tasks: dict[JobKey, InFlight] = {}
        self._queue = TaskQueue()
        self._events: defaultdict[Mailbox, list[UnreadEvent]] = defaultdict(list)
        """The events to post at the end of this turn of the loop, by the mailbox of the
        run.
        """
        self._behind: list[tuple[Mailbox, UnreadEnd]] = []
        """The ends of tasks with unwritten output, each with the mailbox of the run. An
        end is posted after the output is written.
        """
        self._ended: defaultdict[Mailbox, list[InFlight]] = defaultdict(list)
        """The tasks that have just ended, by mailbox. Another OS thread frees their
        inputs, because that may run the user's `__del__`.
        """
        self._is_closing = False
        """True if the pool is closing, so that its tasks are withdrawn."""
        self.resources: ResourceLedger = ResourceLedger(
            settings, self.loop, self.finish
        )
        self._store_threads = RequestThreads()
        self._actions: dict[int, Callable[[InFlight, Frame], object]] = {
            protocol.EMITTED: self._on_emitted,
            protocol.BEAT: nothing,
            protocol.CALLED: self._on_called,
            protocol.ASKED: self._on_asked,
            protocol.CHANNELS: self._on_channels,
            protocol.SAVED: self._on_saved,
            protocol.CANCELLED: self._on_cancelled,
        }
        """The handlers of the messages (frames) about a running task, by kind. A
        handler gets the task and the frame.
        """
        self.handlers: dict[int, Callable[[Any, Frame], object]] = {
            protocol.ENDED: self._on_ended,
            protocol.PRINTED: self._on_printed,
            protocol.LOGGED: self._on_logged,
            **dict.fromkeys(self._actions, self._on_running),
        }
        """The handlers of all messages (frames) from workers, by kind. A handler gets
        the worker and the frame.
        """

    def start(self) -> None:
        """Start the I/O thread."""
        self.loop.start()

    # ------------------------------------------------ accepting and ending tasks

    def admit(self, tasks: Sequence[InFlight], mailbox: Mailbox) -> None:
        """Accept packed *tasks* of one run.

        Each is sent as soon as a worker is free for it.

        Args:
            tasks: The pool's records of the tasks.
            mailbox: The receiver of the events of the run.
        """
        for task in tasks:
            self._tasks[task.job.key] = task
            planned = task.job.task
            may_have_needs = (
                self.resources.count
                or planned.node.resources is not None
                or planned.attempt.number > 1
            )
            if may_have_needs and not self._note_needs(task):
                continue
            self._queue.add(task)
            if self._is_closing:
                self.finish(task, Raised(ExecutorUnavailableError(CLOSED)))
        self.resume_for_others(mailbox)

    def _note_needs(self, task: InFlight) -> bool:
        """Set the needs of *task*, if it needs more than one worker, and return True.

        If the files of a limit that programs share cannot be opened, end the task with
        an error, and return False.
        """
        try:
            self.resources.note(task, self._tasks)
        except OSError as error:
            failure = ExecutorUnavailableError(
                f"the lock files for the limits of task {task.job.task.name!r} cannot "
                f"be opened: {error}"
            )
            failure.__cause__ = error
            self.finish(task, Raised(failure))
            return False
        return True

    def has_tasks_of(self, thread_id: str) -> bool:
        """Return whether the pool has tasks of a run. Any OS thread may call this.

        Args:
            thread_id: The thread of the run.
        """
        tasks = tuple(self._tasks.values())
        return any(task.job.run.thread_id == thread_id for task in tasks)

    def withdraw(self, key: JobKey) -> InFlight | None:
        """Withdraw a waiting task, or return the task if a worker already has it.

        Args:
            key: The key of the task.
        """
        task = self._tasks.get(key)
        if task is not None and task.execution.worker is None:
            self.finish(task, Withdrawn())
            return None
        return task

    @abstractmethod
    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a waiting task. If *kill*, also stop a running task.

        Args:
            key: The key of the task.
            kill: True to stop a running task.
        """

    @abstractmethod
    def warn(self, key: JobKey) -> None:
        """Withdraw a task that has not begun, or warn a running task that its run will
        end.

        Args:
            key: The key of the task.
        """

    @abstractmethod
    def _dispatch(self) -> None:
        """Send waiting tasks to workers that have room, and post events. The I/O loop
        calls this at the end of each turn.
        """

    def _post_events(self) -> None:
        if self._events:
            events_by_mailbox = self._events
            self._events = defaultdict(list)
            for mailbox, events in events_by_mailbox.items():
                mailbox.post(*events)
        if self._behind:
            ends = self._behind
            self._behind = []
            for mailbox, end in ends:
                self.output.post_behind(mailbox, end)

    def finish(
        self,
        task: InFlight,
        outcome: AnyOutcome,
        span: Span | None = None,
        caught: Collection[str] | None = None,
        /,
    ) -> None:
        """End *task*, unless it has ended: free its resources, and post its end.

        Args:
            task: The task to end.
            outcome: The outcome of the task.
            span: The span of the attempt, or None if it did not run.
            caught: The ids of the calls whose failures the task has seen, or None if
                they are unknown.
        """
        if self._tasks.pop(task.job.key, None) is None:
            return
        if task.needs is not None:
            self.resources.end(task)
        # The end of a failed task is never marked as plain (readable without user
        # code), because reading an error may run user code. If the worker died,
        # `UnreadEnd.read` adds the call's arguments to the message of the error, and
        # they may have to be unpickled.
        if isinstance(outcome, messages.PackedOutcome):
            is_plain = outcome.is_plain
        else:
            is_plain = not isinstance(outcome, (Raised, FailedStart))
        end = UnreadEnd(task, outcome, span, caught, is_plain)
        worker = task.execution.worker
        if task.job.task.timeout is not None and worker is not None:
            remaining = task.next_limit().at - time.monotonic()
            end.seconds = max(0.0, remaining) + self.settings.grace
        is_behind = False
        if worker is None:
            self._queue.remove((task,))
            self.release_own((task,))
        else:
            is_behind = worker.output.unwritten.size > 0
            self._free(task)
        task.body = b""
        self._drop_later(task, end)
        if is_behind:
            self._behind.append((task.mailbox, end))
        else:
            self._events[task.mailbox].append(end)

    def _drop_later(self, task: InFlight, end: UnreadEnd) -> None:
        """Arrange that the input of *task* is freed soon, on another OS thread.

        A `__del__` in the input might block the I/O thread. If another task of the run
        ends soon, the run frees the input when it handles that end. If not, the OS
        thread for dropping frees it.
        """
        if not self._ended:
            due = time.monotonic()
            # The input of a task with shared memory is freed at once, because other
            # tasks may need the memory, and any other input a little later.
            if not task.refs:
                due += _DROPPED_AFTER
            self.loop.call_at(due, self._drop_ended)
        # Only the mailbox of a run has a backlog. Tasks of the run that ended earlier
        # are passed on with this end, so that the run frees their inputs.
        # no mutant: Without this, the timer frees them a little later.
        if task.mailbox.backlog is not None:
            end.earlier = self._ended.pop(task.mailbox, ())
        self._ended[task.mailbox].append(task)

    def _drop_ended(self) -> None:
        """Free the tasks that have just ended, on the OS thread for dropping."""
        ended = self._ended
        self._ended = defaultdict(list)
        self._dropping.call(ended.clear)

    @abstractmethod
    def _free(self, task: InFlight) -> None:
        """Remove *task* from its worker."""

    def release_own(self, tasks: Iterable[InFlight]) -> None:
        """Release the shared memory of *tasks*, which no worker has got."""
        for task in tasks:
            self.arena.release(ref.id for ref in task.refs)
            task.refs = ()

    @abstractmethod
    def recall(self, worker: Any) -> None:
        """Take back the tasks that *worker* has not begun, since its running task will
        not end soon.
        """

    @abstractmethod
    def pause_reading(self, worker: Any, task: InFlight) -> bool:
        """Stop reading from *worker* for now.

        If the pause might delay tasks of another run than that of *task*, continue
        reading and return False.
        """

    @abstractmethod
    def resume_reading(self, worker: Any) -> None:
        """Resume reading from *worker*, if reading was paused because a run had too
        many unread chunks.
        """

    def resume_for_others(self, mailbox: Mailbox) -> None:  # noqa: B027
        """Resume reading from all workers that were paused because of the unread chunks
        of another run than the one that receives its events in *mailbox*.
        """

    @abstractmethod
    def pause_for_output(self, worker: Any) -> None:
        """Stop reading from *worker* until the text that it has printed is written.

        If its task is being stopped, continue reading, because the end of the task must
        arrive.
        """

    @abstractmethod
    def refuse(self, task: InFlight, worker: Any) -> None:
        """End *task*, which has sent a message that cannot be unpickled, if *worker*
        still has the task.
        """

    @abstractmethod
    def leave(
        self, contexts: Set[bytes], body: bytes, requests: Future[Sequence[Future[Any]]]
    ) -> None:
        """Ask the workers to exit *contexts*. Set the result of *requests* to a list of
        futures, one for each request that a worker has not confirmed yet.

        *body* is the message for the workers: the contexts, and the error of the run.
        """

    @abstractmethod
    def close(self) -> None:
        """End all tasks and workers, and in the end the I/O thread."""

    def release(self) -> None:
        """Release the remaining resources of the pool, after the I/O thread has
        ended.
        """
        self._store_threads.close()
        self.output.close()
        self.callbacks.close()
        self._dropping.close()
        self.arena.close()
        self.resources.close()

    def _log_error(self) -> None:
        """Log the error that is being handled on the I/O thread."""
        self.output.log_error("an error in the pool of worker processes")

    # ------------------------------------------------ frames of tasks

    def _on_running(self, worker: Any, frame: Frame) -> None:
        """Handle a message (frame) about a running task."""
        task = worker.tasks.get(frame.number)
        if task is None:
            return
        policy = task.job.task.timeout
        if policy is not None:
            is_sign_of_life = frame.kind == protocol.BEAT or policy.refresh_on == "auto"
            if is_sign_of_life:
                task.execution.alive = time.monotonic()
        self._act_on(worker, task, frame)

    def _act_on(self, worker: Any, task: InFlight, frame: Frame) -> None:
        self._actions[frame.kind](task, frame)

    def _on_ended(self, worker: Any, frame: Frame) -> None:
        task = worker.tasks[frame.number]
        body = frame.body
        head = messages.unpack_head(body, self.kind, worker.pid, worker.host)
        span = head.span
        caught: Collection[str] | None = None
        outcome: AnyOutcome
        try:
            if frame.flags & protocol.CAUGHT:
                caught = head.failed_ids.decode().split()
            else:
                task.code.measured(span.seconds)
            outcome = messages.PackedOutcome(body, worker.reader.open, head.size)
        except Exception as error:  # noqa: BLE001
            # The bytes are not an outcome, or a segment of shared memory to which it
            # refers is gone.
            outcome = unreadable_result(task.job.task.node.name, error)
        if frame.flags & protocol.STOPPED and task.execution.stopping is not None:
            outcome = task.stopped()
        if frame.flags & protocol.NO_MEMORY:
            self.resources.memory_retries.note(task, span.cost.peak)
        worker.last_activity = time.monotonic()
        if OUTPUTS_MARK in span.preview.fields:
            note_outputs(span.preview.fields)
        self.finish(task, outcome, span, caught)

    def _on_emitted(self, task: InFlight, frame: Frame) -> None:
        refuse = self._refusal_of(task)
        self._events[task.mailbox].append(UnreadChunk(task, frame.body, refuse))
        backlog: Backlog | None = getattr(task.mailbox, "backlog", None)
        if backlog is not None:
            self._apply_back_pressure(task, backlog, len(frame.body) + _CHUNK_COST)

    def _apply_back_pressure(self, task: InFlight, backlog: Backlog, size: int) -> None:
        """Add *size* bytes to the backlog of unread events of *task*'s run. If the
        backlog is now too large, pause reading from the task's worker.
        """
        worker = task.execution.worker
        if not backlog.add(size):
            return
        if self.pause_reading(worker, task):
            resume = partial(self.resume_reading, worker)
            if not backlog.hold(partial(self.loop.call, resume)):
                resume()
        else:
            backlog.limit = backlog.size + _TRY_AGAIN

    # ------------------------------------------------ requests of tasks

    def _on_called(self, task: InFlight, frame: Frame) -> None:
        self._post_call(task, frame, self.encoder.decode_call)
        self._note_call(task, *REQUEST.unpack_from(frame.body))

    def _post_call(
        self, task: InFlight, frame: Frame, decode: Callable[[InFlight, bytes], Request]
    ) -> None:
        refuse = self._refusal_of(task)
        self._events[task.mailbox].append(UnreadCall(task, frame.body, refuse, decode))

    def _refusal_of(self, task: InFlight) -> Action:
        """Return a function that ends *task* if the worker that has the task now still
        has it when the function is called. Any OS thread may call the function.
        """
        refuse = partial(self.refuse, task, task.execution.worker)
        return partial(self.loop.call, refuse)

    def _note_call(self, task: InFlight, request: int) -> None:
        """Note that *task* has made a call. While it waits for the call, other tasks
        may use its CPU, and its worker gets no more tasks.
        """
        task.execution.calls.add(request)
        task.code.seconds = float("inf")
        self.recall(task.execution.worker)

    def _on_saved(self, task: InFlight, frame: Frame) -> None:
        self._post_call(task, frame, _saved_state)

    def _on_cancelled(self, task: InFlight, frame: Frame) -> None:
        self._post_call(task, frame, _cancelled_call)

    def answer(self, task: InFlight, request: int, body: bytes) -> None:
        """Send the answer to a request of *task*, if a worker still has the task.

        Args:
            task: The task that made the request.
            request: The number that identifies the request on the link.
            body: The packed answer.
        """
        execution = task.execution
        if execution.worker is not None:
            execution.calls.discard(request)
            execution.worker.answer(task, request, body)

    def _on_asked(self, task: InFlight, frame: Frame) -> None:
        request = partial(self._answer_request, task, frame, _store_result)
        self._store_threads.submit(task.mailbox, request)

    def _on_channels(self, task: InFlight, frame: Frame) -> None:
        request = partial(self._answer_request, task, frame, _named_channels)
        self._store_threads.submit(task.mailbox, request)

    def _answer_request(
        self, task: InFlight, frame: Frame, result_of: Callable[[Job, Any], Any]
    ) -> None:
        """Answer a request of *task*, on one of the OS threads for requests.

        Args:
            task: The task that made the request.
            frame: The frame of the request.
            result_of: A function that takes the task's job and the content of the
                request, and returns the result.
        """
        (request,) = REQUEST.unpack_from(frame.body)
        try:
            content = serialization.unpack(frame.body, None, REQUEST.size)
            result = result_of(task.job, content)
            outcome: Outcome = Returned(((RETURN, result),))
        except BaseException as error:  # noqa: BLE001 - the caller's to see
            outcome = Raised(error)
        answer = messages.pack_outcome(outcome, task.job.task.name)
        self.loop.call(partial(self.answer, task, request, answer))

    # ------------------------------------------------ output of workers

    def _on_printed(self, worker: Any, frame: Frame) -> None:
        """Queue the printing of a worker's output, with the task's name before each
        line.
        """
        task = worker.tasks.get(frame.number)
        text = _printed_text(frame.body)
        is_error = bool(frame.flags & protocol.STDERR)
        if is_error:
            worker.output.tail = last_lines(worker.output.tail + text)
        self._keep_output(task, frame.body, _printed_text)
        label = f"[worker {worker.pid}]"
        if task is not None:
            label = f"[{task.job.task.name}]"
        write = partial(_print_lines, label, text, to_stderr=is_error)
        if self.output.add(worker.output.unwritten, len(frame.body), write):
            self.pause_for_output(worker)

    def _on_logged(self, worker: Any, frame: Frame) -> None:
        """Queue the handling of a worker's log record by the program's loggers."""
        text_of: Callable[[bytes], str] = _text_of_record
        handle: Callable[[Any], None] = _log_record
        if frame.flags & protocol.STRUCTURED:
            text_of = _text_of_event
            handle = _log_event
        self._keep_output(worker.tasks.get(frame.number), frame.body, text_of)
        sender = worker.sender_of(frame.number)
        write = partial(self._log, worker, sender, handle, frame.body)
        if self.output.add(worker.output.unwritten, len(frame.body), write):
            self.pause_for_output(worker)

    def _log(
        self,
        worker: Any,
        task: InFlight | None,
        handle: Callable[[Any], None],
        body: bytes,
    ) -> None:
        """Unpickle a log record, and pass it to *handle*. This is called on the OS
        thread for output.
        """
        try:
            record = pickle.loads(body)
        except BaseException as error:
            if task is not None:
                task.execution.note_unreadable(error)
                self.loop.call(partial(self.refuse, task, worker))
            raise
        handle(record)

    def _keep_output(
        self, task: InFlight | None, body: bytes, text_of: Callable[[bytes], str]
    ) -> None:
        """Pass the output in *body* to the run of *task*, if this run stores output."""
        if task is None:
            return
        run = task.job.run
        if run.thread_id is None or not run.has_saver:
            return
        self._events[task.mailbox].append(UnreadOutput(task.job, body, text_of))
        backlog: Backlog | None = getattr(task.mailbox, "backlog", None)
        if backlog is not None:
            self._apply_back_pressure(task, backlog, len(body) + _CHUNK_COST)


def _store_result(job: Job, content: tuple[str, Any, Any]) -> Any:
    """Call a method of the store of the run of *job*, and return the result."""
    method, args, kwargs = content
    if method.startswith("_"):
        # The task in the worker gets this error as it would get an error of the store.
        raise AttributeError(method)
    return getattr(job.run.store, method)(*args, **kwargs)


def _named_channels(job: Job, names: Sequence[str]) -> Any:
    """Return those channels and managed values of the superstep of *job* that have one
    of *names*.
    """
    return messages.channels_of(job.step, names)


def _saved_state(task: InFlight, body: bytes) -> SaveState:
    """Unpack the request of *task* to save a value for its next attempt."""
    (request,) = REQUEST.unpack_from(body)
    value = serialization.unpack(body[REQUEST.size :])
    return SaveState(*task.job.key, value, reply=(task, request))


def _cancelled_call(task: InFlight, body: bytes) -> CancelCall:
    """Unpack the request of *task* to cancel a call that it made."""
    (request,) = REQUEST.unpack_from(body)
    return CancelCall(*task.job.key, reply=(task, request))


def _printed_text(text: bytes) -> str:
    """Return text that a task has printed, which need not be UTF-8."""
    return text.decode(errors="replace")


# ------------------------------------------------ on the OS thread for output


def _print_lines(label: str, text: str, *, to_stderr: bool) -> None:
    """Print *text*, with *label* before each line."""
    stream = sys.stderr if to_stderr else sys.stdout
    lines = "".join(f"{label} {line}\n" for line in text.splitlines())
    # If the program has closed its own streams, the lines are lost.
    with suppress(OSError, ValueError, AttributeError):
        try:
            _write_to(stream, lines)
        except UnicodeEncodeError:
            # The whole text is encoded before any of it is written.
            _write_to(stream, _encodable(lines, stream.encoding))


def _encodable(text: str, encoding: str) -> str:
    """Return *text* with an escape in place of each character that *encoding* lacks."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _write_to(stream: Any, text: str) -> None:
    """Write *text* to *stream* at once.

    The program's own stdout and stderr are written to past their buffers, without the
    lock of the buffer. If the program ended while a blocked write held that lock, the
    interpreter would abort.
    """
    stream.flush()
    if stream not in (sys.__stdout__, sys.__stderr__):
        stream.write(text)
        stream.flush()
        return
    data = text.encode(stream.encoding, stream.errors)
    while data:
        data = data[os.write(stream.fileno(), data) :]


def _log_record(fields: dict[str, Any]) -> None:
    """Pass a worker's log record to the logger that the record names."""
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _text_of_record(body: bytes) -> str:
    """Return a worker's log record as a string."""
    return f"{_FORMAT.format(logging.makeLogRecord(pickle.loads(body)))}\n"


def _log_event(content: tuple[Any, str, dict[str, Any]]) -> None:
    """Give a worker's structlog event to the program's structlog."""
    import structlog  # noqa: PLC0415 - 60 ms, and only for programs that use it

    names, method, fields = content
    event = fields.pop("event", "")
    try:
        getattr(structlog.get_logger(*names), method)(event, **fields)
    except Exception:  # noqa: BLE001 - a user's processor; the pool goes on
        worker_log.exception(
            "structlog could not process a log event of a worker: %r", event
        )


def _text_of_event(body: bytes) -> str:
    """Return a worker's structlog event as a string."""
    _, method, fields = pickle.loads(body)
    words = [method.upper(), str(fields.pop("event", ""))]
    for name, value in fields.items():
        if name not in ("pid", *TASK_FIELDS):
            words.append(f"{name}={value!r}")
    return " ".join(words) + "\n"
