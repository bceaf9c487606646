"""What any pool does with its tasks: takes them, acts on what workers send, tells their runs."""

from __future__ import annotations

import logging
import pickle
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from flowpregel._core.effects import CANCEL, SAVE, Call, Emitted, Ended, Event
from flowpregel._core.ids import Span
from flowpregel._core.records import RETURN, Arguments, Outcome, Raised, Returned, Withdrawn
from flowpregel.context import nothing
from flowpregel.errors import ExecutorUnavailableError, TaskSerializationError
from flowpregel.executors.base import Backlog, JobKey, Mailbox
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.assign import InFlight, TaskQueue
from flowpregel.executors.processes.crash_report import last_lines
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.protocol import RAN, REQUEST, PoolSettings
from flowpregel.executors.processes.resources import ResourceBook
from flowpregel.executors.processes.serialization import Frame
from flowpregel.executors.processes.shared_memory import Arena
from flowpregel.executors.processes.worker_io import TASK_FIELDS

CLOSED: Final = "this pool of worker processes was closed"
_log: Final = logging.getLogger("flowpregel.worker")
_FORMAT: Final = logging.Formatter("%(levelname)s %(name)s: %(message)s")
_CHUNK_COST: Final = 256
"""Bytes that a chunk takes beside its content."""
_TRY_AGAIN: Final = 1 << 20
"""Bytes after which a worker that could not be held back is looked at again."""
_STORE_THREADS: Final = 4
_REQUESTS: Final = {protocol.SAVED: SAVE, protocol.CANCELLED: CANCEL}


