"""Where the events of a run on an event loop arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident

from flowpregel._core.effects import Event
from flowpregel._engine.mailbox import Backpressure
from flowpregel.executors.base import Backlog


class LoopMailbox:
    """The mailbox of a run on an event loop."""

    attentive = False
    attend: Callable[[float | None], None] | None = None
    interrupt_attend: Callable[[], None] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._events: deque[Event] = deque()
        self.way = Backpressure()
        self.backlog = Backlog()
        self._arrived = asyncio.Event()

    def post(self, event: Event) -> None:
        """Deliver an event, from any OS thread."""
        self.post_all((event,))

    def post_all(self, events: Sequence[Event]) -> None:
        """Deliver events, from any OS thread."""
        self._events.extend(events)
        if get_ident() == self._thread:
            self._arrived.set()
        else:
            # A loop that is closed has no run that waits: its step timeout left this task behind.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.set)

    def give_way(self) -> None:
        """Let the run take what waits before more is posted; not for its own OS thread."""
        self.way.give(self._events)

    async def take(self, seconds: float | None) -> list[Event]:
        """Wait for events, at most *seconds*, and return all there are."""
        if not self._events:
            self.way.free()
        if not self._events and seconds != 0:
            self._arrived.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return self.drain()

    def drain(self) -> list[Event]:
        """Return all events there are, without waiting."""
        events = [*self._events]
        for _ in events:
            self._events.popleft()
        if self.backlog.size:
            self.backlog.clear()
        return events
