"""What `doctor` finds on the machines of a cluster."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from flowpregel.executors.base import ExecutorCheck
from flowpregel.executors.cluster import ClusterExecutor, RemotePool
from flowpregel.executors.cluster.handshake import own_versions
from tests.slot_books import SlotBooks

VERSIONS = {**own_versions(), "host": "node7"}


class InspectedPool(SlotBooks, RemotePool):
    """Machines that answer what the test says, or raise it, or do not answer.

    Args:
        contents: The answer of each machine to the request for its contents.
        versions: The answer of each machine to the handshake.
    """

    def __init__(self, contents: Any = None, versions: Any = VERSIONS) -> None:
        self.contents = contents
        self.versions = versions
        self.said: list[tuple[str, Any]] = []
        super().__init__("test", 60.0)

    def machines(self) -> Mapping[str, int]:
        return {} if self.versions is None else {"first": 2}

    def put_buffer(self, address: str, data: memoryview) -> Any:
        raise NotImplementedError

    def run_batch(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        raise NotImplementedError

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        self.said.append((method, args))
        answer = Future[Any]()
        result = {"handshake": self.versions, "inspect": self.contents}.get(method)
        if isinstance(result, Exception):
            answer.set_exception(result)
        elif result is not None:
            answer.set_result([pickle.dumps(result)])
        elif method == "poll":
            self.finish_poll(answer, args[0])
        return answer

    def finish_poll(self, answer: Future[Any], commands: Any) -> None:
        """Answer the last poll."""
        if ("end", 0, 0) in commands:
            answer.set_result([pickle.dumps(("node7", 1, 0, [], []))])


def contents(
    packages: Mapping[str, str] | None = None, *modules: str, late: float = 0.0
) -> Any:
    """Return the answer of a machine about what it has."""
    return dict(packages or {}), list(modules), time.time() + late


def checks_with(
    pool: InspectedPool, *modules: str, timeout: float = 60.0
) -> dict[str, ExecutorCheck]:
    """Return the checks of the machines of a pool, by name."""
    with ClusterExecutor(pool) as executor:
        return {check.name: check for check in executor.checks(modules, timeout)}


def test_a_machine_is_named_with_what_it_has() -> None:
    amounts = {"memory": 1 << 30, "gpus": 1}
    pool = InspectedPool(contents(), {**VERSIONS, "amounts": amounts})

    (check,) = checks_with(pool).values()

    assert check.ok
    assert check.finding.startswith("node7, 2 CPUs, 1")
    assert "1 GPUs, Python 3." in check.finding


def test_a_machine_with_another_python_makes_a_run_fail() -> None:
    """It is not asked for anything else."""
    pool = InspectedPool(versions={**VERSIONS, "Python": "3.8"})

    check = checks_with(pool)["machine first"]

    assert not check.ok
    assert "node7: it has Python 3.8" in check.finding
    assert "inspect" not in [method for method, _ in pool.said]


def test_other_versions_of_packages_are_reported() -> None:
    """A run need not fail."""
    pool = InspectedPool(contents({"cloudpickle": "0.1"}))

    check = checks_with(pool)["machine first: packages"]

    assert check.ok
    assert check.finding.startswith("cloudpickle 0.1 (here ")


@pytest.mark.parametrize(
    ("module", "ok", "text"),
    [
        ("json", True, "can be found"),
        ("tests", True, "sent by value"),
        ("pytest", False, "install it on all machines"),
    ],
)
def test_a_module_that_a_machine_lacks_is_named(
    module: str, ok: bool, text: str
) -> None:
    """A module of the user's own is sent by value, and an installed one is not."""
    pool = InspectedPool(contents({}, "json"))

    check = checks_with(pool, module)[f"machine first: module {module}"]

    assert ok is check.ok
    assert text in check.finding


def test_a_clock_that_differs_is_reported() -> None:
    check = checks_with(InspectedPool(contents(late=3600.0)))["machine first"]

    assert check.ok
    assert "its clock differs by +3600 s" in check.finding


def test_a_machine_without_flowpregel_is_named() -> None:
    error = ModuleNotFoundError("No module named 'flowpregel'")

    check = checks_with(InspectedPool(versions=error), timeout=60)["machine first"]

    assert not check.ok
    assert "install the flowpregel of this program there" in check.finding


def test_a_machine_that_does_not_answer_is_named() -> None:
    check = checks_with(InspectedPool(), timeout=0.05)["machine first"]

    assert not check.ok
    assert "does not answer within 0.05 s" in check.finding


def test_a_cluster_without_machines_makes_a_run_fail() -> None:
    check = checks_with(InspectedPool(versions=None))["machines"]

    assert not check.ok
    assert "start workers of test" in check.finding


def test_a_machine_that_was_checked_gets_a_farewell() -> None:
    """So that its pool ends at once."""
    pool = InspectedPool(contents())
    checks_with(pool)

    ends = [args for method, args in pool.said if method == "poll"]
    assert ("end", 0, 0) in ends[-1][0]
