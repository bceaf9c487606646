"""What the frames from workers mean, and what is done about them."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Final

from flowpregel._core.effects import Call, Emitted
from flowpregel._core.records import RETURN, Outcome, Raised, Returned
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.base import Backlog
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.assign import InFlight, WorkerState
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.protocol import RAN, REQUEST, Frame
from flowpregel.executors.processes.shared_memory import released_in
from flowpregel.executors.processes.worker_process import WorkerProcess
from flowpregel.executors.processes.workers import print_lines

_log: Final = logging.getLogger("flowpregel.worker")
_CHUNK_COST: Final = 256
"""Bytes that a chunk takes beside its content."""
_TRY_AGAIN: Final = 1 << 20
"""Bytes after which a worker that could not be held back is looked at again."""
_STORE_THREADS: Final = 4
_LOG_FIELDS: Final = (
    ("task", "name"),
    ("task_id", "task_id"),
    ("attempt", "attempt"),
    ("step", "step"),
    ("thread_id", "run.thread_id"),
    ("run_id", "run.run_id"),
)
"""What a log record is given, and where a `TaskInfo` has it."""


class MessageHandler:
    """Acts on each frame that a worker has sent; on the I/O thread.

    Args:
        pool: Whose workers.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._requests = count(1)
        self._store_threads: ThreadPoolExecutor | None = None
        pool.workers.on_frame = self.handle

    def handle(self, worker: WorkerProcess, frame: Frame) -> None:
        """Act on *frame*.

        Raises:
            BaseException: It cannot be read; what a user's class raises included.
        """
        match frame.kind:
            case protocol.ENDED:
                self._on_ended(worker, worker.tasks[frame.number], frame)
            case protocol.PRINTED | protocol.LOGGED:
                _pass_on(worker, worker.tasks.get(frame.number), frame)
            case protocol.EMITTED | protocol.BEAT | protocol.CALLED | protocol.ASKED:
                if (task := worker.tasks.get(frame.number)) is not None:
                    self._on_running(worker, task, frame)
            case protocol.RETURNED:
                for ref_id in released_in(frame.body):
                    self._pool.arena.release(ref_id)
                    worker.reads.discard(ref_id)
            case protocol.READY:
                self._pool.workers.mark_ready(worker)
            case protocol.FAILED:
                outcome = messages.unpack_outcome(frame.body, "in the pool's initializer", None)
                worker.failure = outcome.error if isinstance(outcome, Raised) else None
            case protocol.LEFT:
                worker.leaving.pop(frame.number).set_result(None)

    def _on_running(self, worker: WorkerProcess, task: InFlight, frame: Frame) -> None:
        """Act on what a running task has sent."""
        policy = task.job.timeout
        if policy is not None and (frame.kind == protocol.BEAT or policy.refresh_on == "auto"):
            task.alive = time.monotonic()
        if frame.kind == protocol.EMITTED:
            self._on_emitted(worker, task, frame.body)
        elif frame.kind == protocol.CALLED:
            self._on_called(task, frame.body)
        elif frame.kind == protocol.ASKED:
            self._on_asked(task, frame.body)

    def _on_ended(self, worker: WorkerProcess, task: InFlight, frame: Frame) -> None:
        seconds, began, size = RAN.unpack_from(frame.body)
        at, caught, info = RAN.size + size, None, task.job.info
        try:
            if frame.flags & protocol.CAUGHT:
                caught = frame.body[RAN.size : at].decode().split()
            else:
                task.code.measured(seconds)
            origin = f"in task {info.name!r} (attempt {info.attempt}), worker pid {worker.pid}"
            outcome = messages.unpack_outcome(frame.body, origin, worker.reader.open, at)
        except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
            cause = f"{type(error).__name__}: {error} (in the coordinator)"
            outcome = Raised(TaskSerializationError(info.name, "the result", "result", cause))
        if frame.flags & protocol.STOPPED and task.stopping is not None:
            outcome = task.stopped()
        worker.heard = time.monotonic()
        self._pool.finish(task, outcome, (began, seconds, "processes", worker.pid), caught)

    def _on_emitted(self, worker: WorkerProcess, task: InFlight, body: bytes) -> None:
        self._pool.post(task.mailbox, Emitted(task.job.info.task_id, serialization.unpack(body)))
        backlog: Backlog | None = getattr(task.mailbox, "backlog", None)
        if backlog is None or not backlog.add(len(body) + _CHUNK_COST):
            return
        if self._pool.hold(worker, task):
            if not backlog.hold(partial(self._pool.loop.call, partial(self._pool.unhold, worker))):
                self._pool.unhold(worker)
        else:
            backlog.limit = backlog.size + _TRY_AGAIN

    # ------------------------------------------------ calls

    def _on_called(self, task: InFlight, body: bytes) -> None:
        call = self._pool.encoder.decode_call(task, body)
        # The worker does not count while its task waits, and gets nothing behind it.
        task.calls.add(call.reply[1])
        task.worker.open_calls += 1
        task.code.seconds = float("inf")
        self._pool.recall(task.worker)
        self._pool.post(task.mailbox, call)

    def answer(self, call: Call, outcome: Outcome) -> None:
        """Send the *outcome* of a call to the worker whose task made it."""
        body = messages.pack_outcome(outcome, call.node.name, None)
        task, request = call.reply
        self._pool.loop.call(partial(self._answer, task, request, body))

    def _answer(self, task: InFlight, request: int, body: bytes) -> None:
        if request in task.calls:
            task.calls.discard(request)
            task.worker.open_calls -= 1
        self._reply(task, task.number, protocol.ANSWER, request, body)

    def _reply(self, task: InFlight, number: int, kind: int, request: int, body: bytes) -> None:
        """Send an answer to the worker of *task*, if it still has it."""
        if task.worker is not None and task.number == number:
            self._pool.workers.send(task.worker, kind, request, body)

    # ------------------------------------------------ contexts

    def leave(self, contexts: Collection[bytes], body: bytes) -> None:
        """Have the workers leave *contexts*; return when they have, or after the grace."""
        if self._pool.is_started and not self._pool.is_elsewhere:
            asked: Future[list[Future[None]]] = Future()
            self._pool.loop.call(partial(self._leave, {*contexts}, body, asked))
            wait(asked.result(), self._pool.settings.grace)

    def _leave(self, contexts: set[bytes], body: bytes, asked: Future[list[Future[None]]]) -> None:
        workers = [each for each in self._pool.workers.all if each.contexts & contexts]
        for worker in workers:
            worker.contexts -= contexts
            number = next(self._requests) & 0xFFFFFFFF
            worker.leaving[number] = Future()
            # One that was dismissed leaves all that it has entered.
            if worker.state is not WorkerState.LEAVING:
                self._pool.workers.send(worker, protocol.LEAVE, number, body)
        asked.set_result([left for each in workers for left in each.leaving.values()])

    # ------------------------------------------------ the store

    def _on_asked(self, task: InFlight, body: bytes) -> None:
        """Have the run's store answer a request.

        It may wait for a disk or another process, so OS threads of their own ask it.
        """
        if self._store_threads is None:
            self._store_threads = ThreadPoolExecutor(_STORE_THREADS, "flowpregel-store")
        self._store_threads.submit(self._ask_store, task, task.number, body)

    def _ask_store(self, task: InFlight, number: int, body: bytes) -> None:
        (request,) = REQUEST.unpack_from(body)
        try:
            method, args, kwargs = serialization.unpack(body, None, REQUEST.size)
            if method.startswith("_"):
                raise AttributeError(method)  # noqa: TRY301 - told to the caller like any other
            value = getattr(task.job.store, method)(*args, **kwargs)
            outcome: Outcome = Returned(((RETURN, value),))
        except Exception as error:  # noqa: BLE001 - the caller's to see
            outcome = Raised(error)
        answer = messages.pack_outcome(outcome, task.job.info.name, None)
        send = partial(self._reply, task, number, protocol.ANSWER, request, answer)
        self._pool.loop.call(send)

    def close(self) -> None:
        """End the OS threads that ask stores."""
        if self._store_threads is not None:
            self._store_threads.shutdown(wait=False, cancel_futures=True)


