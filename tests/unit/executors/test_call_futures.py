"""The future of a call: all that `concurrent.futures` promises of one."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import CancelledError, InvalidStateError
from concurrent.futures import TimeoutError as TimeoutOfFutures
from types import ModuleType
from typing import Any

import pytest

from flowpregel._core.records import Raised, add_failed_calls
from flowpregel.executors.calls import (
    CallFuture,
    OpenCalls,
    observed_failures,
    on_event_loop,
)


@pytest.fixture
def future() -> CallFuture[Any]:
    """Return a future that is not done."""
    return CallFuture()


def waiters_of(future: CallFuture[Any], count: int, ask: str = "result") -> Any:
    """Start OS threads that wait for *future*; return them and what they get."""
    got: list[Any] = []
    started = threading.Barrier(count + 1)

    def wait() -> None:
        started.wait()
        try:
            got.append(getattr(future, ask)(30))
        except BaseException as error:  # noqa: BLE001 - it is looked at
            got.append(type(error))

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    started.wait()
    return threads, got


@pytest.mark.parametrize(
    ("end", "ask", "expected"),
    [
        (lambda future: future.set_result(7), "result", 7),
        (lambda future: future.set_exception(OSError()), "result", OSError),
        (lambda future: future.set_result(7), "exception", None),
        (lambda future: future.cancel(), "result", CancelledError),
    ],
    ids=["result", "error", "no error", "cancelled"],
)
def test_everybody_who_waits_is_woken(
    future: CallFuture[Any], end: Any, ask: str, expected: Any
) -> None:
    """However many OS threads there are, and however it ends."""
    threads, got = waiters_of(future, 3, ask)

    end(future)

    for thread in threads:
        thread.join(30)
    assert [expected] * 3 == got


def test_waiting_is_given_up_when_its_time_is_over(future: CallFuture[Any]) -> None:
    """And the result can be waited for once more."""
    with pytest.raises(TimeoutOfFutures):
        future.result(0.001)

    future.set_result(1)
    assert 1 == future.result(0)


def test_a_future_that_is_done_says_so(future: CallFuture[Any]) -> None:
    """The error shows the future, for which its lock is taken a second time."""
    future.set_result(1)

    with pytest.raises(
        InvalidStateError, match=r"FINISHED: <CallFuture .* returned int>"
    ):
        future.set_result(2)


def test_callbacks_are_called_once_it_is_done(future: CallFuture[Any]) -> None:
    """At once, if it is done already."""
    got: list[Any] = []
    future.add_done_callback(lambda each: got.append(each.result()))
    assert [] == got

    future.set_result(1)
    future.add_done_callback(lambda each: got.append(each.result() + 1))

    assert [1, 2] == got


def test_its_states_are_those_of_any_future(future: CallFuture[Any]) -> None:
    """Pending, running, done."""
    assert (False, False) == (future.running(), future.done())
    future.set_running_or_notify_cancel()
    assert (True, False, False) == (future.running(), future.done(), future.cancel())
    future.set_result(1)
    assert (False, True) == (future.running(), future.done())


@pytest.mark.parametrize("when", ["before it is awaited", "while it is awaited"])
def test_a_failure_is_not_seen_by_a_body_whose_other_coroutines_make_their_calls_later(
    when: str,
) -> None:
    """`asyncio.gather` has started them all, and tells the body of the first failure
    alone.
    """
    made, futures = OpenCalls(), list[CallFuture[Any]]()

    def fail(number: int) -> None:
        error = OSError(number)
        add_failed_calls(error, (str(number),))
        futures[number].set_exception(error)

    async def one(number: int) -> Any:
        if number and when == "while it is awaited":
            fail(number - 1)
        futures.append(CallFuture(None, made))
        if when == "before it is awaited":
            fail(number)
        return await futures[number]

    async def body() -> Any:
        made.home = asyncio.current_task()
        return await asyncio.gather(*map(one, range(3)))

    with pytest.raises(OSError, match="0") as caught:
        asyncio.run(body())

    assert set() == observed_failures(Raised(caught.value), made)


def test_asyncio_that_another_thread_is_importing_has_no_running_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part of the module may be there already."""
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))

    assert not on_event_loop()
