"""Code takes a bounded amount of memory, however many functions there were, at both
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flowpregel.executors.processes import ProcessExecutor
from flowpregel.executors.processes.coordinator.code_cache import codes
from flowpregel.executors.processes.coordinator.crash_report import memory_of
from flowpregel.executors.processes.wire.node_code import KEPT_BYTES
from flowpregel.func import entrypoint, task

MB = 1 << 20

pytestmark = pytest.mark.slow


@pytest.fixture
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, which gets all the code."""
    with ProcessExecutor(1) as pool:
        yield pool


def function_of(number: int, size: int = MB) -> Callable[[], int]:
    """Return a function that takes *size* bytes along, and returns its number."""
    table = number.to_bytes(size, "little")
    return lambda: int.from_bytes(table[:8], "little")


def test_six_hundred_functions_of_one_megabyte_are_not_kept(
    pool: ProcessExecutor,
) -> None:
    """Neither here nor in the worker: both keep the last of them alone, by their
    bytes.
    """
    pool.submit(function_of(0, 8)).result()
    (pid,) = pool.worker_pids()
    before = memory_of(pid)

    found = [pool.submit(function_of(number)).result() for number in range(600)]

    assert [*range(600)] == found
    assert codes.size <= KEPT_BYTES
    # The allocator keeps some of what was freed.
    assert memory_of(pid) - before < 3 * KEPT_BYTES


def test_code_that_a_worker_had_to_drop_is_sent_again(pool: ProcessExecutor) -> None:
    """In one batch, and after others."""
    functions = [function_of(number) for number in range(40)]

    for _ in range(2):
        futures = [pool.submit(function) for function in functions]
        assert [*range(40)] == [each.result() for each in futures]
    assert 0 == pool.submit(functions[0]).result()
    assert 39 == pool.submit(functions[39]).result()


def test_many_runs_with_large_closures_take_no_more_memory(
    pool: ProcessExecutor,
) -> None:
    """Each with a function of its own."""

    @entrypoint(executor=pool)
    def flow(number: int) -> int:
        table = number.to_bytes(MB, "little")

        @task
        def work() -> int:
            return int.from_bytes(table[:8], "little")

        return work().result()

    def run(first: int, last: int) -> int:
        """Return the memory of the worker after these runs."""
        assert [*range(first, last)] == [
            flow.invoke(number) for number in range(first, last)
        ]
        return memory_of(pool.worker_pids()[0])

    before = run(0, 100)

    assert run(100, 300) - before < KEPT_BYTES
    assert codes.size <= KEPT_BYTES
