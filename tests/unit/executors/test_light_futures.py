"""Our own futures behave like those of the standard library."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

from flowpregel.executors.calls import LightFuture


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
