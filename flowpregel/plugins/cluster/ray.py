"""The executor on a Ray cluster. Tasks run in flowpregel's own pool of worker processes
on each machine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pickle import PickleBuffer
from types import ModuleType
from typing import Any, Final, Literal
from uuid import NAMESPACE_URL, uuid5

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.cluster import (
    ClusterExecutor,
    RemotePool,
    limits_of_cluster,
    pool_host,
)

_CALLS: Final = 1000
"""The maximum number of batches and messages that the actor of a machine handles at the
same time.
"""
_SLOTS: Final = 100_000
"""The maximum number of slots (Ray tasks that each occupy a CPU) of a coordinator at
the same time.
"""
_FORGET_AFTER: Final = 600.0
"""Seconds after which `RaySlots` forgets a released slot that has not begun."""
_IN_RAY: Final = {"gpus": "num_gpus", "memory": "memory"}
"""The names of flowpregel's resources, each with the name of the option of a Ray
task.
"""
_NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_FUNCTION_ID: Final = uuid5(NAMESPACE_URL, "flowpregel-slot")
"""Ray's id for the function that slots execute, which is the same in all programs."""


class RayExecutor(ClusterExecutor):
    """An executor that runs tasks on the machines of a Ray cluster.

    An actor on each machine has a pool of worker processes, so that timeouts,
    cancellation, crashes, streams and nested calls work as on one machine. For each
    running task, its CPUs, GPUs and memory are reserved in Ray. Close the executor, or
    use it in a ``with`` block, before `ray.shutdown`.

    Args:
        address: The address of the cluster for `ray.init`, which is called if Ray is
            not initialized yet.
        timeout: Seconds for which tasks wait if the cluster has no machine, or none
            with the resources that they need.
        limits: The number of calls of tasks with ``limit="name"`` that may run at once
            on all machines together, by name.
        limits_scope: The calls that share the named limits: ``"pool"`` for those of
            this executor, or ``"store"`` for those of all programs whose runs are in
            the same store, LMDB or SQLite.
        ship: The modules and packages, or their names, whose code is sent by value,
            because the machines lack them.

    Raises:
        ConfigurationError: An argument makes no sense, or *ship* names a module
            that does not exist.

    Example:
        >>> RayExecutor("ray://head:10001")  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = 60.0,
        limits: Mapping[str, float] | None = None,
        limits_scope: Literal["pool", "store"] = "pool",
        ship: Sequence[str | ModuleType] = (),
    ) -> None:
        if not ray.is_initialized():
            ray.init(address, log_to_driver=False)
        super().__init__(RayPool(timeout, limits, limits_scope), ship=ship)

    @classmethod
    def connect(cls, location: str) -> RayExecutor:
        """Return an executor on a cluster.

        Args:
            location: ``HOST:PORT`` of the cluster's server for clients, or ``auto``
                for the cluster of this machine.
        """
        if location == "auto":
            return cls(location)
        return cls(f"ray://{location}")


class RayPool(RemotePool):
    """The pool of an executor on a Ray cluster: it has an actor on each machine."""

    def __init__(
        self,
        timeout: float,
        limits: Mapping[str, float] | None,
        limits_scope: Literal["pool", "store"],
    ) -> None:
        self._actors: dict[str, Any] = {}
        self._resources: dict[str, Mapping[str, float]] = {}
        """The resources of each machine, as Ray lists them, by the address."""
        self._slots_in_ray: dict[int, Any] = {}
        """The reference to the result of each slot (a Ray task), by the number of the
        slot.
        """
        self._slot_function = slot_function()
        self._slot_keeper: Any = None
        """The actor that tracks which slots have begun, or None before the first
        request.
        """
        named_limits = limits_of_cluster(limits, limits_scope)
        super().__init__("ray", timeout, limits=named_limits)

    def machines(self) -> Mapping[str, int] | None:
        machines = {}
        for node in ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0))
            if node["Alive"] and cpus:
                machines[node["NodeID"]] = cpus
                self._resources[node["NodeID"]] = node["Resources"]
        return machines

    def can_grow(self) -> bool:
        # Every cluster is assumed to be able to grow, because Ray does not report
        # whether a cluster has an autoscaler.
        return True

    def request_slots(
        self,
        slots: Sequence[int],
        addresses: Sequence[str],
    ) -> None:
        self._request(
            slots,
            addresses,
            {"num_cpus": 1},
        )

    def booked_resources(self, address: str = "") -> Collection[str]:
        return _IN_RAY.keys()

    def request_allocations(
        self,
        slots: Sequence[int],
        amounts: Mapping[str, int],
        addresses: Sequence[str],
    ) -> None:
        options: dict[str, Any] = {"num_cpus": 0}
        for name, amount in amounts.items():
            options[_IN_RAY[name]] = amount
        self._request(
            slots,
            addresses,
            options,
        )

    def _request(
        self,
        slots: Sequence[int],
        addresses: Sequence[str],
        resources: Mapping[str, Any],
    ) -> None:
        """Submit Ray tasks that take *resources*, each of which is a slot or an
        allocation.
        """
        if self._slot_keeper is None:
            keeper = ray.remote(RaySlots).options(
                num_cpus=0,
                max_concurrency=_SLOTS,
            )
            self._slot_keeper = keeper.remote()
            self._wait_for_slots()
        is_client = ray.util.client.ray.is_connected()
        for slot in slots:
            function = self._slot_function
            if is_client:
                # In a Ray client, each remote function has a random id, which decides
                # which waiting program comes first. With a new function for each slot,
                # it is not always the same program.
                function = ray.remote(occupy_resources)
            options = dict(resources)
            if addresses:
                address = addresses[slot % len(addresses)]
                options["scheduling_strategy"] = _on_node(address)
            task = function.options(
                name="flowpregel-slot",
                max_retries=0,
                **options,
            )
            result = task.remote(
                self._slot_keeper,
                slot,
            )
            self._slots_in_ray[slot] = result
            result.future().add_done_callback(partial(self._on_slot_done, slot))

    def _wait_for_slots(self) -> None:
        """Arrange that `_on_slots_begun` is called when some slots have begun."""
        begun = self._slot_keeper.begun.remote()
        begun.future().add_done_callback(self._on_slots_begun)

    def _on_slots_begun(
        self,
        begun: Future[Any],
    ) -> None:
        if begun.cancelled() or begun.exception() is not None:
            self.loop.call(self._lose_slots)
            return
        for slot, address, gpus in begun.result():
            self.slot_begun(
                slot,
                address,
                gpus,
            )
        self._wait_for_slots()

    def _lose_slots(self) -> None:
        """Withdraw all slots, because the actor that tracks them is lost. Slots that
        are still needed are requested again, with a new actor.
        """
        self._slot_keeper = None
        error = ExecutorUnavailableError("the actor that knows the slots is lost")
        for slot, result in list(self._slots_in_ray.items()):
            ray.cancel(result)
            self.slot_ended(
                slot,
                error,
            )
        self._slots_in_ray.clear()

    def _on_slot_done(
        self,
        slot: int,
        result: Future[Any],
    ) -> None:
        self._slots_in_ray.pop(
            slot,
            None,
        )
        error = None if result.cancelled() else result.exception()
        if error is None:
            return
        self.slot_ended(
            slot,
            import_error_in(error),
        )

    def release_slot(
        self,
        slot: int,
        address: str,
    ) -> None:
        if address:
            self._slots_in_ray.pop(
                slot,
                None,
            )
            if self._slot_keeper is not None:
                self._slot_keeper.release.remote(slot)
            return
        result = self._slots_in_ray.get(slot)
        if result is not None:
            # The slot may just have begun. Its end is then reported as that of any
            # other slot.
            ray.cancel(result)

    def put_buffer(self, address: str, data: memoryview) -> Any:
        return ray.put(PickleBuffer(data))

    def run_batch(
        self,
        address: str,
        packed: bytes,
        buffers: Mapping[int, Any],
    ) -> Future[Any]:
        return self.call(
            address,
            "run",
            packed,
            list(buffers),
            *buffers.values(),
        )

    def call(
        self,
        address: str,
        method: str,
        *args: Any,
    ) -> Future[Any]:
        actor = self._actors.get(address)
        if actor is None:
            actor = self._start_actor(address)
            self._actors[address] = actor
        answer: Future[Any] = Future()
        reference = actor.call.remote(method, *args)
        reference.future().add_done_callback(partial(settle_answer, answer))
        return answer

    def _start_actor(self, address: str) -> Any:
        resources = self._resources[address]
        gpus = int(resources.get("GPU", 0))
        limits = {"memory": resources["memory"]}
        if gpus:
            limits["gpus"] = gpus
        options = ray.remote(RayMachine).options(
            num_cpus=0,
            max_concurrency=_CALLS,
            max_restarts=-1,
            scheduling_strategy=_on_node(address),
        )
        is_client = ray.util.client.ray.is_connected()
        return options.remote(
            int(resources["CPU"]),
            self.name,
            is_client,
            limits,
        )

    def release_machines(self) -> None:
        """Kill the actors. The slots end when their actor has ended."""
        actors = list(self._actors.values())
        if self._slot_keeper is not None:
            actors.append(self._slot_keeper)
        for actor in actors:
            ray.kill(actor)
        self._actors.clear()


def settle_answer(answer: Future[Any], result: Future[Any]) -> None:
    """Give *answer* the result or the error of *result*, a done future of Ray."""
    if not answer.set_running_or_notify_cancel():
        return
    error = CancelledError() if result.cancelled() else result.exception()
    if error is None:
        answer.set_result(result.result())
    else:
        answer.set_exception(import_error_in(error))


def import_error_in(error: BaseException) -> BaseException:
    """Return the `ModuleNotFoundError` in *error*, if this is Ray's report, of many
    lines, that a machine lacks a module. Otherwise return *error* itself.
    """
    if isinstance(error, ray.exceptions.RayError):
        match = _NO_MODULE.search(str(error))
        if match is not None:
            return ModuleNotFoundError(match[0], name=match[1])
    return error


def _on_node(address: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(address, soft=False)


class RaySlots:
    """The actor that tracks which slots of a coordinator have begun, and lets them end.

    It needs no CPU, so it may be on any machine.
    """

    def __init__(self) -> None:
        self._begun: list[tuple[int, str, Sequence[str]]] = []
        self._has_begun = asyncio.Event()
        self._ends: dict[int, asyncio.Event] = {}

    async def hold(
        self,
        slot: int,
        address: str,
        gpus: Sequence[str],
    ) -> None:
        """Record that *slot* has begun, and return when the coordinator releases it."""
        end = self._ends.setdefault(slot, asyncio.Event())
        self._begun.append((slot, address, gpus))
        self._has_begun.set()
        await end.wait()
        self._ends.pop(slot, None)

    async def release(
        self,
        slot: int,
    ) -> None:
        """Let *slot* end. If it has not begun, it ends when it begins."""
        self._ends.setdefault(slot, asyncio.Event()).set()
        # Most slots that are released before they begin were cancelled, and never
        # begin. So the slot is forgotten after some time.
        loop = asyncio.get_running_loop()
        loop.call_later(_FORGET_AFTER, self._ends.pop, slot, None)

    async def begun(self) -> list[tuple[int, str, Sequence[str]]]:
        """Return the slots that have begun since the last call, with the addresses of
        their machines and the names of their GPUs, as soon as there are some.
        """
        await self._has_begun.wait()
        self._has_begun.clear()
        begun = self._begun
        self._begun = []
        return begun


def occupy_resources(
    keeper: Any,
    slot: int,
) -> None:
    """Occupy the CPU, or the GPUs and memory, that Ray has given this Ray task, until
    the coordinator releases the slot or allocation.
    """
    context = ray.get_runtime_context()
    address = context.get_node_id()
    gpus = context.get_accelerator_ids()["GPU"]
    # `ray.get` is not used, because it would lend the CPU to other Ray tasks while it
    # waits.
    keeper.hold.remote(slot, address, gpus).future().result()


def slot_function() -> Any:
    """Return `occupy_resources` as a remote function of Ray that has the same id in all
    programs.

    Ray serves requests to run one function in the order of their arrival, but requests
    to run different functions in any order. With the random ids that Ray chooses, one
    of ten programs might wait very long.
    """
    function: Any = ray.remote(occupy_resources)
    function._uuid = _FUNCTION_ID  # noqa: SLF001 - Ray has no option for it
    return function


class RayMachine:
    """The actor that contains flowpregel's pool on one machine.

    Args:
        size: The number of CPUs of the machine.
        coordinator: The name of the coordinator.
        is_client: True if the coordinator is connected by a Ray client, through a
            server that forwards only `bytes`.
        limits: The memory and the GPUs that tasks may take.
    """

    def __init__(
        self,
        size: int,
        coordinator: str,
        is_client: bool,
        limits: Mapping[str, float],
    ) -> None:
        self._size = size
        self._coordinator = coordinator
        self._is_client = is_client
        self._limits = limits

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the machine's pool for the coordinator, and return the
        answer.
        """
        host = pool_host(self._size, self._coordinator, self._limits)
        future = getattr(host, method)(self._coordinator, *args)
        answer = await asyncio.wrap_future(future)
        if answer and self._is_client:
            return [bytes(part) for part in answer]
        return answer
