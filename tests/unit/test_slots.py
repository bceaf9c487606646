"""The slots that a coordinator requests, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel.executors.cluster import slots
from flowpregel.executors.cluster.engine_watch import CHECK_EVERY
from flowpregel.executors.cluster.remote_hosts import RemoteHosts
from flowpregel.executors.cluster.slots import SlotLedger


class Engine:
    """An engine that notes the requests."""

    def __init__(self) -> None:
        self.requested: list[int] = []

    def request_slots(self, numbers: Sequence[int], addresses: Sequence[str]) -> None:
        """Note the requests."""
        self.requested += numbers

    def release_slot(self, slot: int, address: str) -> None:
        """Do nothing."""


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
