"""The slots that a coordinator requests, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel.executors.cluster import slots
from flowpregel.executors.cluster.engine_watch import CHECK_EVERY
from flowpregel.executors.cluster.remote_hosts import RemoteBatch, RemoteHosts
from flowpregel.executors.cluster.slots import SlotLedger
from tests.slot_books import SharedBooks


class Engine:
    """An engine that notes the requests."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.addresses: Sequence[str] = ()
        self.released: list[int] = []

    def request_slots(self, numbers: Sequence[int], addresses: Sequence[str]) -> None:
        """Note the requests."""
        self.requested += numbers
        self.addresses = addresses

    def release_slot(self, slot: int, address: str) -> None:
        """Note the release."""
        self.released.append(slot)


class Loop:
    """A loop whose timers never expire."""

    def call_at(self, due: float, callback: Callable[[], object]) -> Any:
        """Return a timer."""
        return SimpleNamespace(cancel=lambda: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the ledger, which tests set."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(slots, "time", clock)
    return clock


@pytest.fixture
def engine() -> Engine:
    """The engine of the ledger."""
    return Engine()


@pytest.fixture
def ledger(clock: SimpleNamespace, engine: Engine) -> SlotLedger:
    """A ledger without machines."""
    return SlotLedger(engine, RemoteHosts(), Loop(), lambda: ())  # type: ignore[arg-type]


class Coordinator:
    """A coordinator with more short tasks than there are slots.

    It is the engine of its own ledger, and the loop, whose timers it calls.

    Args:
        books: The books of all coordinators.
    """

    def __init__(self, books: SharedBooks) -> None:
        self._books = books
        self._hosts = RemoteHosts()
        self._timers: list[tuple[float, SimpleNamespace]] = []
        self.ledger = SlotLedger(self, self._hosts, self, lambda: ())  # type: ignore[arg-type]
        self.results: list[float] = []
        """The time of each result."""

    def request_slots(self, numbers: Sequence[int], addresses: Sequence[str]) -> None:
        """Pass the requests on."""
        self._books.request(self, numbers)

    def release_slot(self, slot: int, address: str) -> None:
        """Pass the release on."""
        self._books.release(self, slot)

    def call_at(self, due: float, callback: Callable[[], object]) -> Any:
        """Return a timer."""
        timer = SimpleNamespace(callback=callback)
        timer.cancel = lambda: setattr(timer, "callback", lambda: None)
        self._timers.append((due, timer))
        return timer

    @property
    def slot_count(self) -> int:
        """The number of slots that have begun."""
        return sum(host.slots.count for host in self._hosts.values())

    def begin_task(self, cpus: int) -> None:
        """Begin a task on the only machine."""
        (host,) = self._hosts.values()
        host.batches[1] = RemoteBatch(1, host, [])
        host.batches[1].slot_count = cpus
        self.ledger.update(0)

    def run_for_a_moment(self, now: float) -> None:
        """End the tasks of all slots, and begin others."""
        due = [entry for entry in self._timers if entry[0] <= now]
        self._timers = [entry for entry in self._timers if entry[0] > now]
        for _, timer in due:
            timer.callback()
        for host in self._hosts.values():
            self.results += [now] * len(host.batches)
            host.batches.clear()
            for number in range(host.size):
                host.batches[number] = RemoteBatch(number, host, [])
        self.ledger.update(200)


def test_ten_programs_share_two_slots(clock: SimpleNamespace) -> None:
    """Each has a result within ten turns, and none has twice as many as another."""
    books = SharedBooks(2)
    coordinators = [Coordinator(books) for _ in range(10)]
    start = clock.now
    for _ in range(600):
        for coordinator in coordinators:
            coordinator.run_for_a_moment(clock.now)
        for coordinator, slot in books.begun():
            coordinator.ledger.begin(slot, "machine")
        clock.now += 0.05

    first = max(coordinator.results[0] for coordinator in coordinators) - start
    assert first <= 10 * slots.TURN_SECONDS
    counts = [len(coordinator.results) for coordinator in coordinators]
    assert max(counts) <= 2 * min(counts)
    assert sum(counts) > 0.9 * 2 * 600


def test_a_slot_on_a_machine_that_gets_no_tasks_is_requested_again(
    clock: SimpleNamespace, engine: Engine
) -> None:
    """So are those that may wait for that machine: the tasks need others."""
    hosts = RemoteHosts()
    ledger = SlotLedger(engine, hosts, Loop(), lambda: ())  # type: ignore[arg-type]
    hosts.note_machines({"other": 1})
    ledger.update(3)
    first, *rest = engine.requested
    engine.requested.clear()
    hosts["other"].refusal = "it has Python 3.8"

    ledger.begin(first, "other")
    ledger.update(3)
    again = list(engine.requested)
    engine.requested.clear()
    ledger.refuse(hosts["other"])
    ledger.update(3)

    assert (0, 1, 3) == (hosts["other"].slots.count, len(again), len(engine.requested))
    assert [("release", 0, 0, first)] == hosts["other"].commands
    assert not {first, *rest, *again}.intersection(engine.requested)


def fail_all(ledger: SlotLedger, engine: Engine) -> None:
    """Let all slots fail that were requested."""
    for slot in engine.requested:
        ledger.end(slot, OSError("the machine is lost"))
    engine.requested.clear()


def test_slots_that_fail_together_count_once(
    ledger: SlotLedger, engine: Engine, clock: SimpleNamespace
) -> None:
    """A lost machine takes many with it, and others are requested a moment later."""
    ledger.update(20)
    assert 20 == len(engine.requested)

    fail_all(ledger, engine)
    ledger.update(20)
    assert ("", []) == (ledger.problem(), engine.requested)

    clock.now += CHECK_EVERY
    ledger.update(20)
    assert 20 == len(engine.requested)


def test_slots_that_fail_again_and_again_are_a_problem(
    ledger: SlotLedger, engine: Engine, clock: SimpleNamespace
) -> None:
    """Until no task waits: those that come later have another try."""
    for _ in range(5):
        assert "" == ledger.problem()
        ledger.update(2)
        fail_all(ledger, engine)
        clock.now += CHECK_EVERY
    assert "no slot could begin: OSError: the machine is lost" == ledger.problem()

    ledger.update(0)

    assert "" == ledger.problem()


def test_a_task_of_several_cpus_has_a_slot_for_each(
    clock: SimpleNamespace, engine: Engine
) -> None:
    """It begins with one, and the others are requested on its machine."""
    hosts = RemoteHosts()
    ledger = SlotLedger(engine, hosts, Loop(), lambda: ())  # type: ignore[arg-type]
    ledger.update(1)
    ledger.begin(engine.requested.pop(), "machine")
    host = hosts["machine"]
    host.batches[1] = RemoteBatch(1, host, [])
    host.batches[1].slot_count = 3

    ledger.update(0)
    ledger.update(0)

    assert (2, ["machine"]) == (len(engine.requested), engine.addresses)
    for slot in engine.requested:
        ledger.begin(slot, "machine")
    ledger.update(0)
    assert (3, 3) == (host.slots.count, host.needed_slots)
    assert 2 == len(engine.requested)
    host.batches.clear()
    assert 0 == host.needed_slots


def test_two_programs_with_tasks_of_all_cpus_do_not_wait_for_each_other(
    clock: SimpleNamespace,
) -> None:
    """Each has one of two slots. The rest of one's slots begin when the other ends."""
    books = SharedBooks(2)
    first, second = Coordinator(books), Coordinator(books)
    for coordinator in (first, second):
        coordinator.ledger.update(1)
    for coordinator, slot in books.begun():
        coordinator.ledger.begin(slot, "machine")
        coordinator.begin_task(cpus=2)
    assert [1, 1] == [first.slot_count, second.slot_count]
    assert [] == books.begun()

    first.ledger.close()

    ((coordinator, slot),) = books.begun()
    coordinator.ledger.begin(slot, "machine")
    assert [0, 2] == [first.slot_count, second.slot_count]


def test_requests_for_further_cpus_end_with_their_task(
    clock: SimpleNamespace, engine: Engine
) -> None:
    """The slot would begin for nothing."""
    hosts = RemoteHosts()
    ledger = SlotLedger(engine, hosts, Loop(), lambda: ())  # type: ignore[arg-type]
    ledger.update(1)
    ledger.begin(engine.requested.pop(), "machine")
    host = hosts["machine"]
    host.batches[1] = RemoteBatch(1, host, [])
    host.batches[1].slot_count = 2
    ledger.update(0)
    host.batches.clear()

    ledger.update(0)

    assert engine.requested == engine.released
