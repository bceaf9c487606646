"""One machine of a cluster: our pool of worker processes, in a process of the engine.

::

    coordinator                engine                  machine (one of its processes)
    -----------                ------                  ------------------------------
    run(batch, buffers) -----> a task ---------------> pool ---> workers
    poll(orders) ------------> a message ------------> cancel, answer, ...
         <-------------------- frames, unread <------- outbox <- what the workers sent

What workers send is passed on as it is: nothing of the user's is unpickled here. A
coordinator that has not polled for a while is gone: what it has here is ended.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from pickle import PickleBuffer
from typing import Any, Final

from flowpregel._core.effects import StepContext
from flowpregel._core.ids import Span
from flowpregel._core.records import Kind, Node, Returned, Task
from flowpregel.context import Job
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import HOST
from flowpregel.executors.processes import (
    ProcessExecutor,
    messages,
    protocol,
    serialization,
)
from flowpregel.executors.processes.assign import InFlight, NodeCode
from flowpregel.executors.processes.code_cache import RecentlyUsed
from flowpregel.executors.processes.crash_report import last_lines
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.messages import JobEncoder
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.protocol import RAN, REQUEST, PoolSettings
from flowpregel.executors.processes.serialization import BufferRef, Frame
from flowpregel.executors.processes.shared_memory import fill
from flowpregel.executors.processes.worker_process import WorkerProcess

SILENCE: Final = 5.0
"""Seconds without a poll after which a coordinator is taken for gone."""
LONGEST_POLL: Final = 1.0
_PAUSE: Final = 0.005
"""Seconds between two answers with frames: many small ones go together."""
_FULL: Final = 8 << 20
"""Bytes of chunks that may wait for a coordinator before its tasks are held back."""
_KEPT: Final = 1 << 30
"""Bytes of buffers that are kept for tasks to come."""
_GONE: Final = ExecutorUnavailableError("its coordinator was not heard of")
_RELAYED: Final = Returned(())
"""Stands for an outcome that is on its way to the coordinator."""
_task_ids: Final = count(1)


class Home:
    """What one coordinator has on this machine: the mailbox of its tasks.

    Args:
        name: The coordinator's name.
        loop: The pool's, where all of it happens.
    """

    backlog = None

    def __init__(self, name: str, loop: IOLoop) -> None:
        self.name = name
        self._loop = loop
        self.epoch = time.monotonic_ns()
        """Tells it from an earlier home of the same coordinator."""
        self.heard = time.monotonic()
        """When the coordinator polled last."""
        self.tasks: dict[str, InFlight] = {}
        self.batches: dict[int, tuple[set[str], Future[None]]] = {}
        """The tasks of each batch that have not ended, and what is done when all
        have.
        """
        self.unwanted: dict[str, bool] = {}
        """Tasks that were cancelled before they came, and whether to kill them."""
        self.held: list[WorkerProcess] = []
        """Workers whose links are left unread."""
        self.outbox: deque[tuple[Any, ...]] = deque()
        """Of each frame: batch, pid, large buffers, and the frame's own fields."""
        self.size = 0
        """Bytes in there."""
        self._taken = 0
        """How many frames the coordinator has had before those in the outbox."""
        self._poll: Future[Sequence[Any]] | None = None
        self._next = 0.0
        """When frames may be sent again: monotonic seconds."""
        self.is_closed = False

    def key(self, batch: int, number: int) -> str:
        """Return what names a task of its among all of the machine."""
        return f"{self.name}/{batch}/{number}"

    def relay(
        self,
        task: InFlight,
        frame: Frame,
        pid: int = 0,
        buffers: Sequence[PickleBuffer] = (),
    ) -> None:
        """Have a frame of *task* sent with the next answer."""
        _, batch, number = task.job.task.id.split("/")
        kind, flags, _, body = frame
        self.outbox.append((int(batch), pid, buffers, kind, flags, int(number), body))
        self.size += len(body)
        if len(self.outbox) == 1:
            self._answer_soon()

    def post(self, *events: Any) -> None:
        """Note the ends of tasks."""
        for end in events:
            task_id, _ = end.task.job.key
            task = self.tasks.pop(task_id, None)
            if task is None:
                continue
            if end.outcome is not _RELAYED:
                span = end.span or Span(0, 0.0, "")
                ran = RAN.pack(span.seconds, span.began, span.cpu, span.peak, 0)
                # Made here, without anything of the user's: a death, a timeout, a
                # cancellation.
                packed = messages.pack_outcome(end.read().outcome, task.job.task.name)
                # It is no measure of how long such tasks take.
                frame = Frame(protocol.ENDED, protocol.CAUGHT, 0, ran + packed)
                self.relay(task, frame, span.pid)
            batch = int(task_id.split("/")[1])
            left, ended = self.batches[batch]
            left.discard(task_id)
            if not left:
                del self.batches[batch]
                ended.set_result(None)

    def poll(self, answer: Future[Any], epoch: int, taken: int, wants: bool) -> None:
        """Drop what the coordinator has *taken*; set *answer* when there is more, or
        soon.

        If it *wants* no more for now, it only shows that it is there.
        """
        self.heard = time.monotonic()
        while epoch == self.epoch and self._taken < taken and self.outbox:
            self.size -= len(self.outbox.popleft()[-1])
            self._taken += 1
        self.answer(self._poll, empty=True)
        self._poll = answer
        if self.is_closed or not wants:
            self.answer(answer, empty=True)
            return
        held, self.held = self.held, []
        for worker in held:
            worker.unhold()
        if self.outbox:
            self._answer_soon()
        self._loop.call_at(self.heard + LONGEST_POLL, partial(self.answer, answer))

    def _answer_soon(self) -> None:
        if self._poll is not None:
            self._loop.call_at(self._next, partial(self.answer, self._poll))

    def answer(self, poll: Future[Any] | None, *, empty: bool = False) -> None:
        """Answer *poll*, if it is the one that waits."""
        if poll is None or poll is not self._poll:
            return
        self._poll = None
        if self.outbox and not empty:
            self._next = time.monotonic() + _PAUSE
        buffers: list[PickleBuffer] = []
        told = HOST, self.epoch, self._taken, [] if empty else [*self.outbox]
        if poll.set_running_or_notify_cancel():
            poll.set_result(
                (pickle.dumps(told, 5, buffer_callback=buffers.append), *buffers)
            )

    def close(self) -> None:
        """Give up its batches."""
        self.is_closed = True
        self.tasks.clear()
        for _, ended in self.batches.values():
            ended.set_exception(_GONE)
        self.answer(self._poll, empty=True)


