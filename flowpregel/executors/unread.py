"""Events from another process that have not been read yet.

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
    """True if reading the event runs no user code."""

    @property
    def seconds(self) -> float:
        """The number of seconds that reading the event may take."""
        return inf

    def read(self) -> Event | None:
        """Return the event, or None if there is no event for the run."""
        raise NotImplementedError

    def give_up(self) -> Event | None:
        """Return the event that replaces this one if Ctrl-C or a cancellation stops the
        reading.
        """
        return None

    def time_out(self) -> Event | None:
        """Return the event that replaces this one if reading it takes too long."""
        return self.give_up()

    def read_in_time(self) -> Event | None:
        """Return the event, or its replacement if reading it takes too long.

        In the latter case, reading continues on a separate OS thread, and the result is
        dropped.
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
            # A TimeoutError comes either from the wait, or from user code, in which
            # case `reading` is done.
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
        """Note that the result has arrived.

        Args:
            read: A function that returns the result and the error of the call, one of
                which is None.
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
        """Wait for the result, and read it unless it has been read."""
        super().exception(timeout)
        if self._read is None or self._reading is None:
            return
        if not self._reading.acquire(timeout=-1 if timeout is None else timeout):
            # The timeout is over, and another OS thread is still reading the result.
            raise TimeoutError
        try:
            if self._read is not None:
                # The attributes are set directly, because `set_result` cannot be called
                # twice. The waiters need no notice: they were woken when the bytes
                # arrived.
                self._result, self._exception = self._read()
                self._read = None
        finally:
            self._reading.release()


class _NotRead(Exception):
    """A placeholder for the error of a failed call until a caller requests the
    error.
    """
