"""Where the events of a run arrive: one queue, emptied at each wake-up."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from flowpregel._core.effects import Event
from flowpregel.executors.base import Backlog


class ThreadMailbox:
    """The mailbox of a run whose OS thread waits for it."""

    attentive = True

    def __init__(self) -> None:
        self._queue: SimpleQueue[Event] = SimpleQueue()
        self.backlog = Backlog()
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
        get, empty = self._queue.get_nowait, self._queue.empty
        try:
            while not empty():
                events.append(get())
        except Empty:
            # Another OS thread was faster.
            self.backlog.clear()
            return events
        if self.backlog.size:
            self.backlog.clear()
        return events


def loop_mailbox(loop: Any) -> Any:
    """Return the mailbox of a run on the event loop *loop*."""
    from flowpregel._host.loop_mailbox import LoopMailbox  # noqa: PLC0415 - imports asyncio

    return LoopMailbox(loop)
