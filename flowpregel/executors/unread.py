"""Events from another process whose content has not been unpickled (read) yet.

Unpickling a value may run any code of the user's classes, and may never end. So the OS
thread that serves all runs passes on a worker's message as bytes, and the message is
unpickled only where it is needed::

    I/O thread                   the run's own OS thread           the caller
    ----------                   -----------------------           ----------
    UnreadEvent -- post -------> take -> read -> Event
    LazyFuture.arrive ------------------------------------------> result(): read, once
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from flowpregel._core.effects import Event

ResultT = TypeVar("ResultT")


class UnreadEvent:
    """An event for a run whose content has not been unpickled."""

    __slots__ = ()

    is_plain: bool
    """True if unpickling the event runs no user code."""

    @property
    def seconds(self) -> float:
        """The maximum number of seconds for unpickling the event."""
        return inf

    def read(self) -> Event | None:
        """Unpickle the event and return it, or None if the run need not handle it."""
        raise NotImplementedError

    def give_up(self) -> Event | None:
        """Return the event for the run if Ctrl-C or a cancellation interrupts the
        unpickling.
        """
        return None

    def time_out(self) -> Event | None:
        """Return the event for the run if the unpickling takes too long."""
        return self.give_up()

    def read_in_time(self) -> Event | None:
        """Unpickle the event and return it, or return the event of `time_out` if this
        takes too long.

        In the latter case, unpickling continues on a separate OS thread, and its result
        is dropped.
        """
        if self.seconds == inf or self.is_plain:
            return self.read()
        reading: Future[Event | None] = Future()
        threading.Thread(
            target=_read_into,
            args=(self, reading),
            name="flowpregel-reading",
            daemon=True,
        ).start()
        try:
            return reading.result(self.seconds)
        except TimeoutError:
            # A TimeoutError was raised either by the wait, or by user code. In the
            # second case `reading` is done.
            return reading.result() if reading.done() else self.time_out()


def _read_into(event: UnreadEvent, reading: Future[Event | None]) -> None:
    try:
        reading.set_result(event.read())
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        reading.set_exception(error)


class LazyFuture(Future[ResultT]):
    """A future whose result arrives as bytes. The first caller unpickles the result."""

    _read: Callable[[], tuple[Any, BaseException | None]] | None = None
    """A function that unpickles the result or the error. None before the result has
    arrived and after it was read.
    """
    _reading: threading.Lock | None = None

    def arrive(
        self, read: Callable[[], tuple[Any, BaseException | None]], *, failed: bool
    ) -> None:
        """Note that the result has arrived as bytes.

        Args:
            read: A function that unpickles the outcome, and returns the result and the
                error of the call, one of which is None.
            failed: True if the call failed.
        """
        self._read, self._reading = read, threading.Lock()
        if failed:
            self.set_exception(_NotRead())
        else:
            self.set_result(None)  # type: ignore[arg-type]  # `result` replaces it

    @property
    def is_unread(self) -> bool:
        """True if the result has arrived, and has not been read."""
        return self._read is not None

    def result(self, timeout: float | None = None) -> ResultT:
        """Return the result of the call, or raise the error of the call.

        Args:
            timeout: The number of seconds to wait, or None for no limit.
        """
        self._open(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the call, or None if the call has succeeded.

        Args:
            timeout: The number of seconds to wait, or None for no limit.
        """
        self._open(timeout)
        return super().exception(timeout)

    def _open(self, timeout: float | None) -> None:
        """Wait for the result, and unpickle it if no caller has done so."""
        super().exception(timeout)
        if self._read is None or self._reading is None:
            return
        # A caller may compute the timeout from a deadline that has passed. The lock
        # accepts no negative timeout, except -1 for no limit.
        patience = -1 if timeout is None else max(0.0, timeout)
        if not self._reading.acquire(timeout=patience):
            # The timeout has passed, and another OS thread is still unpickling the
            # result.
            raise TimeoutError
        try:
            if self._read is not None:
                # `set_result` was already called when the bytes arrived, which woke the
                # waiting OS threads, and cannot be called twice. So the result is set
                # directly.
                self._result, self._exception = self._read()
                self._read = None
        finally:
            self._reading.release()


class _NotRead(Exception):
    """A placeholder for the error of a failed call, until a caller requests the error
    and it is unpickled.
    """
