"""Tasks on a Dask cluster, in flowpregel's pool on each Dask worker's machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import ModuleType
from typing import Any, Final, Literal

from distributed import Client, get_worker, secede
from distributed.protocol import to_serialize
from distributed.security import Security
from distributed.threadpoolexecutor import thread_state

from flowpregel.executors.cluster import (
    ClusterExecutor,
    RemotePool,
    RemotePoolHost,
    limits_of_cluster,
    pool_host,
)

_PLACEHOLDERS: Final = 10
"""The number of placeholders for a waiting task. By default, Dask expects half a second
of work from each, and starts a thread per 5 s of work.
"""
_MOST_SHOWN: Final = 50
"""The number of waiting tasks that Dask is shown."""


class DaskExecutor(ClusterExecutor):
    """An executor that runs tasks on the workers of a Dask cluster.

    Dask's own workers hand tasks to worker processes, so that timeouts, cancellation,
    crashes, streams and nested calls work as on one machine. Close the executor, or
    use it in a ``with`` block, before the client is closed.

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
        ConfigurationError: An argument makes no sense, or *ship* names a module
            that does not exist.

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
        executor = cls(client, timeout=timeout, ship=ship)
        executor._dask_pool.owns_client = True
        return executor

    def start(self, jobs: Sequence[Any], mailbox: Any) -> None:
        """Start *jobs* as any pool does.

        In the thread of a Dask task, whose flow will wait for *jobs*, first leave
        Dask's thread pool. The jobs may need this very thread.
        """
        if getattr(thread_state, "proceed", False):
            secede()
        super().start(jobs, mailbox)


class DaskPool(RemotePool):
    """The workers of a Dask cluster."""

    def __init__(
        self,
        client: Client,
        timeout: float,
        limits: Mapping[str, float] | None,
        limits_scope: Literal["pool", "store"],
    ) -> None:
        self._client = client
        self._placeholders: list[Any] = []
        """Tasks that no worker has the resource for. They make Dask's scheduler count
        the tasks that wait here, so that an adaptive cluster starts workers.
        """
        self.owns_client = False
        """True if the client is closed with this pool."""
        self._is_direct = client.direct_to_workers is not False
        named_limits = limits_of_cluster(limits, limits_scope)
        super().__init__("dask", timeout, limits=named_limits)

    def machines(self) -> Mapping[str, int] | None:
        if self._client.status != "running":
            return None
        return dict(self._client.nthreads())

    def connect(self, address: str) -> Future[Any]:
        return self._begin(self._open_mailbox(address))

    async def _open_mailbox(self, address: str) -> Any:
        answers = await self._client.run(
            open_mailbox,
            self.name,
            workers=[address],
        )
        return answers[address]

    def show_demand(self, waiting: int) -> None:
        self._begin(self._submit_placeholders(min(waiting, _MOST_SHOWN)))

    async def _submit_placeholders(self, waiting: int) -> None:
        count = waiting * _PLACEHOLDERS
        del self._placeholders[count:]
        missing = range(len(self._placeholders), count)
        if missing:
            self._placeholders += self._client.map(
                abs,
                missing,
                pure=False,
                key="flowpregel-waiting",
                resources={"flowpregel-waiting": 1},
            )

    def can_grow(self) -> bool:
        # The client that has not started the cluster does not know whether it adapts.
        cluster = self._client.cluster
        return cluster is None or getattr(cluster, "_adaptive", None) is not None

    def release_machines(self) -> None:
        self._placeholders.clear()
        if self.owns_client:
            self._client.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        loop = self._client.loop.asyncio_loop
        return asyncio.run_coroutine_threadsafe(work, loop)

    def put_buffer(self, address: str, data: memoryview) -> Any:
        scattering = self._client.scatter(
            data.cast("B"),
            workers=[address],
            hash=False,
            direct=self._is_direct,
            asynchronous=True,
        )
        return self._begin(scattering)

    def run_batch(
        self,
        address: str,
        packed: bytes,
        buffers: Mapping[int, Any],
    ) -> Future[Any]:
        async def run() -> None:
            scattered = []
            for handle in buffers.values():
                scattered.append(await asyncio.wrap_future(handle))  # noqa: PERF401
            task = self._client.submit(
                run_remote_batch,
                self.name,
                packed,
                list(buffers),
                *scattered,
                workers=[address],
                pure=False,
            )
            await task

        return self._begin(run())

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
            worker = self._client.rpc(address)
            return await getattr(worker, operation)(**message)
        message["op"] = operation
        answers = await self._client.scheduler.broadcast(
            msg=message,
            workers=[address],
        )
        return answers[address]


def _existing_file(path: str) -> str:
    """Return *path* of a scheduler file. Dask itself would wait for a missing file."""
    full_path = os.path.abspath(path)
    if not os.path.exists(full_path):
        raise FileNotFoundError(
            f"there is no scheduler file {full_path}: pass the path that "
            "dask scheduler --scheduler-file writes"
        )
    return full_path


def host_of(dask_worker: Any, coordinator: str) -> RemotePoolHost:
    """Return the pool of a Dask worker's process, with a client for *coordinator*.

    Args:
        dask_worker: The worker. Its memory limit and its resource ``GPU``, if it has
            these, are the memory and the GPUs of the pool.
        coordinator: The name of the coordinator.
    """
    limits: dict[str, float] = {}
    memory = dask_worker.memory_manager.memory_limit
    if memory:
        limits["memory"] = memory
    gpus = dask_worker.state.total_resources.get("GPU")
    if gpus:
        limits["gpus"] = int(gpus)
    return pool_host(dask_worker.state.nthreads, coordinator, limits)


def run_remote_batch(
    coordinator: str,
    packed: bytes,
    keys: list[int],
    *buffers: Any,
) -> None:
    """Run a batch in the pool of this machine. Dask runs this function as one task."""
    host = host_of(get_worker(), coordinator)
    end_of_batch = host.run(
        coordinator,
        packed,
        keys,
        *buffers,
    )
    # The task leaves Dask's count of running tasks, because the pool itself limits the
    # tasks that run at once, and tracks which of them wait for others.
    secede()
    end_of_batch.result()


async def open_mailbox(coordinator: str, dask_worker: Any) -> Any:
    """Connect a coordinator with the pool of a Dask worker, and return the answer to
    its handshake.

    Nothing is registered in Dask's scheduler: workers that join later, perhaps in an
    environment without flowpregel, learn nothing of this coordinator. The pool removes
    the handler when the coordinator has ended.
    """
    host = host_of(dask_worker, coordinator)

    async def on_message(method: str, args: tuple[Any, ...]) -> Any:
        current_host = host_of(dask_worker, coordinator)
        future = getattr(current_host, method)(coordinator, *args)
        answer = await asyncio.wrap_future(future)
        if not answer:
            return answer
        pickled, *buffers = answer
        parts = [to_serialize(memoryview(buffer)) for buffer in buffers]
        return [pickled, *parts]

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
    return await asyncio.wrap_future(versions)


def _operation_of(coordinator: str) -> str:
    """Return the name of the handler for the messages of *coordinator*."""
    return f"flowpregel-{coordinator}"