class TaskPool(ABC):
    """Tasks in flight on workers, wherever these are, and those that wait; on the I/O thread.

    Of a task that does not wait, `InFlight.worker` says where it is: a `WorkerProcess`, or what
    stands for a worker on another machine. What acts on frames raises whatever keeps it from
    reading them: a user's class may raise anything.

    Args:
        settings: How it is set up.
        arena: Takes large inputs.
    """

    kind = "processes"
    """What spans say of where a task ran."""

    def __init__(self, settings: PoolSettings, arena: Arena) -> None:
        self.settings = settings
        self.arena = arena
        self.loop = IOLoop(self._dispatch)
        self.encoder = messages.JobEncoder(arena)
        self.workers: set[Any] = set()
        """Its worker processes, where it has any on this machine."""
        self._tasks: dict[JobKey, InFlight] = {}
        self._queue = TaskQueue()
        self._events: defaultdict[Mailbox, list[Event]] = defaultdict(list)
        """What is posted at the end of this turn of the loop."""
        self._is_closing = False
        """Whether it ends; what was taken before is withdrawn."""
        self.resources = ResourceBook(settings, self.loop, self.finish)
        # A store may wait for a disk or another process.
        self._store_threads = ThreadPoolExecutor(_STORE_THREADS, "flowpregel-store")
        self._actions: dict[int, Callable[[InFlight, Frame], object]] = {
            protocol.EMITTED: self._on_emitted,
            protocol.BEAT: nothing,
            protocol.CALLED: self._on_called,
            protocol.ASKED: lambda *asked: self._store_threads.submit(self._ask_store, *asked),
            **dict.fromkeys(_REQUESTS, self._on_request),
        }
        """What is done about what a running task has sent, by kind."""
        self.handlers: dict[int, Callable[[Any, Frame], object]] = {
            protocol.ENDED: self._on_ended,
            protocol.PRINTED: _on_printed,
            protocol.LOGGED: _on_logged,
            **dict.fromkeys(self._actions, self._on_running),
        }
        """What is called with a worker and a frame that it has sent, by kind."""

    def start(self) -> None:
        """Start its OS thread."""
        self.loop.start()

    # ------------------------------------------------ tasks in and out

    def admit(self, tasks: Sequence[InFlight], mailbox: Mailbox) -> None:
        """Take *tasks* of one run, packed: each is sent as soon as there is a place."""
        for task in tasks:
            self._tasks[task.job.key] = task
            if self.resources.count or task.job.task.node.resources is not None:
                self.resources.note(task, self._tasks)
            self._queue.add(task)
            if self._is_closing:
                self.finish(task, Raised(ExecutorUnavailableError(CLOSED)))
        for worker in self.workers:
            if worker.held_by not in (None, mailbox):
                # Its reader may be waiting for this run.
                worker.unhold()

    def withdraw(self, key: JobKey) -> InFlight | None:
        """Withdraw a task that waits; return it if it does not: a worker has it."""
        task = self._tasks.get(key)
        if task is not None and task.worker is None:
            self.finish(task, Withdrawn())
            return None
        return task

    @abstractmethod
    def cancel(self, key: JobKey, kill: bool) -> None:
        """Withdraw a task that waits; if *kill*, stop it where it runs."""

    @abstractmethod
    def warn(self, key: JobKey) -> None:
        """Withdraw a task that has not begun; let one that runs know that its run is to end."""

    @abstractmethod
    def _dispatch(self) -> None:
        """Send waiting tasks where there is a place, and post events; ends each turn."""

    def _post_events(self) -> None:
        events, self._events = self._events, defaultdict(list)
        for mailbox, own in events.items():
            mailbox.post(*own)

    def finish(
        self,
        task: InFlight,
        outcome: Outcome,
        span: Span | None = None,
        caught: Collection[str] | None = None,
        /,
    ) -> None:
        """End *task*, unless it has ended: free its worker, and what it has taken; tell its run."""
        if self._tasks.pop(task.job.key, None) is None:
            return
        if task.needs is not None:
            self.resources.end(task)
        if task.worker is None:
            self._queue.remove((task,))
            self.release_own((task,))
        else:
            self._free(task)
        self._events[task.mailbox].append(Ended(*task.job.key, outcome, span, caught))

    @abstractmethod
    def _free(self, task: InFlight) -> None:
        """Note that the worker of *task* no longer has it."""

    def release_own(self, tasks: Iterable[InFlight]) -> None:
        """Release the buffers of *tasks*, which nobody reads."""
        for task in tasks:
            self.arena.release(ref.id for ref in task.refs)
            task.refs = ()

    @abstractmethod
    def recall(self, worker: Any) -> None:
        """Note that a task of *worker* waits: take back those that it has not begun."""

    @abstractmethod
    def hold(self, worker: Any, task: InFlight) -> bool:
        """Leave what *worker* sends unread; False: that would hold up another run than *task*'s."""

    @abstractmethod
    def leave(
        self, contexts: Set[bytes], body: bytes, asked: Future[Sequence[Future[Any]]]
    ) -> None:
        """Have workers leave *contexts*; set *asked* to the futures of when they have.

        *body* is what they are sent: these, and how the run ended.
        """

    @abstractmethod
    def close(self) -> None:
        """End all tasks and workers, and in the end the I/O thread."""

    def release(self) -> None:
        """Give up what is left, after the I/O thread has ended."""
        self._store_threads.shutdown(wait=False, cancel_futures=True)
        self.arena.close()
        self.resources.close()

    # ------------------------------------------------ what tasks send

    def _on_running(self, worker: Any, frame: Frame) -> None:
        """Act on what a running task has sent."""
        task = worker.tasks.get(frame.number)
        if task is None:
            return
        policy = task.job.task.timeout
        if policy is not None and (frame.kind == protocol.BEAT or policy.refresh_on == "auto"):
            task.alive = time.monotonic()
        self._act_on(worker, task, frame)

    def _act_on(self, worker: Any, task: InFlight, frame: Frame) -> None:
        self._actions[frame.kind](task, frame)

    def _on_ended(self, worker: Any, frame: Frame) -> None:
        task = worker.tasks[frame.number]
        seconds, began, cpu, peak, size = RAN.unpack_from(frame.body)
        at, caught, name = RAN.size + size, None, task.job.task.node.name
        try:
            if frame.flags & protocol.CAUGHT:
                caught = frame.body[RAN.size : at].decode().split()
            else:
                task.code.measured(seconds)
            outcome = messages.unpack_outcome(frame.body, worker.reader.open, at)
        except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
            cause = f"{type(error).__name__}: {error} (in the coordinator)"
            outcome = Raised(TaskSerializationError(name, "the result", "result", cause))
        if frame.flags & protocol.STOPPED and task.stopping is not None:
            outcome = task.stopped()
        worker.heard = time.monotonic()
        span = Span(began, seconds, self.kind, worker.pid, cpu, peak, worker.host)
        self.finish(task, outcome, span, caught)

    def _on_emitted(self, task: InFlight, frame: Frame) -> None:
        worker = task.worker
        emitted = Emitted(task.job.task.id, serialization.unpack(frame.body))
        self._events[task.mailbox].append(emitted)
        backlog: Backlog | None = getattr(task.mailbox, "backlog", None)
        if backlog is None or not backlog.add(len(frame.body) + _CHUNK_COST):
            return
        if self.hold(worker, task):
            if not backlog.hold(partial(self.loop.call, worker.unhold)):
                worker.unhold()
        else:
            backlog.limit = backlog.size + _TRY_AGAIN

    # ------------------------------------------------ what tasks ask for

    def _on_called(self, task: InFlight, frame: Frame) -> None:
        call = self.encoder.decode_call(task, frame.body)
        self._note_call(task, call.reply[1])
        self._events[task.mailbox].append(call)

    def _note_call(self, task: InFlight, request: int) -> None:
        """Note that *task* waits: its worker does not count now, and gets nothing behind it."""
        task.calls.add(request)
        task.code.seconds = float("inf")
        self.recall(task.worker)

    def _on_request(self, task: InFlight, frame: Frame) -> None:
        (request,) = REQUEST.unpack_from(frame.body)
        given = frame.body[REQUEST.size :]
        arguments = Arguments((serialization.unpack(given),) if given else (), {})
        node = _REQUESTS[frame.kind]
        asked = Call(*task.job.key, node, arguments, reply=(task, request))
        self._events[task.mailbox].append(asked)

    def answer(self, task: InFlight, request: int, body: bytes) -> None:
        """Send what *task* waits for to its worker, if that still has it."""
        if task.worker is not None:
            task.calls.discard(request)
            task.worker.answer(task, request, body)

    def _ask_store(self, task: InFlight, frame: Frame) -> None:
        (request,) = REQUEST.unpack_from(frame.body)
        try:
            method, args, kwargs = serialization.unpack(frame.body, None, REQUEST.size)
            if method.startswith("_"):
                raise AttributeError(method)  # noqa: TRY301 - told to the caller like any other
            value = getattr(task.job.run.store, method)(*args, **kwargs)
            outcome: Outcome = Returned(((RETURN, value),))
        except Exception as error:  # noqa: BLE001 - the caller's to see
            outcome = Raised(error)
        answer = messages.pack_outcome(outcome, task.job.task.name)
        self.loop.call(partial(self.answer, task, request, answer))


