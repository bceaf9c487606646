"""Our own futures behave like those of the standard library."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from flowpregel.executors.light import BELLS, LightFuture


@pytest.fixture
def futures() -> list[LightFuture[Any]]:
    """Three."""
    return [LightFuture() for _ in range(3)]


def test_who_waits_for_one_gets_that_one(futures: list[LightFuture[Any]]) -> None:
    """Whatever the others do meanwhile."""
    seen: list[Any] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        seen.append(futures[2].result(30))

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    for number, future in enumerate(futures):
        future.succeed(number)
    thread.join()

    assert [2] == seen


def test_the_standard_librarys_waits_know_them(futures: list[LightFuture[Any]]) -> None:
    """`wait` and `as_completed` take the lock of each."""
    futures[1].succeed("first")
    done, waiting = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED)
    assert ({futures[1]}, {futures[0], futures[2]}) == (done, waiting)

    found = concurrent.futures.as_completed(futures)
    assert futures[1] is next(found)
    thread = threading.Thread(target=futures[0].succeed, args=("second",))
    thread.start()

    assert "second" == next(found).result()
    thread.join()


def test_a_result_that_is_not_there_in_time_is_a_timeout(
    futures: list[LightFuture[Any]],
) -> None:
    """And so is an exception."""
    with pytest.raises(TimeoutError):
        futures[0].result(0.001)
    with pytest.raises(TimeoutError):
        futures[0].exception(0.001)


def test_an_error_is_raised_and_returned(futures: list[LightFuture[Any]]) -> None:
    """As often as somebody asks."""
    futures[0].set_exception(ValueError("no"))

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            futures[0].result()
    assert "no" == str(futures[0].exception())


def test_one_that_was_cancelled_takes_no_result(futures: list[LightFuture[Any]]) -> None:
    """Nor does one that has a result."""
    assert futures[0].cancel()
    futures[1].succeed(1)

    for future in futures[:2]:
        with pytest.raises(concurrent.futures.InvalidStateError):
            future.succeed(2)
    with pytest.raises(concurrent.futures.CancelledError):
        futures[0].result()


def test_callbacks_are_called_once_it_has_succeeded(futures: list[LightFuture[Any]]) -> None:
    """With the future."""
    seen: list[Any] = []
    futures[0].add_done_callback(lambda future: seen.append(future.result()))

    futures[0].succeed("done")

    assert ["done"] == seen


@pytest.fixture
def hasty() -> Iterator[None]:
    """OS threads take turns at every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
def test_who_begins_to_wait_as_it_ends_is_woken() -> None:
    """A future gets its lock from whoever asks first: the one that ends it, or one that waits."""
    futures: list[LightFuture[int]] = [LightFuture() for _ in range(500)]
    called: list[int] = []
    results: list[list[int]] = [[], []]
    barrier = threading.Barrier(4)

    def end() -> None:
        barrier.wait()
        for number, future in enumerate(futures):
            future.succeed(number)

    def wait(into: list[int]) -> None:
        barrier.wait()
        into += [future.result(30) for future in futures]

    def be_told() -> None:
        barrier.wait()
        for future in futures:
            future.add_done_callback(lambda done: called.append(done.result()))

    at_once(end, be_told, partial(wait, results[0]), partial(wait, results[1]))

    assert [[*range(500)]] * 2 == results
    assert [*range(500)] == sorted(called)


def test_nobody_begins_to_wait_while_one_ends_that_has_no_bell() -> None:
    """He would not be woken: who ends it has seen that nobody waits."""
    asked: list[bool] = []

    class Watched(LightFuture[int]):
        def _finish(self, value: int) -> None:
            at_once(lambda: asked.append(BELLS.acquire(blocking=False)))
            super()._finish(value)

    Watched().succeed(1)

    assert [False] == asked


@pytest.mark.usefixtures("hasty")
def test_one_is_cancelled_or_has_a_result_never_both() -> None:
    """However close together the two come."""
    futures: list[LightFuture[str]] = [LightFuture() for _ in range(500)]
    refused: list[LightFuture[str]] = []
    cancelled: list[LightFuture[str]] = []
    barrier = threading.Barrier(2)

    def end() -> None:
        barrier.wait()
        for future in futures:
            try:
                future.succeed("done")
            except concurrent.futures.InvalidStateError:
                refused.append(future)

    def cancel() -> None:
        barrier.wait()
        cancelled.extend(future for future in reversed(futures) if future.cancel())

    at_once(end, cancel)

    assert set(cancelled) == set(refused)
    assert {True} == {future.cancelled() or "done" == future.result() for future in futures}


def at_once(*functions: Callable[[], None]) -> None:
    """Run each in an OS thread of its own, to its end."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