class RelayPool(Pool):
    """Passes on what workers send to the coordinators whose tasks they run."""

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(settings)
        self.encoder = PackedJobs(self.arena)
        self.handlers |= dict.fromkeys(
            (protocol.PRINTED, protocol.LOGGED), self._on_output
        )

    def _on_output(self, worker: WorkerProcess, frame: Frame) -> None:
        if frame.flags & protocol.STDERR and frame.kind == protocol.PRINTED:
            worker.tail = last_lines(worker.tail + frame.body.decode(errors="replace"))
        if (task := worker.tasks.get(frame.number)) is not None:
            home: Any = task.mailbox
            home.relay(task, frame, worker.pid)

    def _act_on(self, worker: WorkerProcess, task: InFlight, frame: Frame) -> None:
        if frame.kind == protocol.CALLED:
            self._note_call(task, *REQUEST.unpack_from(frame.body))
        home: Any = task.mailbox
        home.relay(task, frame, worker.pid)
        if home.size > _FULL and self.hold(worker, task):
            home.held.append(worker)

    def _on_ended(self, worker: WorkerProcess, frame: Frame) -> None:
        task, buffers = worker.tasks[frame.number], list[PickleBuffer]()

        def aside(ref: BufferRef) -> BufferRef:
            buffers.append(PickleBuffer(worker.reader.open(ref)))
            return BufferRef(1, len(buffers) - 1, ref.size)

        seconds, *_, size = RAN.unpack_from(frame.body)
        if not frame.flags & protocol.CAUGHT:
            task.code.measured(seconds)
        worker.heard = time.monotonic()
        at = RAN.size + size
        if frame.flags & protocol.STOPPED and task.stopping is not None:
            outcome = messages.pack_outcome(task.stopped(), task.job.task.name)
            frame = frame._replace(body=frame.body[:at] + outcome)
        else:
            result = serialization.moved(frame.body, aside, at + 1)
            if buffers:
                frame = frame._replace(body=frame.body[: at + 1] + result.data)
        home: Any = task.mailbox
        home.relay(task, frame, worker.pid, buffers)
        self.finish(task, _RELAYED)


class PackedJobs(JobEncoder):
    """Has jobs that were packed by their coordinator."""

    def pack(self, task: InFlight, *, share: bool = True) -> bytes:
        """Refuse *task*, whose bytes cannot be sent: nobody here can pack them again.

        Raises:
            ExecutorUnavailableError: Always.
        """
        raise ExecutorUnavailableError("no descriptor is left on this machine")