# ------------------------------------------------ what workers print and log


def _on_printed(worker: Any, frame: Frame) -> None:
    """Keep and print what a worker has printed; each line begins with the name of its task."""
    text, task = frame.body.decode(errors="replace"), worker.tasks.get(frame.number)
    label, stream = f"[worker {worker.pid}]", sys.stdout
    if frame.flags & protocol.STDERR:
        stream = sys.stderr
        worker.tail = last_lines(worker.tail + text)
    if task is not None:
        label = f"[{task.job.task.name}]"
        task.job.run.keep_output(task.job, text)
    # The program may have closed its streams.
    with suppress(OSError, ValueError, AttributeError):
        stream.write("".join(f"{label} {line}\n" for line in text.splitlines()))
        stream.flush()


def _on_logged(worker: Any, frame: Frame) -> None:
    """Give a worker's log record to the logger of its name, and have its text kept."""
    if frame.flags & protocol.STRUCTURED:
        text = _log_event(frame.body)
    else:
        record = logging.makeLogRecord(pickle.loads(frame.body))
        text = _FORMAT.format(record)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    if (task := worker.tasks.get(frame.number)) is not None:
        task.job.run.keep_output(task.job, f"{text}\n")


def _log_event(body: bytes) -> str:
    """Give a worker's structlog event to the program's structlog; return it as text."""
    import structlog  # noqa: PLC0415 - 60 ms, and only for programs that use it

    names, method, fields = pickle.loads(body)
    event = fields.pop("event", "")
    own = (
        f"{name}={value!r}" for name, value in fields.items() if name not in ("pid", *TASK_FIELDS)
    )
    text = " ".join((method.upper(), str(event), *own))
    try:
        getattr(structlog.get_logger(*names), method)(event, **fields)
    except Exception:  # noqa: BLE001 - a user's processor; the pool goes on
        _log.exception("structlog could not take what a worker logged: %r", event)
    return text
