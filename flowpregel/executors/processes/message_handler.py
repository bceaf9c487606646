"""What the frames from workers mean, and what is done about them."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Final

from flowpregel._core.effects import CANCEL, SAVE, Call, Emitted
from flowpregel._core.ids import Span
from flowpregel._core.records import RETURN, Arguments, Outcome, Raised, Returned
from flowpregel.context import nothing
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.base import HOST, Backlog
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.assign import InFlight, WorkerState
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.protocol import RAN, REQUEST, Frame
from flowpregel.executors.processes.shared_memory import released_in
from flowpregel.executors.processes.worker_io import TASK_FIELDS
from flowpregel.executors.processes.worker_process import WorkerProcess

_log: Final = logging.getLogger("flowpregel.worker")
_FORMAT: Final = logging.Formatter("%(levelname)s %(name)s: %(message)s")
_CHUNK_COST: Final = 256
"""Bytes that a chunk takes beside its content."""
_TRY_AGAIN: Final = 1 << 20
"""Bytes after which a worker that could not be held back is looked at again."""
_STORE_THREADS: Final = 4
_REQUESTS: Final = {protocol.SAVED: SAVE, protocol.CANCELLED: CANCEL}


class MessageHandler:
    """Acts on each frame that a worker has sent; on the I/O thread.

    Its methods raise whatever keeps them from reading a frame: a user's class may raise anything.

    Args:
        pool: Whose workers.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._requests = count(1)
        # A store may wait for a disk or another process.
        self._store_threads = ThreadPoolExecutor(_STORE_THREADS, "flowpregel-store")
        self._actions: Mapping[int, Callable[[InFlight, Frame], object]] = {
            protocol.EMITTED: self._on_emitted,
            protocol.BEAT: nothing,
            protocol.CALLED: self._on_called,
            protocol.ASKED: lambda *asked: self._store_threads.submit(self._ask_store, *asked),
            **dict.fromkeys(_REQUESTS, self._on_request),
        }
        """What is done about what a running task has sent, by kind."""
        pool.handlers |= {
            protocol.FAILED: self._on_failed,
            protocol.ENDED: self._on_ended,
            protocol.RETURNED: self._on_returned,
            protocol.LEFT: lambda worker, frame: worker.leaving.pop(frame.number).set_result(None),
            protocol.PRINTED: _on_printed,
            protocol.LOGGED: _on_logged,
            **dict.fromkeys(self._actions, self._on_running),
        }

    def _on_failed(self, worker: WorkerProcess, frame: Frame) -> None:
        outcome = messages.unpack_outcome(frame.body)
        worker.failure = outcome.error if isinstance(outcome, Raised) else None

    def _on_returned(self, worker: WorkerProcess, frame: Frame) -> None:
        released = {*released_in(frame.body)}
        self._pool.arena.release(released)
        worker.reads -= released

    def _on_running(self, worker: WorkerProcess, frame: Frame) -> None:
        """Act on what a running task has sent."""
        task = worker.tasks.get(frame.number)
        if task is None:
            return
        policy = task.job.task.timeout
        if policy is not None and (frame.kind == protocol.BEAT or policy.refresh_on == "auto"):
            task.alive = time.monotonic()
        self._act_on(worker, task, frame)

    def _act_on(self, worker: WorkerProcess, task: InFlight, frame: Frame) -> None:
        self._actions[frame.kind](task, frame)

    def _on_ended(self, worker: WorkerProcess, frame: Frame) -> None:
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
        span = Span(began, seconds, "processes", worker.pid, cpu, peak, HOST)
        self._pool.finish(task, outcome, span, caught)

    def _on_emitted(self, task: InFlight, frame: Frame) -> None:
        worker: WorkerProcess = task.worker
        emitted = Emitted(task.job.task.id, serialization.unpack(frame.body))
        self._pool.events[task.mailbox].append(emitted)
        backlog: Backlog | None = getattr(task.mailbox, "backlog", None)
        if backlog is None or not backlog.add(len(frame.body) + _CHUNK_COST):
            return
        if self._pool.hold(worker, task):
            if not backlog.hold(partial(self._pool.loop.call, worker.unhold)):
                worker.unhold()
        else:
            backlog.limit = backlog.size + _TRY_AGAIN

    # ------------------------------------------------ what tasks ask for

    def _on_called(self, task: InFlight, frame: Frame) -> None:
        call = self._pool.encoder.decode_call(task, frame.body)
        self._note_call(task, call.reply[1])
        self._pool.events[task.mailbox].append(call)

    def _note_call(self, task: InFlight, request: int) -> None:
        """Note that *task* waits: its worker does not count now, and gets nothing behind it."""
        task.calls.add(request)
        task.code.seconds = float("inf")
        self._pool.recall(task.worker)

    def _on_request(self, task: InFlight, frame: Frame) -> None:
        (request,) = REQUEST.unpack_from(frame.body)
        given = frame.body[REQUEST.size :]
        arguments = Arguments((serialization.unpack(given),) if given else (), {})
        node = _REQUESTS[frame.kind]
        asked = Call(*task.job.key, node, arguments, reply=(task, request))
        self._pool.events[task.mailbox].append(asked)

    def answer(self, task: InFlight, request: int, body: bytes) -> None:
        """Send what *task* waits for to its worker, if that still has it."""
        if task.worker is None:
            return
        task.calls.discard(request)
        task.worker.send(protocol.ANSWER, request, body)

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
        self._pool.loop.call(partial(self.answer, task, request, answer))

    # ------------------------------------------------ contexts

    def leave(self, contexts: Set[bytes], body: bytes, asked: Future[list[Future[None]]]) -> None:
        """Have the workers leave *contexts*; set *asked* to the futures of when they have."""
        workers = [each for each in self._pool.workers if each.contexts & contexts]
        for worker in workers:
            worker.contexts -= contexts
            number = next(self._requests) & 0xFFFFFFFF
            worker.leaving[number] = Future()
            # One that was dismissed leaves all that it has entered.
            if worker.state is not WorkerState.LEAVING:
                worker.send(protocol.LEAVE, number, body)
        asked.set_result([left for each in workers for left in each.leaving.values()])

    def close(self) -> None:
        """End the OS threads that ask stores."""
        self._store_threads.shutdown(wait=False, cancel_futures=True)


# ------------------------------------------------ what workers print and log


def _on_printed(worker: WorkerProcess, frame: Frame) -> None:
    text, to_stderr = frame.body.decode(errors="replace"), bool(frame.flags & protocol.STDERR)
    worker.print(text, worker.tasks.get(frame.number), to_stderr)


def _on_logged(worker: WorkerProcess, frame: Frame) -> None:
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
