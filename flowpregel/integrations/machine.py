"""One machine of a cluster: our pool of worker processes, in a process of the engine.

::

    coordinator                engine                  machine (one of its processes)
    -----------                ------                  ------------------------------
    run(batch, buffers) -----> a task ---------------> pool ---> workers
    tell(orders) ------------> a message ------------> cancel, answer, ...
    poll() ------------------> a message ------------> waits for what the workers sent
         <-------------------- frames, unread <------- outbox

What workers send is passed on as it is: nothing of the user's is unpickled here. A
coordinator that has not polled for a while is gone: what it has here is ended.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from flowpregel._core.asked import Span
from flowpregel._core.effects import Emitted, Ended, Event, StepContext
from flowpregel._core.records import Kind, Node, Returned, Task
from flowpregel.context import Job
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.base import HOST
from flowpregel.executors.processes import ProcessExecutor, messages, protocol, serialization
from flowpregel.executors.processes.assign import InFlight, NodeCode
from flowpregel.executors.processes.crash_report import last_lines
from flowpregel.executors.processes.message_handler import MessageHandler
from flowpregel.executors.processes.messages import JobEncoder
from flowpregel.executors.processes.protocol import RAN, REQUEST, Frame
from flowpregel.executors.processes.serialization import BufferRef
from flowpregel.executors.processes.shared_memory import fill
from flowpregel.executors.processes.worker_process import WorkerProcess
from flowpregel.policies import TimeoutPolicy

SILENCE: Final = 5.0
"""Seconds without a poll after which a coordinator is taken for gone."""
LONGEST_POLL: Final = 1.0
_FULL: Final = 8 << 20
"""Bytes of chunks that may wait for a coordinator before its tasks are held back."""
_KEPT: Final = 1 << 30
"""Bytes of buffers that are kept for tasks to come."""
_GONE: Final = ExecutorUnavailableError("its coordinator was not heard of")
_task_ids: Final = count(1)


class Order(NamedTuple):
    """One task of a batch, as it is sent."""

    number: int
    """Names it in its batch."""
    name: str
    depth: int
    timeout: TimeoutPolicy | None
    contexts: Collection[bytes]
    digest: bytes
    """Of its code."""
    body: bytes
    """The packed job; its large buffers are named by their keys, in the place of segments."""


class Relayed(NamedTuple):
    """A frame of a worker on its way to the coordinator."""

    batch: int
    frame: Frame
    pid: int


@dataclass(slots=True)
class Packed(Returned):
    """The outcome of a task as its worker has packed it."""

    data: bytes


class Home:
    """What one coordinator has on this machine: the mailbox of its tasks.

    Args:
        name: The coordinator's name.
    """

    backlog = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = time.monotonic_ns()
        """Tells it from an earlier home of the same coordinator."""
        self.heard = time.monotonic()
        """When the coordinator polled last."""
        self.tasks: dict[str, InFlight] = {}
        self.left: Counter[int] = Counter()
        """How many tasks of each batch have not ended."""
        self.batches: dict[int, Future[None]] = {}
        """Done when all tasks of a batch have ended."""
        self.unwanted: dict[str, bool] = {}
        """Tasks that were cancelled before they came, and whether to kill them."""
        self.held: list[WorkerProcess] = []
        """Workers whose links are left unread."""
        self.outbox: deque[Relayed] = deque()
        self.size = 0
        """Bytes in there."""
        self._taken = 0
        """How many frames the coordinator has had before those in the outbox."""
        self._poll: Future[bytes] | None = None
        self.is_closed = False

    def key(self, batch: int, number: int) -> str:
        """Return what names a task of its among all of the machine."""
        return f"{self.name}/{batch}/{number}"

    def post(self, *events: Event) -> None:
        """Keep what happened until the next poll."""
        for event in events:
            match event:
                case Emitted(key, (frame, pid)) if key in self.tasks:
                    self._add(key, frame, pid)
                case Ended() if event.task_id in self.tasks:
                    self._end(event)
        if self.outbox:
            self.answer(self._poll)

    def _add(self, key: str, frame: Frame, pid: int) -> int:
        _, batch, number = key.split("/")
        self.outbox.append(Relayed(int(batch), frame._replace(number=int(number)), pid))
        self.size += len(frame.body)
        return int(batch)

    def _end(self, end: Ended) -> None:
        task = self.tasks.pop(end.task_id)
        span = end.span or Span(0, 0.0, "")
        # Without a span it did not run, and is no measure of how long such tasks take.
        caught = end.caught if end.span else ()
        ids = " ".join(caught or ()).encode()
        if isinstance(end.outcome, Packed):
            packed = end.outcome.data
        else:
            packed = messages.pack_outcome(end.outcome, task.job.task.name, None)
        flags = 0 if caught is None else protocol.CAUGHT
        ran = RAN.pack(span.seconds, span.began, span.cpu, span.peak, len(ids))
        frame = Frame(protocol.ENDED, flags, 0, ran + ids + packed)
        batch = self._add(end.task_id, frame, span.pid)
        self.left[batch] -= 1
        if not self.left[batch]:
            del self.left[batch]
            self.batches.pop(batch).set_result(None)

    def poll(self, answer: Future[bytes], epoch: int, taken: int, wants: bool) -> None:
        """Drop what the coordinator has *taken*; set *answer* when there is more, or soon.

        If it *wants* no more for now, it only shows that it is there.
        """
        self.heard = time.monotonic()
        if self.is_closed or not wants:
            answer.set_result(self._told(epoch, taken, []))
            return
        while epoch == self.epoch and self._taken < taken and self.outbox:
            self.size -= len(self.outbox.popleft().frame.body)
            self._taken += 1
        held, self.held = self.held, []
        for worker in held:
            worker.unhold()
        self.answer(self._poll)
        self._poll = answer
        if self.outbox:
            self.answer(answer)

    def _told(self, epoch: int, taken: int, frames: list[Relayed]) -> bytes:
        return pickle.dumps((HOST, epoch, taken, frames), 5)

    def answer(self, poll: Future[bytes] | None) -> None:
        """Answer *poll*, if it is the one that waits."""
        if poll is not None and poll is self._poll:
            self._poll = None
            if poll.set_running_or_notify_cancel():
                poll.set_result(self._told(self.epoch, self._taken, [*self.outbox]))

    def close(self) -> None:
        """Give up its batches."""
        self.is_closed = True
        self.tasks.clear()
        for batch in self.batches.values():
            batch.set_exception(_GONE)
        self.answer(self._poll)


class RelayHandler(MessageHandler):
    """Passes on what workers send to the coordinators whose tasks they run."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        pool.handlers |= dict.fromkeys((protocol.PRINTED, protocol.LOGGED), self._on_output)

    def _relay(self, worker: WorkerProcess, task: InFlight, frame: Frame) -> None:
        emitted = Emitted(task.job.task.id, (frame, worker.pid))
        self._pool.events[task.mailbox].append(emitted)

    def _on_output(self, worker: WorkerProcess, frame: Frame) -> None:
        if frame.flags & protocol.STDERR and frame.kind == protocol.PRINTED:
            worker.tail = last_lines(worker.tail + frame.body.decode(errors="replace"))
        if (task := worker.tasks.get(frame.number)) is not None:
            self._relay(worker, task, frame)

    def _act_on(self, worker: WorkerProcess, task: InFlight, frame: Frame) -> None:
        if frame.kind == protocol.CALLED:
            self._note_call(task, *REQUEST.unpack_from(frame.body))
        self._relay(worker, task, frame)
        home: Any = task.mailbox
        if home.size > _FULL and self._pool.hold(worker, task):
            home.held.append(worker)

    def _on_ended(self, worker: WorkerProcess, frame: Frame) -> None:
        task = worker.tasks[frame.number]
        seconds, began, cpu, peak, size = RAN.unpack_from(frame.body)
        at, caught = RAN.size + size, None
        if frame.flags & protocol.CAUGHT:
            caught = frame.body[RAN.size : at].decode().split()
        else:
            task.code.measured(seconds)
        inside, _ = serialization.moved(frame.body, worker.reader.open, at + 1)
        outcome = Packed((), frame.body[at : at + 1] + inside)
        worker.heard = time.monotonic()
        is_stopped = frame.flags & protocol.STOPPED and task.stopping is not None
        span = Span(began, seconds, "processes", worker.pid, cpu, peak, HOST)
        self._pool.finish(task, task.stopped() if is_stopped else outcome, span, caught)


