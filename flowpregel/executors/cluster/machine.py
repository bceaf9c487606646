"""One machine of a cluster: a pool of worker processes in a process of the engine.

::

    coordinator                engine                  machine (a process on it)
    -----------                ------                  ------------------------------
    request_slots() ---------> tasks that wait ------> hold()
    run(batch, buffers) -----> a message ------------> pool ---> workers
    poll(commands) ----------> a message ------------> cancel, answer, ...
         <-------------------- frames, unread <------- outbox <- frames of the workers

Frames (messages) of workers are passed on unchanged, and none of the user's objects is
unpickled here. If a coordinator has not polled (requested frames) for a while, it is
regarded as dead, and its tasks are ended.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pickle import PickleBuffer
from typing import Any, ClassVar, Final

from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Task, TaskOrigin
from flowpregel.context import Job
from flowpregel.executors.cluster.coordinator_client import (
    GONE,
    LONGEST_POLL,
    RELAYED,
    CoordinatorClient,
)
from flowpregel.executors.cluster.handshake import pack_report
from flowpregel.executors.cluster.package_versions import pack_contents
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.crash_report import last_lines
from flowpregel.executors.processes.coordinator.pool import Pool
from flowpregel.executors.processes.coordinator.worker_life import WorkerState
from flowpregel.executors.processes.coordinator.worker_process import WorkerProcess
from flowpregel.executors.processes.wire import (
    messages,
    protocol,
    serialization,
)
from flowpregel.executors.processes.wire.node_code import (
    NodeCode,
    RecentlyUsed,
)
from flowpregel.executors.processes.wire.protocol import (
    REQUEST,
    Frame,
    PoolSettings,
)
from flowpregel.executors.processes.wire.serialization import BufferRef
from flowpregel.executors.processes.wire.shared_memory import fill

SILENCE: Final = 5.0
"""Seconds without a request for messages (poll) after which a coordinator is assumed to
be dead.
"""
_FULL: Final = 8 << 20
"""The size, in bytes, of the messages (frames) that may wait to be fetched by a
coordinator. If more wait, nothing is read from the workers that run its tasks for now.
"""
_CACHE_LIMIT: Final = 1 << 30
"""The maximum size, in bytes, of the large buffers of arguments that are kept for later
tasks.
"""
_SPARE_WORKERS: Final = 8
"""The number of idle workers that are kept, in addition to two for each CPU."""
_task_ids: Final = count(1)


class RelayWorkerPool(Pool):
    """A pool that passes frames of workers on to the coordinators of their tasks."""

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(settings)
        self._most_idle = 2 * settings.size + _SPARE_WORKERS
        self.handlers[protocol.PRINTED] = self._on_output
        self.handlers[protocol.LOGGED] = self._on_output

    def limit(self, slots: int) -> None:
        """Change the number of tasks that run at once. Idle workers stay, because
        slots come and go.
        """
        self.settings = replace(self.settings, size=max(1, slots))
        self.resources.resize(self.settings)

    def vacate(self, gpus: Collection[str]) -> None:
        """Stop the idle workers that may have allocated memory on some GPUs.

        Args:
            gpus: The names of the GPUs, or an empty collection for all.
        """
        for worker in self.workers:
            used = worker.kind.gpus
            is_affected = used and not (gpus and {*used}.isdisjoint(gpus))
            if worker.state is WorkerState.IDLE and is_affected:
                worker.stop()

    def _is_spare(self) -> bool:
        states = [worker.state for worker in self.workers]
        return states.count(WorkerState.IDLE) > self._most_idle

    def _on_output(
        self,
        worker: WorkerProcess,
        frame: Frame,
    ) -> None:
        if frame.flags & protocol.STDERR and frame.kind == protocol.PRINTED:
            text = frame.body.decode(errors="replace")
            worker.output.tail = last_lines(worker.output.tail + text)
        task = worker.tasks.get(frame.number)
        if task is not None:
            client: Any = task.mailbox
            client.relay(task, frame, worker.pid)

    def _act_on(
        self,
        worker: WorkerProcess,
        task: InFlight,
        frame: Frame,
    ) -> None:
        if frame.kind == protocol.CALLED:
            self._note_call(task, *REQUEST.unpack_from(frame.body))
        client: Any = task.mailbox
        client.relay(task, frame, worker.pid)
        if client.size > _FULL and self.pause_reading(worker, task):
            client.paused.append(worker)

    def _on_ended(
        self,
        worker: WorkerProcess,
        frame: Frame,
    ) -> None:
        task = worker.tasks[frame.number]
        body = frame.body
        head = messages.unpack_head(body)
        if not frame.flags & protocol.CAUGHT:
            task.code.measured(head.span.seconds)
        worker.last_activity = time.monotonic()
        start = head.size
        buffers: list[PickleBuffer] = []
        if frame.flags & protocol.STOPPED and task.execution.stopping is not None:
            outcome = messages.pack_outcome(task.stopped(), task.job.task.name)
            frame = frame._replace(body=body[:start] + outcome)
        else:
            start += 1  # The byte that names the kind of outcome is skipped.
            collect = partial(_collect_buffer, worker, buffers)
            result = serialization.moved(body, collect, start)
            if buffers:
                frame = frame._replace(body=body[:start] + result.data)
        client: Any = task.mailbox
        client.relay(
            task,
            frame,
            worker.pid,
            buffers,
        )
        self.finish(task, RELAYED)


def _collect_buffer(
    worker: WorkerProcess,
    buffers: list[PickleBuffer],
    ref: BufferRef,
) -> BufferRef:
    """Add a buffer in a worker's shared memory to *buffers*, and return a reference to
    its position in the list.
    """
    buffers.append(PickleBuffer(worker.reader.open(ref)))
    return BufferRef(1, len(buffers) - 1, ref.size)


class RemotePoolHost(ProcessExecutor):
    """The pool of worker processes in one process of an engine, for all coordinators
    that use this process.

    Args:
        size: The number of CPUs of the machine. It is also the number of idle worker
            processes that are kept. The number of tasks that run at once is that of the
            slots of all coordinators.
        limits: The ``"memory"`` and ``"gpus"`` that tasks may take, if these differ
            from what the machine has.

    Example:
        >>> with RemotePoolHost(2) as host:  # on a machine, use `pool_host` instead
        ...     host.forget("coordinator-1", [], b"").result()  # exits no contexts
    """

    pool_class: ClassVar[type[Pool]] = RelayWorkerPool

    def __init__(
        self,
        size: int,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        amounts = dict(limits or {})
        amounts["cpus"] = size
        super().__init__(size, limits=amounts)
        # Dask's workers are daemon processes, to which multiprocessing refuses
        # children. So the daemon flag of this process is cleared. The pool's workers
        # end with this process in any case.
        multiprocessing.current_process().daemon = False
        self._threads = ThreadPoolExecutor(1, "flowpregel-leaving")
        self._clients: dict[str, CoordinatorClient] = {}
        self._codes: RecentlyUsed[bytes, NodeCode] = RecentlyUsed()
        self._buffers: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._start_pool()
        self._pool.loop.call(self._end_gone_clients)

    def client(self, name: str) -> CoordinatorClient:
        """Return the client of a coordinator. If there is none, create one.

        Args:
            name: The name of the coordinator.
        """
        if name not in self._clients:
            self._clients[name] = CoordinatorClient(name, self._pool.loop)
        return self._clients[name]

    # ------------------------------------------------ methods for any OS thread

    def handshake(self, name: str) -> Future[Sequence[bytes]]:
        """Return a future for the report of this machine: its versions and resources.

        Args:
            name: The name of the coordinator, which has a client here from now on.
        """
        self.client(name)
        report = Future[Sequence[bytes]]()
        report.set_result([pack_report(self._pool.settings.amounts)])
        return report

    def inspect(
        self,
        name: str,
        packages: Sequence[str],
        modules: Sequence[str],
    ) -> Future[list[bytes]]:
        """Return a future for three answers: the versions of *packages* on this
        machine, those of *modules* that exist here, and the time.

        Args:
            name: The name of the coordinator.
            packages: The names of the packages.
            modules: The names of top-level modules.
        """
        return self._threads.submit(pack_contents, packages, modules)

    def run(
        self,
        name: str,
        packed: bytes,
        keys: Sequence[int],
        *buffers: Any,
    ) -> Future[None]:
        """Accept a batch of tasks, and return a future that is done when it is in the
        pool.

        Args:
            name: The coordinator's name.
            packed: The pickle of: the id of the batch, the number of the coordinator's
                slots on this machine, the packed code of the tasks by digest, and an
                order for each task. An order has the number in the batch, name, depth,
                timeout, resources, names of the GPUs if the engine has chosen them,
                contexts, digest of the code, and body.
            keys: The keys of *buffers*.
            buffers: The large buffers that the tasks need.
        """
        client = self.client(name)
        arrival = Future[None]()
        share = partial(self._share, name, dict(zip(keys, buffers, strict=True)))
        batch, slots, codes, orders = pickle.loads(packed)
        tasks = {}
        for number, *order in orders:
            key = client.key(batch, number)
            tasks[key] = self._task_of(
                client,
                key,
                order,
                codes,
                share,
            )
        self._pool.loop.call(partial(self._set_slots, client, slots))
        admit = partial(self._admit, client, batch, tasks, arrival)
        self._pool.loop.call(admit)
        return arrival

    def _task_of(
        self,
        client: CoordinatorClient,
        key: str,
        order: Sequence[Any],
        codes: Mapping[bytes, bytes],
        share: Callable[[BufferRef], Any],
    ) -> InFlight:
        """Return the pool's record of the task in *order*, with its large buffers in
        shared memory.
        """
        name, depth, timeout, resources, gpus, contexts, digest, body = order
        # The arguments stay packed in *body*, and only the worker unpacks them. So the
        # `Task` that is made here has None as its input.
        planned = Task(
            key,
            Node(name=name, resources=resources),
            Kind.PULL,
            None,
            "",
            timeout=timeout,
            origin=TaskOrigin(depth=depth),
        )
        code = self._code_of(digest, codes)
        step = StepContext("", "", 0, 0)
        job = Job(planned, step, key=(key, 1))
        data, refs = serialization.moved(body, share)
        return InFlight(
            next(_task_ids),
            job,
            client,
            code,
            contexts,
            data,
            refs,
            gpus=gpus,
        )

    def _code_of(
        self,
        digest: bytes,
        codes: Mapping[bytes, bytes],
    ) -> NodeCode:
        """Return the packed code with the digest *digest*, from the cache or else from
        *codes*.
        """
        code = self._codes.get(digest)
        if code is None:
            code = NodeCode(digest, codes[digest])
            self._codes.put(digest, code, len(code.data))
        return code

    def poll(
        self,
        name: str,
        commands: Sequence[Sequence[Any]],
        *arguments: Any,
    ) -> Future[Sequence[Any]]:
        """Execute a coordinator's commands, and return a future for the next frames.

        Args:
            name: The name of the coordinator.
            commands: The commands, each with a verb, the id of a batch, the number of a
                task in the batch, and arguments.
            arguments: The further arguments of `CoordinatorClient.poll`, and the number
                of the coordinator's slots.
        """
        client = self.client(name)
        answer = Future[Sequence[Any]]()
        *poll_arguments, slots = arguments
        self._pool.loop.call(partial(self._set_slots, client, slots))
        self._pool.loop.call(partial(self._execute_all, client, commands))
        self._pool.loop.call(partial(client.poll, answer, *poll_arguments))
        return answer

    def hold(self, name: str, slot: int) -> Future[None]:
        """Return a future that is done when a coordinator releases a slot, or has
        ended.

        The engine's task for the slot may wait for it.

        Args:
            name: The name of the coordinator.
            slot: The number of the slot.
        """
        released = Future[None]()
        hold = partial(self.client(name).hold, slot, released)
        self._pool.loop.call(hold)
        return released

    def beat(self, name: str) -> Future[None]:
        """Record that a coordinator is alive, and return a future that is done.

        A large answer to another request may take long on a slow network. In that time,
        this request shows the machine that the coordinator is alive, and its answer
        shows the coordinator that the machine is.

        Args:
            name: The name of the coordinator.
        """
        self.client(name).last_poll = time.monotonic()
        sign = Future[None]()
        sign.set_result(None)
        return sign

    def fetch(
        self,
        name: str,
        key: int,
    ) -> Future[Sequence[Any]]:
        """Return a future for the large buffers under a key, with an empty pickle
        before them, as in other answers.

        Args:
            name: The name of the coordinator.
            key: The key that a frame contains in place of the buffers.
        """
        buffers = Future[Sequence[Any]]()
        buffers.set_result((b"", *self.client(name).large_buffers[key]))
        return buffers

    def forget(
        self,
        name: str,
        contexts: Sequence[bytes],
        body: bytes,
    ) -> Future[None]:
        """Make all workers exit the contexts of a run. Return a future that is done
        when they have.

        Args:
            name: The name of the coordinator.
            contexts: The tokens of the contexts.
            body: The message for the workers, as `leave_packed` takes it.
        """
        return self._threads.submit(self.leave_packed, contexts, body)

    def _share(
        self,
        name: str,
        buffers: Mapping[int, Any],
        ref: BufferRef,
    ) -> Any:
        """Put a buffer of an argument into this pool's shared memory, and return the
        reference to it. Return the buffer itself if the memory is full.

        Args:
            name: The coordinator's name.
            buffers: The large buffers of a batch, by key.
            ref: The coordinator's reference to the buffer.
        """
        key = (
            name,
            ref.segment,
        )
        arena = self._pool.arena
        with _lock:
            block = self._buffers.pop(key, None)
            if block is None:
                data = memoryview(buffers[ref.segment]).cast("B")
                block = arena.allocate(ref.size)
                if block is None:
                    return data
                fill(block, data)
            self._buffers[key] = block
            while sum(map(len, self._buffers.values())) > _CACHE_LIMIT:
                self._buffers.popitem(last=False)
            return arena.share(memoryview(block).cast("B"))

    # ------------------------------------------------ methods for the I/O thread

    def _forget_buffer(self, client: CoordinatorClient, key: int) -> None:
        """Free the memory of an argument's buffer, because no later task will get
        it.
        """
        with _lock:
            self._buffers.pop((client.name, key), None)

    def _admit(
        self,
        client: CoordinatorClient,
        batch: int,
        tasks: Mapping[str, InFlight],
        arrival: Future[None],
    ) -> None:
        if client.is_closed:
            self._pool.release_own(tasks.values())
            arrival.set_exception(GONE)
            return
        arrival.set_result(None)
        client.tasks.update(tasks)
        client.batches[batch] = set(tasks)
        self._pool.admit(list(tasks.values()), client)
        for key in tasks.keys() & client.early_cancels.keys():
            self._pool.cancel((key, 1), client.early_cancels.pop(key))

    def _set_slots(self, client: CoordinatorClient, slots: int) -> None:
        """Change the number of a coordinator's slots on this machine."""
        if slots != client.slots:
            client.slots = slots
            clients = list(self._clients.values())
            pool: Any = self._pool
            pool.limit(sum(client.slots for client in clients))

    def _execute_all(
        self,
        client: CoordinatorClient,
        commands: Sequence[Sequence[Any]],
    ) -> None:
        pool: Any = self._pool
        actions: dict[str, Callable[..., object]] = {
            "drop": client.drop,
            "end": partial(self._end, client),
            "forget": partial(self._forget_buffer, client),
            "release": client.release,
            "vacate": pool.vacate,
        }
        for verb, batch, number, *arguments in commands:
            if verb in actions:
                actions[verb](*arguments)
            else:
                key = client.key(batch, number)
                self._execute_for(client, key, verb, arguments)

    def _execute_for(
        self,
        client: CoordinatorClient,
        key: str,
        verb: str,
        arguments: Sequence[Any],
    ) -> None:
        """Execute a command about a task. If the task has not arrived yet, record a
        cancellation, which then takes effect when the task arrives.
        """
        task = client.tasks.get(key)
        if task is not None:
            self._execute(verb, task, arguments)
        elif verb == "cancel":
            client.early_cancels[key] = arguments[0]

    def _execute(
        self,
        verb: str,
        task: InFlight,
        arguments: Sequence[Any],
    ) -> None:
        """Execute a command about a task that has not ended."""
        if verb == "cancel":
            self._pool.cancel(task.job.key, *arguments)
        elif verb == "warn":
            self._pool.warn(task.job.key)
        else:
            self._pool.answer(task, *arguments)

    def _end_gone_clients(self) -> None:
        """End the tasks of coordinators that are regarded as dead, and check again
        later.
        """
        now = time.monotonic()
        for client in list(self._clients.values()):
            if client.last_poll + SILENCE < now:
                self._end(client)
        self._pool.loop.call_at(now + LONGEST_POLL, self._end_gone_clients)

    def _end(self, client: CoordinatorClient) -> None:
        global _current
        for task in list(client.tasks.values()):
            self._pool.cancel(task.job.key, kill=True)
        client.close()
        self._set_slots(client, 0)
        with _lock:
            self._clients.pop(client.name, None)
            is_last = not self._clients
            if is_last and _current is self:
                _current = None
        if is_last:
            self.close()


_lock: Final = threading.RLock()
_current: RemotePoolHost | None = None


def pool_host(
    size: int,
    coordinator: str,
    limits: Mapping[str, float] | None = None,
) -> RemotePoolHost:
    """Return the pool of this process. *coordinator* is registered as one that uses it.

    The first call starts the pool. It is closed when the last coordinator has ended.

    Args:
        size: The number of CPUs of the machine.
        coordinator: The name of the coordinator.
        limits: The ``"memory"`` and ``"gpus"`` that tasks may take, if these differ
            from what the machine has.

    Example:
        >>> host = pool_host(2, "coordinator-1")
        >>> pool_host(2, "coordinator-2") is host
        True
        >>> host.close()
    """
    global _current
    with _lock:
        if _current is None or _current.is_closed:
            _current = RemotePoolHost(size, limits)
        _current.client(coordinator)
        return _current
