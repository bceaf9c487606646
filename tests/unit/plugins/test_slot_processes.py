"""The processes that are kept for a program while it waits for a CPU of Ray's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from flowpregel.plugins.cluster.slot_processes import SlotProcesses


class Engine:
    """A loop whose timers expire when a test says so, and the touches of processes."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] = []
        self.touches: list[tuple[str, Future[Any]]] = []

    def call_at(self, due: float, action: Callable[[], object]) -> None:
        """Note a timer."""
        self.actions.append(action)

    def touch(self, address: str, number: int) -> list[Future[Any]]:
        """Note touches, and return their futures."""
        futures: list[Future[Any]] = [Future() for _ in range(number)]
        self.touches += [(address, future) for future in futures]
        return futures

    def expire(self) -> list[str]:
        """Let the timers expire, and return the machines that were touched."""
        actions = self.actions
        self.actions = []
        number = len(self.touches)
        for action in actions:
            action()
        return [address for address, _ in self.touches[number:]]


@pytest.fixture
def engine() -> Engine:
    """The engine of the processes."""
    return Engine()


@pytest.fixture
def processes(engine: Engine) -> SlotProcesses:
    """The processes of a program whose slots have run on two machines. A further slot
    waits.
    """
    processes = SlotProcesses(engine.call_at, engine.touch)
    for slot, address in enumerate(("first", "second")):
        processes.request(slot)
        processes.begin(slot, address)
        processes.end(slot)
    processes.request(2)
    return processes


def test_processes_are_touched_while_a_slot_waits(
    processes: SlotProcesses, engine: Engine
) -> None:
    """On each machine that has had a slot, again and again, by one timer."""
    for _ in range(3):
        assert ["first", "second"] == sorted(engine.expire())
        assert 1 == len(engine.actions)
        for _, future in engine.touches:
            if not future.done():
                future.set_result(None)

    processes.end(2)

    assert ([], []) == (engine.expire(), engine.actions)


def test_a_process_that_has_a_slot_is_not_touched(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Ray would start another one."""
    processes.request(3)
    processes.begin(3, "first")

    assert ["second"] == engine.expire()


def test_as_many_processes_are_kept_as_there_were_slots_at_once(
    processes: SlotProcesses, engine: Engine
) -> None:
    """The next slots may begin at the same time, too. Four are enough: more would take
    much memory.
    """
    for slot in range(10, 20):
        processes.request(slot)
    for slot in (10, 11):
        processes.begin(slot, "first")
    for slot in (12, 13, 14, 15, 16):
        processes.begin(slot, "second")
    for slot in (10, 12, 13, 14, 15, 16):
        processes.end(slot)

    assert ["first"] + 4 * ["second"] == sorted(engine.expire())


def test_a_program_whose_slots_all_run_touches_nothing(
    processes: SlotProcesses, engine: Engine
) -> None:
    """It would only take CPU time and memory of others."""
    processes.begin(2, "first")

    assert [] == engine.expire()


def test_touches_do_not_queue_up(processes: SlotProcesses, engine: Engine) -> None:
    """A machine that is slow to answer gets the next touch when it has answered."""
    engine.expire()
    ((_, first),) = [entry for entry in engine.touches if entry[0] == "first"]
    first.set_result(None)

    assert ["first"] == engine.expire()


def test_a_lost_machine_is_forgotten(processes: SlotProcesses, engine: Engine) -> None:
    """Until a slot begins there again."""
    engine.expire()
    for address, future in engine.touches:
        error = OSError("the machine is lost")
        future.set_exception(error) if address == "first" else future.set_result(None)

    assert ["second"] == engine.expire()
    assert [] == engine.expire()

    processes.request(3)
    processes.begin(3, "first")
    processes.end(3)
    assert ["first"] == engine.expire()


def test_slots_still_wait_if_the_engine_cannot_be_reached(engine: Engine) -> None:
    """The pool itself reports the problem."""

    def fail(address: str, number: int) -> Any:
        raise OSError("Ray is not there")

    processes = SlotProcesses(engine.call_at, fail)
    processes.request(1)
    processes.begin(1, "first")
    processes.end(1)
    processes.request(2)

    assert [] == engine.expire()
    assert 1 == len(engine.actions)
