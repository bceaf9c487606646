"""Tasks on a Dask cluster, in our own pool on each of its machines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from distributed import Client, WorkerPlugin, get_worker, secede
from distributed.protocol import to_serialize

from flowpregel.integrations.engine import EngineExecutor, RemotePool
from flowpregel.integrations.machine import machine


class DaskExecutor(EngineExecutor):
    """Runs tasks on the workers of a Dask cluster.

    Dask's own workers hand them to worker processes, so that timeouts, cancellation,
    crashes, streams and nested calls work as on one machine. Close it, or use it in a
    ``with`` block, before the client is closed.

    Args:
        client: Connected; it stays open. One with ``direct_to_workers=False`` has all
            messages go by way of the scheduler, which is slower.
        timeout: Seconds for which tasks wait if the cluster has no worker.

    Example:
        >>> DaskExecutor(Client("tcp://scheduler:8786"))  # doctest: +SKIP
    """

    def __init__(self, client: Client, *, timeout: float = 60.0) -> None:
        super().__init__(DaskPool(client, timeout))


class DaskPool(RemotePool):
    """The workers of a Dask cluster."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._is_direct = client.direct_to_workers is not False
        plugin = WorkerPlugin()
        plugin.setup = take_messages
        client.register_plugin(plugin, name="flowpregel")
        super().__init__("dask", timeout)

    def _machines(self) -> Mapping[str, int] | None:
        if self._client.status != "running":
            return None
        return dict(self._client.nthreads())

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._client.loop.asyncio_loop)

    def _put(self, address: str, data: memoryview) -> Any:
        how: Any = {"hash": False, "direct": self._is_direct, "asynchronous": True}
        return self._begin(
            self._client.scatter(data.cast("B"), workers=[address], **how)
        )

    def _run(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        async def run() -> None:
            there = [await asyncio.wrap_future(each) for each in buffers.values()]
            task = self._client.submit(
                run_batch,
                self._name,
                packed,
                [*buffers],
                *there,
                workers=[address],
                pure=False,
            )
            await task

        return self._begin(run())

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        async def ask() -> Any:
            message = {"method": method, "args": (self._name, *args)}
            if self._is_direct:
                return await self._client.rpc(address).flowpregel(**message)
            message["op"] = "flowpregel"
            answers = await self._client.scheduler.broadcast(
                msg=message, workers=[address]
            )
            return answers[address]

        return self._begin(ask())


def run_batch(home: str, packed: bytes, keys: list[int], *buffers: Any) -> None:
    """Run a batch in the pool of this machine: the task that Dask sees."""
    ended = machine(get_worker().state.nthreads, home).run(home, packed, keys, *buffers)
    # The pool itself knows how many tasks may run at once, and which of them wait for
    # others.
    secede()
    ended.result()


def take_messages(worker: Any) -> None:
    """Let coordinators talk to the pool of a Dask worker."""

    async def on_message(method: str, args: tuple[Any, ...]) -> Any:
        answer = getattr(machine(worker.state.nthreads, args[0]), method)(*args)
        told = await asyncio.wrap_future(answer)
        return told and [
            told[0],
            *(to_serialize(memoryview(each)) for each in told[1:]),
        ]

    worker.handlers["flowpregel"] = on_message


def connect(place: str) -> DaskExecutor:
    """Return an executor on the cluster whose scheduler is at *place*,
    ``HOST:PORT``.
    """
    return DaskExecutor(Client(f"tcp://{place}", set_as_default=False))
