"""Calls on OS threads of their own, for whose ends the program need not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

Result = TypeVar("Result")


class ThreadCall(NamedTuple, Generic[Result]):
    """A call on an OS thread of its own. The OS thread ends with the program at the
    latest.
    """

    future: Future[Result]
    """The future for the result or the error of the call."""
    thread: threading.Thread
    """The OS thread."""


def call_on_thread(
    function: Callable[[], Result],
    name: str | None = None,
) -> ThreadCall[Result]:
    """Call *function* on an OS thread of its own, and return at once.

    A call that may never end, such as a read of a store on another machine, cannot be
    cancelled. So the caller waits for the future for as long as it wants, and the
    program can end before the call.

    Args:
        function: A function without arguments.
        name: The name of the OS thread.

    Example:
        >>> call_on_thread(lambda: 6 * 7).future.result(timeout=60)
        42
    """
    future: Future[Result] = Future()
    thread = threading.Thread(
        target=_set_result,
        args=(future, function),
        name=name,
        daemon=True,
    )
    thread.start()
    return ThreadCall(future, thread)


def _set_result(future: Future[Result], function: Callable[[], Result]) -> None:
    """Store the result of *function*, or the error that it raised."""
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - the reader of the future raises it
        future.set_exception(error)
    else:
        future.set_result(result)
