"""Where the events of a run arrive: one queue, emptied at each wake-up."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from flowpregel._core.effects import Event
from flowpregel._interrupts import waking
from flowpregel.executors.base import Backlog

if TYPE_CHECKING:
    import asyncio

MOST_AT_ONCE: Final = 512
"""How many events one wake-up takes.

A bound, so that the tasks that the first events ask for start, and the results that
they bring are kept, before the run looks at the rest.
"""

_lock = threading.Lock()
_last = 0


def now() -> int:
    """Return wall-clock nanoseconds, greater than any returned before in this process.

    Versions and checkpoint ids are made of it, so two may never be equal.
    """
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1_000)
        return _last


class RunInbox:
    """The mailbox of a run whose own OS thread waits for events."""

    def __init__(self) -> None:
        # A signal's handler may post as well, whatever this OS thread is doing.
        self._posted: SimpleQueue[Sequence[Event]] = SimpleQueue()
        self._events: deque[Event] = deque()
        """What was taken out of it."""
        self.backlog = Backlog()

    @property
    def has_events(self) -> bool:
        """Whether `take` would return at once."""
        return bool(self._events) or not self._posted.empty()

    def post(self, *events: Event) -> None:
        """Deliver events, from any OS thread."""
        self._posted.put(events)

    def take(self, timeout: float | None) -> list[Event]:
        """Wait for events, at most *timeout* seconds; return the first `MOST_AT_ONCE`."""
        if not self.has_events:
            self.backlog.clear()
            with waking(lambda: self._posted.put(())), suppress(Empty):
                self._events.extend(self._posted.get(timeout=timeout))
        return self.drain()

    def drain(self) -> list[Event]:
        """Return the first `MOST_AT_ONCE` events, without waiting."""
        while len(self._events) < MOST_AT_ONCE and not self._posted.empty():
            self._events.extend(self._posted.get_nowait())
        if not self._events and self.backlog.size:
            self.backlog.clear()
        return [self._events.popleft() for _ in range(min(len(self._events), MOST_AT_ONCE))]


class LoopInbox(RunInbox):
    """The mailbox of a run on an event loop.

    Args:
        loop: The loop, which is running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        super().__init__()
        self._loop = loop
        self._is_awake = asyncio.Event()

    def post(self, *events: Event) -> None:
        """Deliver events, from any OS thread."""
        super().post(*events)
        # A loop that is closed has no run that waits: its step timeout left this task behind.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._is_awake.set)

    async def take_on_loop(self, seconds: float | None) -> list[Event]:
        """`take`, while the loop goes on."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        events = self.drain()
        if not events:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not self.has_events:
                        self._is_awake.clear()
                        await self._is_awake.wait()
        return events or self.drain()