class Machine(ProcessExecutor):
    """The pool of one process of an engine, for all coordinators that use it.

    Args:
        size: How many tasks run at once.
    """

    pool_class = RelayPool

    def __init__(self, size: int) -> None:
        super().__init__(size)
        # Dask makes its workers daemons, which may have no children. Ours end with them
        # anyway.
        multiprocessing.current_process().daemon = False
        self._threads = ThreadPoolExecutor(1, "flowpregel-leaving")
        self._homes: dict[str, Home] = {}
        self._codes: RecentlyUsed[bytes, NodeCode] = RecentlyUsed()
        self._buffers: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._start_pool()
        self._pool.loop.call(self._look)

    def home(self, name: str) -> Home:
        """Return what that coordinator has here, a new one if there is none."""
        if name not in self._homes:
            self._homes[name] = Home(name, self._pool.loop)
        return self._homes[name]

    # ------------------------------------------------ for any OS thread

    def run(
        self, name: str, packed: bytes, keys: Sequence[int], *buffers: Any
    ) -> Future[None]:
        """Start a batch: its name, code and orders; return the future of when it has
        ended.

        *buffers* are the large ones that its tasks need, by their *keys*. An order is
        the number of a task in its batch, its name, depth, timeout, contexts, code's
        digest and body.
        """
        home, ended = self.home(name), Future[None]()
        place = partial(self._place, name, dict(zip(keys, buffers, strict=True)))
        batch, codes, orders = pickle.loads(packed)
        tasks = {}
        for number, task, depth, timeout, contexts, digest, given in orders:
            key = home.key(batch, number)
            # Only the coordinator knows the call that it is.
            planned = Task(key, Node(name=task), Kind.PULL, None, "", timeout=timeout)
            planned.depth = depth
            code = self._codes.get(digest)
            if code is None:
                code = NodeCode(digest, codes[digest])
                self._codes.put(digest, code, len(code.data))
            body, refs = serialization.moved(given, place)
            job = Job(planned, StepContext("", "", 0, 0), key=(key, 1))
            tasks[key] = InFlight(
                next(_task_ids), job, home, code, contexts, body, refs
            )
        self._pool.loop.call(partial(self._admit, home, batch, tasks, ended))
        return ended

    def poll(
        self, name: str, orders: Sequence[Sequence[Any]], *asked: Any
    ) -> Future[Sequence[Any]]:
        """Do what a coordinator orders; return the future of what there is for it:
        `Home.poll`.
        """
        home, answer = self.home(name), Future[Sequence[Any]]()
        self._pool.loop.call(partial(self._obey, home, orders))
        self._pool.loop.call(partial(home.poll, answer, *asked))
        return answer

    def forget(self, name: str, contexts: Sequence[bytes], body: bytes) -> Future[None]:
        """Have workers leave the contexts of a run; return the future of when they
        have.
        """
        return self._threads.submit(self.leave_packed, contexts, body)

    def _place(self, home: str, given: Mapping[int, Any], ref: BufferRef) -> Any:
        """Return what names the buffer of that key in our shared memory, or the
        buffer.
        """
        key, arena = (home, ref.segment), self._pool.arena
        with _lock:
            made = self._buffers.pop(key, None)
            if made is None:
                data = memoryview(given[ref.segment]).cast("B")
                made = arena.allocate(ref.size)
                if made is None:
                    return data
                fill(made, data)
            self._buffers[key] = made
            while sum(map(len, self._buffers.values())) > _KEPT:
                self._buffers.popitem(last=False)
            return arena.share(memoryview(made).cast("B"))

    # ------------------------------------------------ for the I/O thread

    def _admit(
        self, home: Home, batch: int, tasks: Mapping[str, InFlight], ended: Future[None]
    ) -> None:
        if home.is_closed:
            self._pool.release_own(tasks.values())
            ended.set_exception(_GONE)
            return
        home.tasks.update(tasks)
        home.batches[batch] = {*tasks}, ended
        self._pool.admit([*tasks.values()], home)
        for key in tasks.keys() & home.unwanted.keys():
            self._pool.cancel((key, 1), home.unwanted.pop(key))

    def _obey(self, home: Home, orders: Sequence[Sequence[Any]]) -> None:
        for order, batch, number, *more in orders:
            key = home.key(batch, number)
            task = home.tasks.get(key)
            if order == "end":
                self._end(home)
            elif task is None:
                home.unwanted |= {key: more[0]} if order == "cancel" else {}
            elif order == "cancel":
                self._pool.cancel(task.job.key, *more)
            elif order == "warn":
                self._pool.warn(task.job.key)
            else:
                self._pool.answer(task, *more)

    def _look(self) -> None:
        """End what belongs to coordinators that are gone; look again in a moment."""
        now = time.monotonic()
        for home in [*self._homes.values()]:
            if home.heard + SILENCE < now:
                self._end(home)
        self._pool.loop.call_at(now + LONGEST_POLL, self._look)

    def _end(self, home: Home) -> None:
        global _current
        for task in [*home.tasks.values()]:
            self._pool.cancel(task.job.key, kill=True)
        home.close()
        with _lock:
            self._homes.pop(home.name, None)
            is_last = not self._homes
            if is_last and _current is self:
                _current = None
        if is_last:
            self.close()


_lock: Final = threading.RLock()
_current: Machine | None = None


def machine(size: int, home: str) -> Machine:
    """Return the pool of this process, with a place in it for the coordinator *home*.

    It is made when it is asked for, and closed when the last coordinator has gone.
    """
    global _current
    with _lock:
        if _current is None or _current.is_closed:
            _current = Machine(size)
        _current.home(home)
        return _current
