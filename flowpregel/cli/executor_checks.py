"""The checks of an executor: its connection, its machines, and the sending of values to
its tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from flowpregel.cli.executor_trips import round_trip
from flowpregel.cli.thread_calls import call_on_thread
from flowpregel.executors.base import Executor, ExecutorCheck
from flowpregel.executors.by_name import NAMES, check_executor, executor_named

_LARGE: Final = 10_000_000
"""The size, in bytes, of the value that is sent and returned."""


def checks_of_executor(
    name: str,
    modules: Sequence[str],
    timeout: float,
) -> Iterator[ExecutorCheck]:
    """Yield the checks of an executor, which is closed at the end.

    Args:
        name: The name or URL of the executor.
        modules: The names of the top-level modules that tasks need.
        timeout: Seconds to wait for each answer.

    Raises:
        ConfigurationError: No executor has this name.
    """
    check_executor(name)
    if name in NAMES:
        yield from _checks_of_trips(name, timeout)
        return
    began = time.perf_counter()
    try:
        connection = call_on_thread(lambda: executor_named(name))
        executor = connection.future.result(timeout)
    except TimeoutError:
        text = (
            f"no answer within {timeout:g} s: look whether the address is right, the "
            "cluster is up, and this machine may connect to it; --timeout waits longer"
        )
        yield ExecutorCheck("connection", False, text)
        return
    except Exception as error:  # noqa: BLE001 - an engine may raise any
        yield ExecutorCheck("connection", False, str(error))
        return
    seconds = time.perf_counter() - began
    yield ExecutorCheck("connection", True, f"{name} in {seconds:.1f} s")
    try:
        yield from executor.checks(modules, timeout)
        yield from _checks_of_trips(executor, timeout)
    finally:
        executor.close()


def _checks_of_trips(
    executor: Executor | str,
    timeout: float,
) -> Iterator[ExecutorCheck]:
    """Yield the checks that send a value to a task, which returns it."""
    yield _check_trip("first task", b"", executor, timeout)
    yield _check_trip("next task", b"", executor, timeout)
    yield _check_trip("10 MB", bytes(_LARGE), executor, timeout)


def _check_trip(
    name: str,
    value: bytes,
    executor: Executor | str,
    timeout: float,
) -> ExecutorCheck:
    flow = round_trip.copy({"executor": executor})
    began = time.perf_counter()
    try:
        trip = call_on_thread(lambda: flow.invoke(value))
        result = trip.future.result(timeout)
    except TimeoutError:
        text = (
            f"no result within {timeout:g} s: others may use all CPUs of the cluster, "
            "or it is starting machines; --timeout waits longer"
        )
        return ExecutorCheck(name, False, text)
    except Exception as error:  # noqa: BLE001 - an engine may raise any
        return ExecutorCheck(name, False, f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    if result != value:
        return ExecutorCheck(name, False, "another value came back")
    return ExecutorCheck(name, True, f"there and back in {1000 * seconds:,.0f} ms")