def _pass_on(worker: WorkerProcess, task: InFlight | None, frame: Frame) -> None:
    """Pass on what a task prints or logs."""
    if frame.kind == protocol.PRINTED:
        text = frame.body.decode(errors="replace")
        print_lines(worker, text, task, bool(frame.flags & protocol.STDERR))
    elif frame.flags & protocol.STRUCTURED:
        _log_event(frame.body)
    else:
        _log_record(frame.body, task, worker.pid)


def _log_record(body: bytes, task: InFlight | None, pid: int) -> None:
    """Give a worker's log record to the logger of its name, with what is known of its task."""
    record = logging.makeLogRecord(pickle.loads(body))
    for name, attribute in _LOG_FIELDS:
        record.__dict__[name] = None if task is None else attrgetter(attribute)(task.job.info)
    record.__dict__["pid"] = record.__dict__["worker_pid"] = pid
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _log_event(body: bytes) -> None:
    """Give a worker's structlog event to the program's structlog."""
    import structlog  # noqa: PLC0415 - 60 ms, and only for programs that use it

    names, method, fields = pickle.loads(body)
    event = fields.pop("event", "")
    try:
        getattr(structlog.get_logger(*names), method)(event, **fields)
    except Exception:  # noqa: BLE001 - a user's processor; the pool goes on
        _log.exception("structlog could not take what a worker logged: %r", event)
