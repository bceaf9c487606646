"""Tasks on a Ray cluster, in our own pool on each of its machines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from pickle import PickleBuffer
from typing import Any, Final, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flowpregel.integrations.engine import EngineExecutor, RemotePool
from flowpregel.integrations.machine import machine

_CALLS: Final = 1000
"""How many batches and messages a machine takes at once."""


class RayExecutor(EngineExecutor):
    """Runs tasks on the machines of a Ray cluster.

    An actor on each machine has a pool of worker processes, one for each of its CPUs,
    and takes these CPUs in Ray's books. So timeouts, cancellation, crashes, streams and
    nested calls work as on one machine. Close it, or use it in a ``with`` block, before
    `ray.shutdown`.

    Args:
        address: Of the cluster, for `ray.init`, which is called if it was not yet.
        timeout: Seconds for which tasks wait if the cluster has no machine.

    Example:
        >>> RayExecutor("ray://head:10001")  # doctest: +SKIP
    """

    def __init__(self, address: str | None = None, *, timeout: float = 60.0) -> None:
        if not ray.is_initialized():
            ray.init(address, log_to_driver=False)
        super().__init__(RayPool("ray", timeout))


class RayPool(RemotePool):
    """An actor on each machine of a Ray cluster."""

    def __init__(self, kind: str, timeout: float) -> None:
        self._actors: dict[str, Any] = {}
        super().__init__(kind, timeout)

    def _machines(self) -> Mapping[str, int] | None:
        nodes = [each for each in ray.nodes() if each["Alive"]]
        cpus = {each["NodeID"]: int(each["Resources"].get("CPU", 0)) for each in nodes}
        return {node: count for node, count in cpus.items() if count}

    def _put(self, address: str, data: memoryview) -> Any:
        return ray.put(PickleBuffer(data))

    def _run(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        return self.call(address, "run", packed, [*buffers], *buffers.values())

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        if address not in self._actors:
            cpus = self.sites[address].size
            options = ray.remote(RayMachine).options(
                num_cpus=cpus,
                max_concurrency=_CALLS,
                max_restarts=-1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(address, soft=False),
            )
            is_far = ray.util.client.ray.is_connected()
            self._actors[address] = options.remote(cpus, self._name, is_far)
        return cast(
            Future[Any], self._actors[address].call.remote(method, *args).future()
        )

    def release(self) -> None:
        """End the actors."""
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()


class RayMachine:
    """The actor: the pool of one machine.

    Args:
        size: How many tasks run there at once.
        home: The name of its coordinator.
        is_far: Whether that is a client of Ray's server, which passes on bytes alone.
    """

    def __init__(self, size: int, home: str, is_far: bool) -> None:
        self._size = size
        self._home = home
        self._is_far = is_far

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the machine."""
        answer = getattr(machine(self._size, self._home), method)(self._home, *args)
        told = await asyncio.wrap_future(answer)
        return [bytes(each) for each in told] if told and self._is_far else told


def connect(place: str) -> RayExecutor:
    """Return an executor on the cluster with its server for clients at *place*, or on
    our own.
    """
    return RayExecutor(place if place == "auto" else f"ray://{place}")