class PackedJobs(JobEncoder):
    """Has jobs that were packed by their coordinator."""

    def pack(self, task: InFlight, *, share: bool = True) -> bytes:
        """Return the bytes of *task*.

        Raises:
            ExecutorUnavailableError: They cannot be sent, and nobody here can pack them again.
        """
        if task.body is None or not share:
            raise ExecutorUnavailableError("no descriptor is left on this machine")
        return task.body


class Machine(ProcessExecutor):
    """The pool of one process of an engine, for all coordinators that use it.

    Args:
        size: How many tasks run at once.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        # Dask makes its workers daemons, which may have no children. Ours end with them anyway.
        multiprocessing.current_process().daemon = False
        self._handler.close()
        self._handler = RelayHandler(self._pool)
        self._pool.encoder = PackedJobs(self._pool.arena)
        self._threads = ThreadPoolExecutor(1, "flowpregel-leaving")
        self._homes: dict[str, Home] = {}
        self._codes: dict[bytes, NodeCode] = {}
        self._buffers: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._start_pool()
        self._pool.loop.call(self._look)

    def home(self, name: str) -> Home:
        """Return what that coordinator has here, a new one if there is none."""
        if name not in self._homes:
            self._homes[name] = Home(name)
        return self._homes[name]

    # ------------------------------------------------ for any OS thread

    def run(self, name: str, packed: bytes, buffers: Mapping[int, Any]) -> Future[None]:
        """Start a batch: its name, code and orders; return the future of when it has ended.

        *buffers* are the large ones that its tasks need, by their keys.
        """
        home, ended = self.home(name), Future[None]()
        batch, codes, orders = pickle.loads(packed)
        tasks = {}
        for order in orders:
            key = home.key(batch, order.number)
            planned = Task(key, Node(name=order.name), Kind.CALL, None, "", timeout=order.timeout)
            planned.depth = order.depth
            body, refs = serialization.moved(order.body, partial(self._place, name, buffers))
            code = self._codes.setdefault(order.digest, NodeCode(order.digest, codes[order.digest]))
            job = Job(planned, StepContext("", "", 0, 0))
            tasks[key] = InFlight(next(_task_ids), job, home, code, order.contexts, body, refs)
        self._pool.loop.call(partial(self._admit, home, batch, tasks, ended))
        return ended

    def poll(self, name: str, *asked: Any) -> Future[bytes]:
        """Return the future of what there is for a coordinator; see `Home.poll`."""
        answer: Future[bytes] = Future()
        self._pool.loop.call(partial(self.home(name).poll, answer, *asked))
        until = time.monotonic() + LONGEST_POLL
        late = partial(self.home(name).answer, answer)
        self._pool.loop.call(partial(self._pool.loop.call_at, until, late))
        return answer

    def tell(self, name: str, orders: bytes) -> None:
        """Do what a coordinator orders: a pickled list of names of orders and arguments."""
        self._pool.loop.call(partial(self._obey, self.home(name), pickle.loads(orders)))

    def forget(self, name: str, contexts: Sequence[bytes], body: bytes) -> Future[None]:
        """Have workers leave the contexts of a run; return the future of when they have."""
        return self._threads.submit(self.leave_packed, contexts, body)

    def _place(self, home: str, given: Mapping[int, Any], ref: BufferRef) -> Any:
        """Return what names the buffer of that key in our shared memory, or the buffer."""
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
            ended.set_exception(_GONE)
            return
        home.tasks.update(tasks)
        home.batches[batch], home.left[batch] = ended, len(tasks)
        self._pool.admit([*tasks.values()], home)
        for key in tasks.keys() & home.unwanted.keys():
            self._pool.cancel((key, 1), home.unwanted.pop(key))

    def _obey(self, home: Home, orders: list[tuple[Any, ...]]) -> None:
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
                self._handler.answer(task, *more)

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
            threading.Thread(target=self.close, name="flowpregel-closing").start()


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
