"""The processes that are kept for a program while it waits for a CPU of Ray's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from flowpregel.plugins.cluster.slot_processes import MOST_TOUCHED, SlotProcesses


class Engine:
    """A loop whose timers expire when a test says so, and the touches of processes."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] = []
        self.touches: list[tuple[str, Future[Any]]] = []
        self.numbers: list[int] = []
        self.lost: set[str] = set()

    def call_at(self, due: float, action: Callable[[], object]) -> None:
        """Note a timer."""
        self.actions.append(action)

    def touch(self, address: str, number: int) -> list[Future[Any]]:
        """Note touches, and return their futures."""
        self.numbers.append(number)
        futures: list[Future[Any]] = [Future() for _ in range(number)]
        self.touches += [(address, future) for future in futures]
        return futures

    def is_listed(self, address: str) -> bool:
        """Return False for the machines that have left."""
        return address not in self.lost

    def answer(self, *processes: int) -> None:
        """End all touches, in the first of *processes* and so on. The last one has all
        further touches.
        """
        touches = [future for _, future in self.touches if not future.done()]
        for number, future in enumerate(touches):
            future.set_result(processes[min(number, len(processes) - 1)])

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
    processes = SlotProcesses(engine.call_at, engine.touch, engine.is_listed)
    for slot, address in enumerate(("first", "second")):
        processes.request(slot)
        processes.begin(slot, address, 100)
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
        engine.answer(100)

    processes.end(2)

    assert ([], []) == (engine.expire(), engine.actions)


def test_a_process_that_has_a_slot_is_not_touched(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Ray would start another one."""
    processes.request(3)
    processes.begin(3, "first", 100)

    assert ["second"] == engine.expire()


def begin_slots(processes: SlotProcesses, address: str, *ids: int) -> None:
    """Run slots on a machine, one after the other, in the processes with *ids*."""
    for slot, process in enumerate(ids, start=100):
        processes.request(slot)
        processes.begin(slot, address, process)
        processes.end(slot)


def test_all_processes_are_kept_in_which_slots_have_run(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Although one slot began when another one had ended, because its process had to
    start. Four are enough: more would take much memory.
    """
    begin_slots(processes, "first", 100, 101)
    begin_slots(processes, "second", 100, 101, 102, 103, 104, 105)

    assert 2 * ["first"] + 4 * ["second"] == sorted(engine.expire())


def test_a_process_is_kept_while_a_slot_runs_in_another_one(
    processes: SlotProcesses, engine: Engine
) -> None:
    """It is idle. When the slot has ended, there are two."""
    begin_slots(processes, "first", 101)
    processes.request(3)
    processes.begin(3, "first", 100)

    assert ["first", "second"] == sorted(engine.expire())
    engine.answer(101)
    processes.end(3)
    assert ["first", "first"] == [each for each in engine.expire() if each == "first"]


def test_a_process_that_ray_has_ended_is_not_replaced(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Both touches were in the same process. A touch for another one would start a
    process each time.
    """
    begin_slots(processes, "first", 101)
    assert ["first", "first", "second"] == sorted(engine.expire())

    engine.answer(100)

    assert ["first", "second"] == sorted(engine.expire())


def test_a_program_whose_slots_all_run_touches_nothing(
    processes: SlotProcesses, engine: Engine
) -> None:
    """It would only take CPU time and memory of others."""
    processes.begin(2, "first", 100)

    assert [] == engine.expire()


def test_touches_do_not_queue_up(processes: SlotProcesses, engine: Engine) -> None:
    """A machine that is slow to answer gets the next touch when it has answered."""
    engine.expire()
    ((_, first),) = [entry for entry in engine.touches if entry[0] == "first"]
    first.set_result(100)

    assert ["first"] == engine.expire()


def test_a_lost_machine_is_forgotten(processes: SlotProcesses, engine: Engine) -> None:
    """Until a slot begins there again."""
    engine.expire()
    for address, future in engine.touches:
        error = OSError("the machine is lost")
        future.set_exception(error) if address == "first" else future.set_result(100)

    assert ["second"] == engine.expire()
    assert [] == engine.expire()

    processes.request(3)
    processes.begin(3, "first", 100)
    processes.end(3)
    assert ["first"] == engine.expire()


def test_a_machine_that_has_left_the_cluster_is_not_touched(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Although its touches have not failed."""
    engine.lost.add("first")

    assert ["second"] == engine.expire()


def test_the_processes_that_were_used_last_are_kept_on_a_large_cluster(
    processes: SlotProcesses, engine: Engine
) -> None:
    """A touch is a task for Ray, and there may be thousands of machines."""
    addresses = [f"machine {number}" for number in range(1000)]
    for slot, address in enumerate([*addresses, "first", *addresses[:10]], start=10):
        processes.request(slot)
        processes.begin(slot, address, 100)
        processes.end(slot)

    touched = engine.expire()

    assert MOST_TOUCHED == len(touched)
    assert {*addresses[:10], "first", addresses[-1]} <= set(touched)


def run_slots(processes: SlotProcesses, *addresses: str) -> None:
    """Run a slot on each machine, one after the other, in the process with the id
    100.
    """
    for address in addresses:
        begin_slots(processes, address, 100)


def test_touches_that_have_not_been_answered_count_towards_the_maximum(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Although slots have begun on other machines since. Ray's schedulers still have
    these tasks.
    """
    run_slots(processes, *(f"old {number}" for number in range(MOST_TOUCHED)))
    assert MOST_TOUCHED == len(engine.expire())
    run_slots(processes, *(f"new {number}" for number in range(MOST_TOUCHED)))

    assert [] == engine.expire()

    (_, first), *_ = engine.touches
    first.set_result(100)
    run_slots(processes, "new 0", "new 1")
    assert ["new 1"] == engine.expire()


def test_the_number_of_touches_is_never_negative(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Ray would get tasks for a part of the functions, counted from their end."""
    run_slots(processes, *(f"old {number}" for number in range(MOST_TOUCHED)))
    engine.expire()
    run_slots(processes, *(f"new {number}" for number in range(MOST_TOUCHED - 2)))
    engine.expire()

    assert {1} == set(engine.numbers)


def test_processes_that_were_idle_while_no_slot_waited_are_forgotten(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Ray has ended them, so a touch would start a process on each machine."""
    engine.expire()
    engine.answer(100)
    processes.end(2)
    engine.expire()

    processes.request(3)

    assert [] == engine.expire()


def test_a_process_whose_slot_ended_while_no_slot_waited_is_forgotten(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Its slot may have ended long ago."""
    processes.begin(2, "first", 100)
    engine.expire()
    processes.end(2)

    processes.request(3)

    assert [] == engine.expire()


def test_a_process_that_has_a_slot_at_the_next_request_is_kept(
    processes: SlotProcesses, engine: Engine
) -> None:
    """Its slot ended after the request, so it has just become idle."""
    processes.begin(2, "first", 100)
    engine.expire()

    processes.request(3)
    processes.end(2)

    assert ["first"] == engine.expire()


def test_slots_still_wait_if_the_engine_cannot_be_reached(engine: Engine) -> None:
    """The pool itself reports the problem."""

    def fail(address: str, number: int) -> Any:
        raise OSError("Ray is not there")

    processes = SlotProcesses(engine.call_at, fail, engine.is_listed)
    processes.request(1)
    processes.begin(1, "first", 100)
    processes.end(1)
    processes.request(2)

    assert [] == engine.expire()
    assert 1 == len(engine.actions)
