"""Where the events of a run arrive: one queue, emptied at each wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import get_ident

from flowpregel._core.effects import Event


class ThreadMailbox:
    """The mailbox of a run whose OS thread waits for it."""

    attentive = True

    def __init__(self) -> None:
        self._queue: SimpleQueue[Event] = SimpleQueue()
        self.attend: Callable[[float | None], None] | None = None
        self.interrupt_attend: Callable[[], None] | None = None

    def post(self, event: Event) -> None:
        """Deliver an event, from any OS thread."""
        self._queue.put(event)
        if (interrupt := self.interrupt_attend) is not None:
            interrupt()

    def take(self, timeout: float | None) -> list[Event]:
        """Wait for events, at most *timeout* seconds, and return all there are."""
        events = self.drain()
        if events or timeout == 0:
            return events
        if self.attend is not None:
            self.attend(timeout)
            return self.drain()
        try:
            events.append(self._queue.get(timeout=timeout))
        except Empty:
            return events
        events.extend(self.drain())
        return events

    def drain(self) -> list[Event]:
        """Return all events there are, without waiting."""
        events: list[Event] = []
        get = self._queue.get_nowait
        try:
            while True:
                events.append(get())
        except Empty:
            return events


class LoopMailbox:
    """The mailbox of a run on an event loop."""

    attentive = False
    attend: Callable[[float | None], None] | None = None
    interrupt_attend: Callable[[], None] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def post(self, event: Event) -> None:
        """Deliver an event, from any OS thread."""
        self._events.append(event)
        if get_ident() == self._thread:
            self._arrived.set()
        else:
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def take(self, seconds: float | None) -> list[Event]:
        """Wait for events, at most *seconds*, and return all there are."""
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
        events = list(self._events)
        for _ in events:
            self._events.popleft()
        return events
