"""The executor on a Dask cluster. Tasks run in flowpregel's own pool of worker
processes in each Dask worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, Final, Literal
from uuid import uuid4
from weakref import WeakValueDictionary

import distributed
from distributed import Client, get_worker, secede
from distributed.protocol import to_serialize
from distributed.security import Security
from distributed.threadpoolexecutor import thread_state

from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.cluster import (
    ClusterExecutor,
    RemotePool,
    RemotePoolHost,
    limits_of_cluster,
    pool_host,
)

_IN_DASK: Final = {"gpus": "GPU", "memory": "MEMORY"}
"""The names of flowpregel's resources, each with the name under which a Dask worker may
declare it.
"""
_DELIVERIES: Final = 3
"""The maximum number of times that a batch of tasks is sent to a Dask worker, because
the worker lacks large buffers of the batch.
"""
_TOPIC: Final = "flowpregel-slots"
"""The topic of the Dask events that report the beginning of a slot: a Dask task that
occupies a CPU for this program. The scheduler keeps the last events of each topic that
was ever used, so all programs share this one.
"""
_POOLS: Final[WeakValueDictionary[str, DaskPool]] = WeakValueDictionary()
"""The open pools of this program, by the coordinator's name."""


class DaskExecutor(ClusterExecutor):
    """An executor that runs tasks on the workers of a Dask cluster.

    A Dask worker passes tasks to flowpregel's own worker processes, so that timeouts,
    cancellation, crashes, streams and nested calls work as on one machine. Close the
    executor, or use it in a ``with`` block, before the client is closed.

    Args:
        client: A connected client; it stays open. With ``direct_to_workers=False``
            all messages pass through the scheduler, which is slower.
        timeout: Seconds for which tasks wait if the cluster has no worker, or none with
            the resources that they need.
        limits: The number of calls of tasks with ``limit="name"`` that may run at once
            on all machines together, by name.
        limits_scope: The calls that share the named limits: ``"pool"`` for those of
            this executor, or ``"store"`` for those of all programs whose runs are in
            the same store, LMDB or SQLite.
        ship: The modules and packages, or their names, whose code is sent by value,
            because the workers lack them.

    Raises:
        ConfigurationError: *client* is no client, an argument makes no sense, or *ship*
            names a module that does not exist.

    Example:
        >>> DaskExecutor(Client("tcp://scheduler:8786"))  # doctest: +SKIP
    """

    def __init__(
        self,
        client: Client,
        *,
        timeout: float = 60.0,
        limits: Mapping[str, float] | None = None,
        limits_scope: Literal["pool", "store"] = "pool",
        ship: Sequence[str | ModuleType] = (),
    ) -> None:
        if not isinstance(client, Client):
            raise ConfigurationError(
                f"DaskExecutor needs a dask.distributed.Client, not {client!r:.80}; "
                "for the address of a scheduler, use DaskExecutor.connect(address)"
            )
        self._dask_pool = DaskPool(
            client,
            timeout,
            limits,
            limits_scope,
        )
        super().__init__(self._dask_pool, ship=ship)

    @classmethod
    def connect(
        cls,
        location: str,
        *,
        security: Security | None = None,
        timeout: float = 60.0,
        ship: Sequence[str | ModuleType] = (),
    ) -> DaskExecutor:
        """Return an executor with a client of its own.

        Args:
            location: ``HOST:PORT`` of the scheduler, ``tls://HOST:PORT`` or another
                address that Dask knows, or ``file://PATH`` of a scheduler file.
            security: The certificates for TLS. None means those of Dask's
                configuration, ``distributed.comm.tls``.
            timeout: Seconds for which tasks wait if the cluster has no worker.
            ship: The modules and packages whose code is sent by value.

        Raises:
            OSError: The scheduler does not answer, or there is no such file.
            ConfigurationError: *ship* names a module that does not exist.

        Example:
            >>> DaskExecutor.connect("tls://scheduler:8786")  # doctest: +SKIP
        """
        protocol, has_protocol, path = location.rpartition("://")
        if protocol == "file":
            where = {"scheduler_file": _existing_file(path)}
        elif has_protocol:
            where = {"address": location}
        else:
            where = {"address": f"tcp://{location}"}
        client = Client(
            **where,
            security=security,
            set_as_default=False,
        )
        return cls.owning(client, timeout=timeout, ship=ship)

    @classmethod
    def owning(
        cls,
        client: Client,
        *,
        timeout: float = 60.0,
        ship: Sequence[str | ModuleType] = (),
    ) -> DaskExecutor:
        """Return an executor that closes *client*, and the cluster that the client was
        made with, when the executor is closed.

        Args:
            client: A connected client.
            timeout: Seconds for which tasks wait if the cluster has no worker.
            ship: The modules and packages whose code is sent by value.

        Raises:
            ConfigurationError: *ship* names a module that does not exist. The client
                is closed.

        Example:
            >>> DaskExecutor.owning(Client(LocalCluster()))  # doctest: +SKIP
        """
        try:
            executor = cls(client, timeout=timeout, ship=ship)
        except BaseException:
            client.close()
            raise
        executor._dask_pool.owns_client = True
        return executor

    def start(self, jobs: Sequence[Any], mailbox: Any) -> None:
        """Start *jobs* as any pool does.

        If a Dask task runs the flow, its OS thread will wait for *jobs*. So it first
        leaves Dask's thread pool, because the jobs may need its place in the pool.
        """
        if getattr(thread_state, "proceed", False):
            secede()
        super().start(jobs, mailbox)


