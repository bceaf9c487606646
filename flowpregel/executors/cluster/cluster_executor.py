"""The executor on the machines of an engine, for runs, and for functions that are not
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Final

from flowpregel._core.effects import Call, SaveState
from flowpregel._core.records import Outcome
from flowpregel.executors.base import Capabilities, ExecutorCheck
from flowpregel.executors.cluster.machine_checks import checks_of_machines
from flowpregel.executors.cluster.remote_pool import RemotePool
from flowpregel.executors.cluster.shipping import module_names
from flowpregel.executors.processes.coordinator.executor import PoolExecutor
from flowpregel.executors.resources import SharedLimits

_ROOM: Final = 2048
"""The number of jobs that a run may pass to the pool at once, for each slot."""


class ClusterExecutor(PoolExecutor):
    """An executor that runs tasks in worker processes on the machines of an engine.

    Args:
        pool: The pool of all these machines.
        ship: The modules and packages (or their names) that the machines lack, so that
            their code is sent with the tasks. A module of the user's own project is
            added automatically when a machine reports that it is missing.

    Raises:
        ConfigurationError: *ship* names a module that does not exist.

    Example:
        >>> from flowpregel.executors.cluster import RemotePool, pool_host
        >>> class ThisMachine(RemotePool):  # an engine would send this over the network
        ...     def machines(self):
        ...         return {"here": 2}
        ...     def put_buffer(self, address, data):
        ...         return bytes(data)
        ...     def run_batch(self, address, packed, buffers):
        ...         host = pool_host(2, self.name)
        ...         return host.run(self.name, packed, list(buffers), *buffers.values())
        ...     def call(self, address, method, *args):
        ...         host = pool_host(2, self.name)
        ...         return getattr(host, method)(self.name, *args)
        ...     def request_slots(self, slots, addresses):
        ...         for slot in slots[:2]:  # an engine would wait for a free CPU
        ...             self.slot_begun(slot, "here")
        ...     def release_slot(self, slot, address):
        ...         pass
        >>> with ClusterExecutor(ThisMachine("this machine", timeout=60.0)) as executor:
        ...     executor.submit(pow, 2, 10).result()
        1024
    """

    capabilities: Capabilities = Capabilities(
        isolates=True,
        times_out=True,
        cancels=True,
        admits=True,
    )

    def __init__(
        self,
        pool: RemotePool,
        *,
        ship: Sequence[str | ModuleType] = (),
    ) -> None:
        self._cluster = pool
        self._encoder = pool.encoder
        self._encoder.ship(*module_names(ship))
        super().__init__(pool, _ROOM * max(1, pool.size))
        self.shared_limits: SharedLimits | None = pool.limits

    def checks(
        self,
        modules: Sequence[str],
        timeout: float,
    ) -> Iterator[ExecutorCheck]:
        """Yield a check of each machine, and further checks for packages and modules
        that differ or are missing there.
        """
        self._start_pool()
        return checks_of_machines(self._cluster, modules, timeout)

    def resolve(
        self,
        call: Call | SaveState,
        outcome: Outcome,
    ) -> None:
        """Send the outcome of a call to the task that made the call."""
        with self._encoder.by_value():
            super().resolve(call, outcome)

    def leave(
        self,
        contexts: Sequence[bytes],
        error: BaseException | None,
    ) -> None:
        """Make the workers exit the context managers of a run's `Context` channels,
        after the run has ended.
        """
        with self._encoder.by_value():
            super().leave(contexts, error)
