"""The waiting tasks that no machine of a cluster can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from flowpregel.executors.cluster.machine_needs import hosts_for
from flowpregel.executors.cluster.remote_hosts import RemoteHosts
from flowpregel.executors.processes.coordinator.assign import (
    InFlight,
    Needs,
    TaskQueue,
)


class UnfitTasks:
    """The waiting tasks that no machine could run, even if it ran nothing else.

    Args:
        hosts: The machines of the cluster.
        timeout: Seconds for which such tasks wait while there may be another machine.
    """

    def __init__(
        self,
        hosts: RemoteHosts,
        timeout: float,
    ) -> None:
        self._hosts = hosts
        self._timeout = timeout
        self._since: dict[Needs | None, float] = {}
        """The time at which it was found that no machine can meet some needs, by the
        needs.
        """

    def overdue(
        self,
        queue: TaskQueue,
        now: float,
        can_grow: bool,
    ) -> Iterator[InFlight]:
        """Yield those tasks of *queue* that no machine can run and that have waited
        long enough.

        Args:
            queue: The tasks that wait.
            now: The present time on the clock of the `EngineWatch`.
            can_grow: True if the engine may get further machines.
        """
        before = self._since
        self._since = {}
        for needs in self._needs_among(queue.counts):
            self._since[needs] = before.get(needs, now)
        for host in self._hosts.values():
            can_grow = can_grow or not host.is_known
        patience = self._timeout if can_grow else 0.0
        for task in tuple(queue):
            since = self._since.get(task.needs, inf)
            if since + patience <= now:
                yield task

    def _needs_among(self, waiting: Iterable[Needs | None]) -> Iterator[Needs]:
        """Yield those needs of waiting tasks (*waiting*) that no machine can meet."""
        # If all machines are refused, the pool ends all tasks with an error that has
        # the reasons.
        if all(host.refusal for host in self._hosts.values()):
            return
        for needs in waiting:
            if needs is not None and not hosts_for(self._hosts, needs):
                yield needs


def largest_amounts(hosts: RemoteHosts) -> dict[str, tuple[float, str]]:
    """Return the largest amount of each resource that a machine has, and the name of
    this machine.

    Args:
        hosts: The machines. Those that cannot get tasks are left out.
    """
    largest: dict[str, tuple[float, str]] = {}
    for host in hosts.values():
        if host.refusal:
            continue
        for name, amount in host.totals.items():
            candidate = (amount, host.label)
            largest[name] = max(candidate, largest.get(name, candidate))
    return largest
