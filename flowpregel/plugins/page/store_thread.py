"""The OS threads on which a store is read, so that a store that hangs does not block
the server or other stores.

::

    event loop ── run(work) ──► a daemon thread, one at a time ──► StoreReader
        ▲                            │
        ├──── result or error ◄──────┘
        └──── after a time limit: an error, as long as the thread has not ended

A `StoreReader` must not be used by several OS threads at once. A read of a database on
another machine may never end, and cannot be cancelled. So the next read waits for it,
up to the limit, and is then refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any, Final, TypeVar

from flowpregel.cli.base import call_on_thread
from flowpregel.errors import StoreError

Result = TypeVar("Result")
ANSWER_LIMIT: Final = 15.0
"""Seconds after which an error reports that the store does not answer. Most reads take
milliseconds.
"""


class StoreStalledError(StoreError):
    """A read of a store has not ended within the time limit."""


class StoreThread:
    """The OS threads on which a store is read, one at a time.

    Args:
        path: The location of the store, for messages.
        limit: Seconds after which an error reports that the store does not answer.
    """

    def __init__(self, path: str, limit: float = ANSWER_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._turn = asyncio.Lock()
        self._current: asyncio.Future[Any] | None = None
        """The read that was started last."""
        self._thread: Thread | None = None
        """The OS thread of the read that was started last."""
        self._has_exceeded = False
        """True if the read that was started last has exceeded the time limit."""

    @property
    def is_stalled(self) -> bool:
        """True if a read has exceeded the limit, and has not ended yet."""
        if self._thread is None:
            return False
        return self._has_exceeded and self._thread.is_alive()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of *work*, which reads the store.

        Args:
            work: A function without arguments.

        Raises:
            StoreStalledError: This read, or an earlier one, has not ended within the
                limit.
            Exception: Any error that *work* raises.
        """
        async with self._turn:
            # An earlier read may still be running, because its request was cancelled,
            # or because it exceeded the limit. This read waits for its end, up to the
            # limit.
            await self._end_current()
            future, self._thread = call_on_thread(work, f"reads {self._path}")
            current = asyncio.wrap_future(future)
            current.add_done_callback(_retrieve)
            self._current = current
            await self._end_current()
            return current.result()

    def close(self, work: Callable[[], None]) -> None:
        """Run *work* after the last read, for at most the time limit.

        If the last read has not ended within the limit, it is left running, and *work*
        is not called.

        Args:
            work: A function that closes what reads the store.
        """
        if self._thread is not None:
            self._thread.join(self._limit)
            if self._thread.is_alive():
                return
        thread = Thread(target=work, daemon=True)
        thread.start()
        thread.join(self._limit)

    async def _end_current(self) -> None:
        """Wait until the read that was started last has ended."""
        if self._current is None:
            return
        limit = 0.0 if self.is_stalled else self._limit
        ended, _ = await asyncio.wait({self._current}, timeout=limit)
        self._has_exceeded = not ended
        if self._has_exceeded:
            raise StoreStalledError(
                f"The store {self._path} has not answered for {self._limit:.0f} "
                "seconds."
            )


def _retrieve(current: asyncio.Future[Any]) -> None:
    """Retrieve the error of a read, so that asyncio does not log it if no request waits
    for the read any more.
    """
    if not current.cancelled():
        current.exception()
