"""The checks of a cluster's machines for ``flowpregel doctor``.

Each machine gets the handshake, as in a run, and a request for its packages, modules
and time. No slot is taken. When the executor is closed, the machines forget this
coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, NamedTuple

from flowpregel._pickling.sent_modules import is_local
from flowpregel._text import size_text
from flowpregel.executors.base import ExecutorCheck
from flowpregel.executors.cluster.engine_watch import AwakeClock
from flowpregel.executors.cluster.handshake import Greeting, read_report
from flowpregel.executors.cluster.machine_calls import MachineCalls
from flowpregel.executors.cluster.package_versions import (
    Contents,
    imported_packages,
    package_differences,
    read_contents,
)
from flowpregel.executors.cluster.remote_pool import RemotePool
from flowpregel.executors.cluster.shipping import MODULE_ADVICE

_CLOCK_DIFFERENCE: Final = 2.0
"""The smallest difference between the clocks of two machines, in seconds, that is
reported.
"""


class InspectedMachine(NamedTuple):
    """The answers of one machine, from which its checks are made."""

    greeting: Greeting
    contents: Contents | None
    """The packages and modules of the machine, or None if it gets no tasks."""
    clock: float
    """The seconds by which the machine's clock is ahead of the clock of this
    machine.
    """


class MachineInspection:
    """The requests to one machine. All methods are called on the pool's I/O thread.

    Args:
        pool: The pool of the machine.
        address: The machine's address.
        packages: The names of the packages whose versions are requested.
        modules: The names of top-level modules that may be missing.
    """

    def __init__(
        self,
        pool: RemotePool,
        address: str,
        packages: Sequence[str],
        modules: Sequence[str],
    ) -> None:
        self.address = address
        self.answer: Future[InspectedMachine] = Future()
        self._pool = pool
        self._calls = MachineCalls(pool, pool.loop, AwakeClock())
        self._request = (list(packages), list(modules))
        self._asked_at = 0.0

    def begin(self) -> None:
        """Request the handshake of the machine."""
        host = self._pool.hosts.get(self.address)
        if host is not None:
            # Because of `is_used`, the machine gets a message when the pool closes, so
            # that it forgets this coordinator.
            host.is_used = True
        self._calls.ask(self._on_greeted, self._pool.connect, self.address)

    def _on_greeted(self, handshake: Future[Any]) -> None:
        try:
            greeting = read_report(handshake.result()[0])
        except BaseException as error:  # noqa: BLE001 - it is reported
            self.answer.set_exception(error)
            return
        if greeting.refusal:
            self.answer.set_result(InspectedMachine(greeting, None, 0.0))
            return
        self._asked_at = time.time()
        self._calls.ask(
            partial(self._on_contents, greeting),
            self._pool.call,
            self.address,
            "inspect",
            *self._request,
        )

    def _on_contents(self, greeting: Greeting, answer: Future[Any]) -> None:
        try:
            contents = read_contents(answer.result()[0])
        except BaseException as error:  # noqa: BLE001 - it is reported
            self.answer.set_exception(error)
            return
        # The machine has read its clock at some time between the request and the
        # answer. So the difference of the clocks lies between two bounds.
        earliest = contents.time - time.time()
        latest = contents.time - self._asked_at
        clock = earliest if earliest > 0 else min(latest, 0.0)
        self.answer.set_result(InspectedMachine(greeting, contents, clock))


def checks_of_machines(
    pool: RemotePool,
    modules: Sequence[str],
    timeout: float,
) -> Iterator[ExecutorCheck]:
    """Yield a check of each machine of a pool, and further checks for packages and
    modules that differ or are missing there.

    Args:
        pool: The pool, which has been started.
        modules: The names of the top-level modules that the tasks need.
        timeout: Seconds to wait for the answers of all machines.
    """
    machines = pool.machines()
    if not machines:
        yield _check_no_machine(pool, machines is None)
        return
    packages = imported_packages()
    inspections: list[MachineInspection] = []
    for address in machines:
        inspection = MachineInspection(pool, address, list(packages), modules)
        inspections.append(inspection)
        pool.loop.call(inspection.begin)
    wait([inspection.answer for inspection in inspections], timeout)
    for inspection in inspections:
        name = f"machine {inspection.address}"
        if not inspection.answer.done():
            text = (
                f"does not answer within {timeout:g} s: look whether it is up, and "
                "whether this machine may connect to it; --timeout waits longer"
            )
            yield ExecutorCheck(name, False, text)
            continue
        error = inspection.answer.exception()
        if error is not None:
            yield _check_failed(name, error)
            continue
        machine = inspection.answer.result()
        yield _check_machine(name, machine, machines[inspection.address])
        if machine.contents is not None:
            yield from _checks_of_contents(name, machine.contents, packages, modules)


def _check_no_machine(pool: RemotePool, is_lost: bool) -> ExecutorCheck:
    if is_lost:
        return ExecutorCheck("machines", False, f"{pool.kind} does not answer")
    if pool.can_grow():
        text = "none yet: the engine may start some when there are tasks"
        return ExecutorCheck("machines", True, text)
    text = f"none: start workers of {pool.kind}, with flowpregel installed"
    return ExecutorCheck("machines", False, text)


def _check_failed(name: str, error: BaseException) -> ExecutorCheck:
    """Return the check of a machine that has answered with an error."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError | AttributeError):
        text += "; install the flowpregel of this program there"
    return ExecutorCheck(name, False, text)


def _check_machine(name: str, machine: InspectedMachine, cpus: int) -> ExecutorCheck:
    """Return the check of a machine that has answered."""
    greeting = machine.greeting
    if greeting.refusal:
        return ExecutorCheck(name, False, f"{greeting.host}: {greeting.refusal}")
    parts = [greeting.host, f"{cpus} CPUs"]
    memory = greeting.amounts.get("memory")
    gpus = greeting.amounts.get("gpus")
    if memory:
        parts.append(f"{size_text(int(memory))} of memory")
    if gpus:
        parts.append(f"{gpus:g} GPUs")
    parts.append(greeting.versions)
    if abs(machine.clock) >= _CLOCK_DIFFERENCE:
        parts.append(
            f"its clock differs by {machine.clock:+.0f} s, so the times of calls will "
            "be wrong: set both clocks by NTP"
        )
    return ExecutorCheck(name, True, ", ".join(parts))


def _checks_of_contents(
    name: str,
    contents: Contents,
    packages: Mapping[str, str],
    modules: Sequence[str],
) -> Iterator[ExecutorCheck]:
    """Yield the checks of packages and modules that differ or are missing."""
    differences = package_differences(packages, contents.packages)
    if differences:
        text = f"{', '.join(differences)}: install the same if tasks use them"
        yield ExecutorCheck(f"{name}: packages", True, text)
    for module in modules:
        is_usable = True
        if module in contents.modules:
            text = "can be found there"
        elif is_local(module):
            text = (
                "is missing there: its Python code is sent by value, but no data files "
                "and no C code"
            )
        else:
            is_usable = False
            text = f"is missing there: {MODULE_ADVICE}"
        yield ExecutorCheck(f"{name}: module {module}", is_usable, text)
