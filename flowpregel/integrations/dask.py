"""Tasks on a Dask cluster, in our own pool on each of its machines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from distributed import Client, WorkerPlugin, get_worker, secede

from flowpregel.errors import ExecutorUnavailableError
from flowpregel.integrations.engine import EngineExecutor
from flowpregel.integrations.machine import machine


class DaskExecutor(EngineExecutor):
    """Runs tasks on the workers of a Dask cluster.

    Dask's own workers hand them to worker processes, so that timeouts, cancellation, crashes,
    streams and nested calls work as on one machine. Close it, or use it in a ``with`` block,
    before the client is closed.

    Args:
        client: Connected; it stays open.
        timeout: Seconds for which tasks wait if the cluster has no worker.

    Example:
        >>> DaskExecutor(Client("tcp://scheduler:8786"))  # doctest: +SKIP
    """

    def __init__(self, client: Client, *, timeout: float = 60.0) -> None:
        self._client = client
        plugin = WorkerPlugin()
        plugin.setup = take_messages
        client.register_plugin(plugin, name="flowpregel")
        super().__init__("dask", timeout)

    def _machines(self) -> Mapping[str, int] | None:
        if self._client.status != "running":
            return None
        return dict(self._client.nthreads())

    def _put(self, address: str, data: memoryview) -> Any:
        return self._client.scatter(data.cast("B"), workers=[address], hash=False, direct=True)

    def _run(self, address: str, packed: bytes, buffers: Mapping[int, Any]) -> Future[Any]:
        task = self._client.submit(
            run_batch, self._name, packed, [*buffers], *buffers.values(),
            workers=[address], pure=False,
        )  # fmt: skip
        ended: Future[Any] = Future()
        task.add_done_callback(partial(_settle, ended))
        return ended

    def _call(self, address: str, method: str, *args: Any) -> Future[Any]:
        message = {"op": "flowpregel", "method": method, "args": (self._name, *args)}

        async def ask() -> Any:
            answers = await self._client.scheduler.broadcast(msg=message, workers=[address])
            return answers[address]

        return asyncio.run_coroutine_threadsafe(ask(), self._client.loop.asyncio_loop)


def _settle(ended: Future[Any], task: Any) -> None:
    if task.status == "finished":
        ended.set_result(None)
    else:
        ended.set_exception(ExecutorUnavailableError(f"Dask has {task.status} {task.key!r}"))


def run_batch(home: str, packed: bytes, keys: list[int], *buffers: Any) -> None:
    """Run a batch in the pool of this machine: the task that Dask sees."""
    pool = machine(get_worker().state.nthreads, home)
    ended = pool.run(home, packed, dict(zip(keys, buffers, strict=True)))
    # The pool itself knows how many tasks may run at once, and which of them wait for others.
    secede()
    ended.result()


def take_messages(worker: Any) -> None:
    """Let coordinators talk to the pool of a Dask worker."""

    async def on_message(method: str, args: tuple[Any, ...]) -> Any:
        answer = getattr(machine(worker.state.nthreads, args[0]), method)(*args)
        return None if answer is None else await asyncio.wrap_future(answer)

    worker.handlers["flowpregel"] = on_message


def connect(place: str) -> DaskExecutor:
    """Return an executor on the cluster whose scheduler is at *place*, ``HOST:PORT``."""
    return DaskExecutor(Client(f"tcp://{place}", set_as_default=False))