class DaskPool(RemotePool):
    """The pool of an executor on a Dask cluster: it uses all Dask workers."""

    def __init__(
        self,
        client: Client,
        timeout: float,
        limits: Mapping[str, float] | None,
        limits_scope: Literal["pool", "store"],
    ) -> None:
        self.client: Client = client
        self._resources: dict[str, Mapping[str, float]] = {}
        """The resources that each worker declares, by its address."""
        self._slots_in_dask: dict[int, Any] = {}
        """The Dask future of each slot, by the number of the slot. They are kept here
        because Dask cancels a task (here, the slot) when no reference to the task's
        future is left.
        """
        self.owns_client = False
        """True if the client, and the cluster that it was made with, are closed with
        this pool.
        """
        self._is_direct = client.direct_to_workers is not False
        named_limits = limits_of_cluster(limits, limits_scope)
        super().__init__("dask", timeout, limits=named_limits)
        _POOLS[self.name] = self
        client.subscribe_topic(_TOPIC, on_slot_event)

    def _is_connected(self) -> bool:
        """Return False if the client was closed or has lost its scheduler."""
        status: str = self.client.status
        return status == "running"

    def machines(self) -> Mapping[str, int] | None:
        if not self._is_connected():
            return None
        return dict(self.client.nthreads())

    def connect(self, address: str) -> Future[Any]:
        return self._begin(self._open_mailbox(address))

    async def _open_mailbox(self, address: str) -> Any:
        answers = await self.client.run(
            open_mailbox,
            self.name,
            workers=[address],
        )
        answer, self._resources[address] = answers[address]
        return answer

    def request_slots(
        self,
        slots: Sequence[int],
        addresses: Sequence[str],
    ) -> None:
        submission = self._submit_slots(occupy_thread, slots, addresses, {})
        self._begin(submission)

    def booked_resources(self, address: str = "") -> Collection[str]:
        resources = self._resources.get(address, {})
        return [name for name, dask_name in _IN_DASK.items() if dask_name in resources]

    def request_allocations(
        self,
        slots: Sequence[int],
        amounts: Mapping[str, int],
        addresses: Sequence[str],
    ) -> None:
        resources: dict[str, int] = {}
        for name, amount in amounts.items():
            resources[_IN_DASK[name]] = amount
        submission = self._submit_slots(occupy_no_thread, slots, addresses, resources)
        self._begin(submission)

    async def _submit_slots(
        self,
        function: Callable[[int, str], None],
        slots: Sequence[int],
        addresses: Sequence[str],
        resources: Mapping[str, int],
    ) -> None:
        try:
            futures = self.client.map(
                function,
                slots,
                coordinator=self.name,
                key=[f"flowpregel-slot-{self.name}-{slot}" for slot in slots],
                pure=False,
                workers=list(addresses) or None,
                resources=dict(resources) or None,
            )
        except Exception as error:  # noqa: BLE001 - the ledger reports it
            for slot in slots:
                self.slot_ended(slot, error)
            return
        watches = [
            self._watch_slot(slot, future)
            for slot, future in zip(slots, futures, strict=True)
        ]
        self._slots_in_dask.update(zip(slots, futures, strict=True))
        await asyncio.gather(*watches)

    async def _watch_slot(
        self,
        slot: int,
        future: Any,
    ) -> None:
        """Report the end of a slot, unless it was released.

        Dask's `add_done_callback` is not used, because it calls functions in a thread
        pool that may have ended when the program exits.
        """
        error = await future.exception(asynchronous=True)
        if future.status == "error":
            self.slot_ended(slot, error)
        elif future.status == "finished":
            self.slot_ended(slot, ExecutorUnavailableError("the slot has ended"))

    def release_slot(
        self,
        slot: int,
        address: str,
    ) -> None:
        self._begin(self._forget_slot(slot))

    async def _forget_slot(
        self,
        slot: int,
    ) -> None:
        future = self._slots_in_dask.pop(
            slot,
            None,
        )
        if future is not None:
            future.release()

    def can_grow(self) -> bool:
        # A client that did not start the cluster cannot see whether it is adaptive
        # (starts workers on demand), so this is assumed.
        cluster = self.client.cluster
        return cluster is None or getattr(cluster, "_adaptive", None) is not None

    def release_machines(self) -> None:
        _POOLS.pop(self.name, None)
        is_shared = any(pool.client is self.client for pool in _POOLS.values())
        if self._is_connected() and not is_shared:
            self.client.unsubscribe_topic(_TOPIC)
        if self.owns_client:
            cluster = self.client.cluster
            self.client.close()
            if cluster is not None:
                cluster.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self.client.status in ("closing", "closed"):
            # The client is closed, and its event loop may have stopped. So the
            # coroutine is closed without being started.
            work.close()
            failed = Future[Any]()
            failed.set_exception(ConnectionError("the client of Dask is closed"))
            return failed
        loop = self.client.loop.asyncio_loop
        return asyncio.run_coroutine_threadsafe(work, loop)

    def put_buffer(self, address: str, data: memoryview) -> Any:
        return self._begin(self._send_buffer(address, data.cast("B")))

    async def _send_buffer(self, address: str, data: memoryview) -> Any:
        """Send a buffer to a Dask worker, and return its future in Dask."""
        key = f"flowpregel-buffer-{uuid4().hex}"
        try:
            futures = await self.client.scatter(
                {key: data},
                workers=[address],
                direct=self._is_direct,
                asynchronous=True,
            )
        except Exception:
            # If this fails too, the scheduler or the client has ended. The first error
            # is the one to report.
            with suppress(Exception):
                await self._forget_buffer(key)
            raise
        return futures[key]

    async def _forget_buffer(self, key: str) -> None:
        """Let Dask delete what it has noted of a buffer that could not be sent.

        If the worker has ended while it got the buffer, the scheduler has a task for
        the buffer that no client wants, and keeps it. It deletes a task when the last
        client that wants it releases it, so this client wants the task for a moment.
        """
        await self.client.scheduler.update_data(
            who_has={key: []},
            nbytes={},
            client=self.client.id,
        )
        distributed.Future(key, self.client).release()

    def run_batch(
        self,
        address: str,
        packed: bytes,
        buffers: Mapping[int, Any],
    ) -> Future[Any]:
        return self._begin(self._deliver(address, packed, buffers))

    async def _deliver(
        self,
        address: str,
        packed: bytes,
        buffers: Mapping[int, Any],
    ) -> None:
        """Send a batch of tasks to a Dask worker, and the large buffers that the worker
        lacks.
        """
        scattered = []
        for handle in buffers.values():
            scattered.append(await _arrival_of(handle))  # noqa: PERF401
        keys = [future.key for future in scattered]
        message = {"method": "run", "args": (packed, list(buffers), keys)}
        for _ in range(_DELIVERIES):
            if await self._ask(address, message) is None:
                return
            # The worker lacks some buffers, so Dask is asked to copy them to it from
            # other workers. Dask may delete such copies before they are used, so there
            # are several attempts.
            await self.client.replicate(
                scattered,
                workers=[address],
            )
        raise ExecutorUnavailableError(f"{address} gets no copy of large values")

    def call(
        self,
        address: str,
        method: str,
        *args: Any,
    ) -> Future[Any]:
        message = {
            "method": method,
            "args": args,
        }
        return self._begin(self._ask(address, message))

    async def _ask(self, address: str, message: dict[str, Any]) -> Any:
        operation = _operation_of(self.name)
        if self._is_direct:
            worker = self.client.rpc(address)
            return await getattr(worker, operation)(**message)
        message["op"] = operation
        answers = await self.client.scheduler.broadcast(
            msg=message,
            workers=[address],
        )
        return answers[address]


