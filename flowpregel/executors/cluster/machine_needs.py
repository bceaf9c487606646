"""The comparison of the needs of tasks with the resources that machines have."""

from __future__ import annotations

from collections.abc import Mapping

from flowpregel.executors.cluster.host_slots import AllocationSize
from flowpregel.executors.cluster.remote_hosts import RemoteHost, RemoteHosts
from flowpregel.executors.processes.coordinator.assign import ROUNDING, Needs
from flowpregel.executors.processes.coordinator.resources import OF_THE_MACHINE


def amounts_on(needs: Needs, totals: Mapping[str, float]) -> dict[str, float]:
    """Return the amounts of CPUs, memory and GPUs that a task with *needs* takes on a
    machine.

    Args:
        needs: The resources that the task needs.
        totals: The amounts that the machine has. They are the limit for an estimate of
            the memory, and for the CPUs of a task that must run alone.
    """
    amounts: dict[str, float] = {}
    for name in OF_THE_MACHINE:
        amount = needs.amounts.get(name, 0.0)
        is_estimate = name == "memory" and needs.is_measured
        if is_estimate or needs.is_exclusive:
            amount = min(amount, totals.get(name, amount))
        if amount:
            amounts[name] = amount
    return amounts


def shortage(
    needs: Needs,
    totals: Mapping[str, float],
    available: Mapping[str, float],
) -> dict[str, float]:
    """Return how much of each resource a task with *needs* lacks on a machine, by the
    name of the resource.

    Args:
        needs: The resources that the task needs.
        totals: The amounts that the machine has.
        available: The amounts that are available.
    """
    lacking: dict[str, float] = {}
    for name, amount in amounts_on(needs, totals).items():
        missing = amount - available.get(name, 0.0)
        if missing > ROUNDING:
            lacking[name] = missing
    return lacking


def hosts_for(
    hosts: RemoteHosts,
    needs: Needs,
) -> list[RemoteHost]:
    """Return the machines that could run a task with *needs* if they ran nothing
    else.
    """
    suitable: list[RemoteHost] = []
    for host in hosts.values():
        totals = host.totals
        if not (host.refusal or shortage(needs, totals, totals)):
            suitable.append(host)
    return suitable


def allocation_size(
    hosts: RemoteHosts,
    needs: Needs | None,
) -> AllocationSize | None:
    """Return the size of the allocation that the engine must reserve for a task with
    *needs*, or None if the engine tracks none of the task's resources.

    If the memory is only an estimate, it is not in the allocation. Only the coordinator
    takes the estimate into account.

    Args:
        hosts: The machines of the cluster.
        needs: The resources that the task needs.
    """
    amounts = needs.amounts if needs else {}
    gpus = int(amounts.get("gpus", 0))
    memory = 0
    if needs and not needs.is_measured:
        memory = int(amounts.get("memory", 0))
    if not needs or not (gpus or memory):
        return None
    suitable = hosts_for(hosts, needs)
    booked = set(hosts.booked)
    if suitable:
        booked = set(OF_THE_MACHINE)
    for host in suitable:
        booked &= set(host.report.booked)
    size = AllocationSize(
        gpus if "gpus" in booked else 0,
        memory if "memory" in booked else 0,
    )
    return size if any(size) else None
