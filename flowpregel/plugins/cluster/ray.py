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
from flowpregel.plugins.cluster import ray_slots
from flowpregel.plugins.cluster.ray_slots import (
    RaySlots,
    occupy_process,
    occupy_resources,
)
from flowpregel.plugins.cluster.slot_processes import MOST_KEPT, SlotProcesses

_CALLS: Final = 1000
"""The maximum number of batches and messages that the actor of a machine handles at the
same time.
"""
_SLOTS: Final = 100_000
"""The maximum number of slots (Ray tasks that each occupy a CPU) of a coordinator at
the same time.
"""
_TOUCH_SECONDS: Final = 0.05
"""Seconds for which a task occupies one of Ray's processes, so that Ray does not end
it. Tasks that run at the same time get different processes.
"""
_IN_RAY: Final = {"gpus": "num_gpus", "memory": "memory"}
"""The names of flowpregel's resources, each with the name of the option of a Ray
task.
"""
_NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_FUNCTION_ID: Final = uuid5(NAMESPACE_URL, "flowpregel-slot")
"""Ray's id for the function that slots execute, which is the same in all programs."""

# A slot occupies a CPU while its process starts, which would take twice the time if the
# process had to import flowpregel. So Ray sends the code of slots by value.
ray.cloudpickle.register_pickle_by_value(ray_slots)


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
        self._processes = SlotProcesses(
            self.loop.call_at,
            partial(touch_processes, touch_functions()),
            lambda address: address in self._resources,
        )

    def machines(self) -> Mapping[str, int] | None:
        machines = {}
        resources = {}
        for node in ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0))
            if node["Alive"] and cpus:
                machines[node["NodeID"]] = cpus
                resources[node["NodeID"]] = node["Resources"]
        self._resources = resources
        for address in list(self._actors):
            # A node that Ray has given up never comes back with the same id.
            if address not in resources:
                self._actors.pop(address, None)
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
        for slot in slots:
            self._processes.request(slot)

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
                # which waiting program comes first. A new function for each slot gives
                # each slot a new id, so that the same program does not always come
                # first.
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
        for slot, address, gpus, process in begun.result():
            self.loop.call(partial(self._processes.begin, slot, address, process))
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
            self._processes.end(slot)
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
        self.loop.call(partial(self._processes.end, slot))
        self.slot_ended(
            slot,
            import_error_in(error),
        )

    def release_slot(
        self,
        slot: int,
        address: str,
    ) -> None:
        self._processes.end(slot)
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
        resources = self._resources.get(address)
        if resources is None:
            # `machines` runs on another OS thread. So the pool may still have a machine
            # that was removed from this list, or have a slot on one that is not in it
            # yet.
            raise ExecutorUnavailableError(f"Ray does not list the machine {address!r}")
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


def touch_functions() -> list[Any]:
    """Return remote functions of Ray for `touch_processes`, one for each process that
    is kept on a machine.

    Ray gives the next call of the same function to the process that has just ended the
    first one. Different functions are given to different processes.
    """
    return [ray.remote(occupy_process) for _ in range(MOST_KEPT)]


def touch_processes(
    functions: Sequence[Any],
    address: str,
    number: int,
) -> list[Future[int]]:
    """Use idle processes on a machine for a moment, so that Ray does not end them.

    Args:
        functions: The functions to run, as `touch_functions` returns them.
        address: The machine's address.
        number: The number of processes.

    Returns:
        The futures of the Ray tasks in these processes. They take no CPU, and return
        the ids of the processes.
    """
    options = {
        "name": "flowpregel-touch",
        "num_cpus": 0,
        "max_retries": 0,
        "enable_task_events": False,
        "scheduling_strategy": _on_node(address),
    }
    # The tasks must run at the same time to be in different processes.
    seconds = _TOUCH_SECONDS if number > 1 else 0.0
    futures = []
    for function in functions[:number]:
        task = function.options(**options)
        futures.append(task.remote(seconds).future())
    return futures


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