def _arrival_of(handle: Future[Any]) -> asyncio.Future[Any]:
    """Return a future of asyncio with the result of a transfer. If it is cancelled, the
    transfer continues.

    Other batches may wait for the same transfer. And if it was cancelled, Dask's
    scheduler would note the arrival of a buffer that no Dask future refers to, and keep
    the buffer until the client is closed.
    """
    arrival = asyncio.wrap_future(handle)
    arrival.add_done_callback(_retrieve_error)
    return asyncio.shield(arrival)


def _retrieve_error(arrival: asyncio.Future[Any]) -> None:
    """Prevent that asyncio logs the error of a transfer for which no delivery waits any
    more.
    """
    if not arrival.cancelled():
        arrival.exception()


def _existing_file(path: str) -> str:
    """Return *path*, that of a scheduler file, if the file exists. Dask would wait for
    a missing file.
    """
    full_path = os.path.abspath(path)
    if not os.path.exists(full_path):
        raise FileNotFoundError(
            f"there is no scheduler file {full_path}: pass the path that "
            "dask scheduler --scheduler-file writes"
        )
    return full_path


def host_of(dask_worker: Any, coordinator: str) -> RemotePoolHost:
    """Return flowpregel's pool in a Dask worker's process, which *coordinator* can use
    from now on.

    Args:
        dask_worker: The worker. Its resources ``MEMORY`` and ``GPU``, if it declares
            these, are the memory and the GPUs of the pool. The memory is never more
            than the worker's memory limit.
        coordinator: The name of the coordinator.
    """
    limits: dict[str, float] = {}
    resources = dask_worker.state.total_resources
    amounts = (dask_worker.memory_manager.memory_limit, resources.get("MEMORY"))
    memory = min(filter(None, amounts), default=0)
    if memory:
        limits["memory"] = memory
    gpus = resources.get("GPU")
    if gpus:
        limits["gpus"] = int(gpus)
    return pool_host(dask_worker.state.nthreads, coordinator, limits)


