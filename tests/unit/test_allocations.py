"""The GPUs and the memory that a coordinator requests, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel.executors.cluster import allocations, slots
from flowpregel.executors.cluster.allocations import (
    IDLE_SECONDS,
    TURN_SECONDS,
    AllocationDemand,
    SizeTurns,
    assign_allocation,
)
from flowpregel.executors.cluster.host_slots import AllocationSize
from flowpregel.executors.cluster.remote_hosts import (
    RemoteBatch,
    RemoteHost,
    RemoteHosts,
)
from flowpregel.executors.cluster.slots import SlotLedger

TWO_GPUS = AllocationSize(gpus=2)
MEMORY = AllocationSize(memory=8)


class Engine:
    """An engine that notes the requests, and a loop, whose timers a test calls."""

    def __init__(self) -> None:
        self.slots: list[tuple[int, Sequence[str]]] = []
        self.allocations: list[tuple[int, Mapping[str, int]]] = []
        self.released: list[int] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def request_slots(self, numbers: Sequence[int], addresses: Sequence[str]) -> None:
        """Note the requests."""
        self.slots += [(number, addresses) for number in numbers]

    def request_allocations(
        self,
        numbers: Sequence[int],
        amounts: Mapping[str, int],
        addresses: Sequence[str],
    ) -> None:
        """Note the requests."""
        self.allocations += [(number, amounts) for number in numbers]

    def release_slot(self, slot: int, address: str) -> None:
        """Note the release."""
        self.released.append(slot)

    def call_at(self, due: float, callback: Callable[[], object]) -> Any:
        """Return a timer."""
        self.timers.append((due, callback))
        return SimpleNamespace(cancel=lambda: None)

    def call_timers(self, now: float) -> None:
        """Call the timers that are due."""
        due = [entry for entry in self.timers if entry[0] <= now]
        self.timers = [entry for entry in self.timers if entry[0] > now]
        for _, callback in due:
            callback()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the ledgers, which tests set."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(slots, "time", clock)
    monkeypatch.setattr(allocations, "time", clock)
    return clock


class Books:
    """A ledger with one machine, which has four CPUs, and its engine."""

    def __init__(self) -> None:
        self.engine = Engine()
        hosts = RemoteHosts()
        hosts.note_machines({"machine": 4})
        self.host: RemoteHost = hosts["machine"]
        any_engine: Any = self.engine
        self.ledger = SlotLedger(any_engine, hosts, any_engine, lambda: ())

    def wait(self, size: AllocationSize = TWO_GPUS, tasks: int = 1) -> None:
        """Let tasks wait for allocations of a size."""
        self.ledger.update(0, {size: AllocationDemand(tasks)})

    def begin_allocation(self, *gpus: str) -> int:
        """Let the oldest request begin, and return its number."""
        number, _ = self.engine.allocations.pop(0)
        self.ledger.begin(number, "machine", gpus)
        return number

    def run_task(self, size: AllocationSize = TWO_GPUS) -> RemoteBatch:
        """Begin a task on the machine."""
        batch = RemoteBatch(1, self.host, [])
        self.host.batches[1] = batch
        assign_allocation(batch, size)
        return batch


@pytest.fixture
def books(clock: SimpleNamespace) -> Books:
    """A ledger with one machine."""
    return Books()


def test_all_gpus_of_a_task_are_one_request(books: Books) -> None:
    """Two programs that had one of two GPUs each would wait for each other."""
    books.wait(TWO_GPUS, tasks=3)
    books.wait(MEMORY)

    amounts = [amount for _, amount in books.engine.allocations]
    assert [{"gpus": 2}] * 3 + [{"memory": 8}] == amounts
    withdrawn = [number for number, amount in books.engine.allocations[:3]]
    assert withdrawn == sorted(books.engine.released)


def test_a_cpu_is_requested_when_the_gpus_are_there(books: Books) -> None:
    """On the same machine, and not before: nobody keeps a CPU that waits for a GPU."""
    books.wait()
    assert [] == books.engine.slots

    books.begin_allocation("a", "b")
    books.wait()
    books.wait()

    ((number, addresses),) = books.engine.slots
    assert ["machine"] == addresses
    books.ledger.begin(number, "machine")
    assert books.run_task().gpus == ("a", "b")
    books.ledger.update(0)
    assert (0, 1) == (books.host.lacking_slots, books.host.needed_slots)


def test_no_cpu_is_requested_for_an_allocation_that_no_task_needs(
    books: Books,
) -> None:
    """Its task was cancelled, for instance."""
    books.wait()
    books.begin_allocation("a", "b")

    books.ledger.update(0)

    assert [] == books.engine.slots


def test_an_allocation_without_a_task_is_released(
    books: Books, clock: SimpleNamespace
) -> None:
    """The machine stops the idle workers, which have memory on the GPUs."""
    books.wait()
    number = books.begin_allocation("b", "a")
    books.ledger.update(0)
    clock.now += IDLE_SECONDS

    books.engine.call_timers(clock.now)
    books.engine.call_timers(clock.now)

    assert [number] == books.engine.released
    commands = [("release", 0, 0, number), ("vacate", 0, 0, ["a", "b"])]
    assert commands == books.host.commands
    assert {} == books.host.slots.allocations


def test_an_allocation_that_gets_a_task_is_idle_anew_after_it(
    books: Books, clock: SimpleNamespace
) -> None:
    """The timer of its first idle time finds it in use."""
    books.wait()
    number = books.begin_allocation("a", "b")
    books.ledger.update(0)
    books.run_task()
    books.ledger.update(0)
    clock.now += IDLE_SECONDS
    books.engine.call_timers(clock.now)
    books.host.batches.clear()
    books.ledger.update(0)
    books.engine.call_timers(clock.now)
    assert [] == books.engine.released

    clock.now += IDLE_SECONDS
    books.engine.call_timers(clock.now)

    assert [number] == books.engine.released


def test_the_turn_of_an_allocation_ends_with_its_task(
    books: Books, clock: SimpleNamespace
) -> None:
    """While others wait. Requests are repeated, so that those of others come first."""
    books.wait(tasks=2)
    number = books.begin_allocation("a", "b")
    ((older, _),) = books.engine.allocations
    books.engine.allocations.clear()
    books.run_task()
    clock.now += TURN_SECONDS
    books.wait()
    assert [] == books.engine.released
    assert None is books.host.free_allocation(TWO_GPUS)

    books.host.batches.clear()
    books.wait()

    assert [older, number] == books.engine.released
    assert [{"gpus": 2}] == [amounts for _, amounts in books.engine.allocations]
    clock.now += IDLE_SECONDS
    books.begin_allocation("b", "c")
    books.engine.call_timers(clock.now)
    assert ("vacate", 0, 0, ["a"]) == books.host.commands[-1]


def test_the_turn_of_an_allocation_begins_with_its_first_task(
    books: Books, clock: SimpleNamespace
) -> None:
    """It may have to wait for a CPU, and lasts while no task waits."""
    books.wait()
    books.begin_allocation("a", "b")
    clock.now += TURN_SECONDS
    books.wait()
    assert books.host.free_allocation(TWO_GPUS)
    books.run_task()
    clock.now += TURN_SECONDS
    books.ledger.update(0)
    books.host.batches.clear()

    assert books.host.free_allocation(TWO_GPUS)


def test_no_cpu_is_kept_for_a_caller_while_a_call_waits_for_gpus(
    books: Books, clock: SimpleNamespace
) -> None:
    """A program that has the GPUs may wait for this CPU."""
    books.ledger.update(1)
    ((number, _),) = books.engine.slots
    books.ledger.begin(number, "machine")
    caller = RemoteBatch(1, books.host, [])
    caller.slot_count = 0
    books.host.batches[1] = caller
    books.ledger.update(0)
    clock.now += IDLE_SECONDS
    books.engine.call_timers(clock.now)
    assert [] == books.engine.released

    books.wait()
    clock.now += IDLE_SECONDS
    books.engine.call_timers(clock.now)

    assert [number] == books.engine.released


def test_allocations_that_fail_again_and_again_are_a_problem(
    books: Books, clock: SimpleNamespace
) -> None:
    """As slots that fail, they are requested again after a while."""
    for _ in range(5):
        assert "" == books.ledger.problem()
        books.wait()
        ((number, _),) = books.engine.allocations
        books.engine.allocations.clear()
        books.ledger.end(number, OSError("the machine is lost"))
        books.wait()
        assert [] == books.engine.allocations
        clock.now += slots.CHECK_EVERY

    assert "no slot could begin: OSError: the machine is lost" == books.ledger.problem()


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_machine_that_goes_has_no_allocations(books: Books, is_refused: bool) -> None:
    """Neither has one that cannot run tasks, for which some requests may wait."""
    books.wait(tasks=2)
    number = books.begin_allocation("a", "b")
    ((waiting, _),) = books.engine.allocations

    if is_refused:
        books.ledger.refuse(books.host)
    else:
        books.ledger.release_all(books.host)

    released = {number, waiting} if is_refused else {number}
    assert released == set(books.engine.released)
    assert {} == books.host.slots.allocations


def test_a_closed_ledger_holds_nothing(books: Books) -> None:
    """Whether or not it has begun."""
    books.wait(tasks=2)
    books.begin_allocation("a", "b")

    books.ledger.close()

    assert [1, 2] == sorted(books.engine.released)


def test_sizes_that_compete_have_turns() -> None:
    """A small request would always come before a large one, one at a time."""
    small, other = AllocationSize(gpus=1), AllocationSize(memory=8)
    demands = {
        small: AllocationDemand(9),
        TWO_GPUS: AllocationDemand(9),
        other: AllocationDemand(9),
    }
    turns = SizeTurns()
    chosen = []
    for _ in range(4):
        now = turns.choose(demands)
        (size,) = now.keys() - {other}
        assert {size: 1, other: 9} == {key: demand.tasks for key, demand in now.items()}
        turns.note_batch(size)
        chosen.append(size)

    assert [small, TWO_GPUS] * 2 == chosen
    alone = {small: demands[small]}
    assert alone == turns.choose(alone)