def on_slot_event(
    event: tuple[float, Any],
) -> None:
    """Report the beginning of a slot to its pool, if the pool is in this program. Dask
    calls this function for the slots of all programs.
    """
    _, message = event
    pool = _POOLS.get(message["coordinator"])
    if pool is not None:
        pool.slot_begun(message["slot"], message["address"])


def occupy_thread(
    slot: int,
    coordinator: str,
) -> None:
    """Occupy one of the worker's OS threads until the coordinator releases the slot.
    Dask counts it as a CPU, and runs this function as a task.
    """
    worker = get_worker()
    host = host_of(worker, coordinator)
    released = host.hold(
        coordinator,
        slot,
    )
    message = {
        "coordinator": coordinator,
        "slot": slot,
        "address": worker.address,
    }
    worker.log_event(_TOPIC, message)
    released.result()


def occupy_no_thread(
    slot: int,
    coordinator: str,
) -> None:
    """Occupy resources of this worker, but no OS thread, until the coordinator releases
    the allocation. Dask runs this function as a task.
    """
    secede()
    occupy_thread(slot, coordinator)


async def open_mailbox(coordinator: str, dask_worker: Any) -> Any:
    """Register a handler for a coordinator's messages in a Dask worker. Return the
    answer to the handshake, and the resources that the worker declares.

    Nothing is registered in Dask's scheduler: workers that join later, perhaps in an
    environment without flowpregel, learn nothing of this coordinator. The pool removes
    the handler when the coordinator has ended.
    """
    host = host_of(dask_worker, coordinator)

    async def on_message(method: str, args: tuple[Any, ...]) -> Any:
        if method == "run":
            packed, numbers, keys = args
            buffers = buffers_of(dask_worker.data, keys)
            if buffers is None:
                return "missing"
            args = (packed, numbers, *buffers)
        current_host = host_of(dask_worker, coordinator)
        future = getattr(current_host, method)(coordinator, *args)
        return serialized(await asyncio.wrap_future(future))

    operation = _operation_of(coordinator)
    handlers = dask_worker.handlers
    handlers[operation] = on_message
    client = host.client(coordinator)
    client.on_close = partial(
        handlers.pop,
        operation,
        None,
    )
    versions = host.handshake(coordinator)
    report = await asyncio.wrap_future(versions)
    return report, dict(dask_worker.state.total_resources)


def serialized(answer: Any) -> Any:
    """Return the answer of a machine in a form in which Dask sends the buffers without
    copying them.
    """
    if not answer:
        return answer
    pickled, *buffers = answer
    parts = [to_serialize(memoryview(buffer)) for buffer in buffers]
    return [pickled, *parts]


def buffers_of(
    data: Mapping[str, Any],
    keys: Sequence[str],
) -> list[Any] | None:
    """Return the buffers that Dask keeps under *keys*, or None if one is missing."""
    buffers = []
    for key in keys:
        if key not in data:
            return None
        buffers.append(data[key])
    return buffers


def _operation_of(coordinator: str) -> str:
    """Return the name under which a Dask worker has the handler for messages of
    *coordinator*.
    """
    return f"flowpregel-{coordinator}"
