"""Where the events of a run arrive: one queue, emptied at each wake-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from flowpregel._core.effects import Event
from flowpregel.executors.base import Backlog

_MOST: Final = 512
"""Events of those that lie here that one wake-up takes; in `sync` each wake-up is a commit.

A bound, since what the first of them ask for begins, and what they brought is on disk
and shown, before the others are looked at; and a transaction does not grow with the
run. A commit more for so many tasks costs each of them a few microseconds, also where
the disk takes milliseconds.
"""


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
        """Wait for events, at most *timeout* seconds, and return those there are.

        Of very many, some: what they ask for is begun before the others are looked at.
        """
        events = self.drain(_MOST)
        if len(events) == _MOST and self.attend is not None:
            # Nor should who works for this run wait for more work until then.
            self.attend(0)
        if events or timeout == 0:
            return events
        if self.attend is not None:
            self.attend(timeout)
            return self.drain(_MOST)
        try:
            events.append(self._queue.get(timeout=timeout))
        except Empty:
            return events
        events.extend(self.drain())
        return events

    def drain(self, most: float = math.inf) -> list[Event]:
        """Return all events there are, or the first *most*, without waiting."""
        events: list[Event] = []
        queue = self._queue
        try:
            while not queue.empty():
                events.append(queue.get_nowait())
                if len(events) >= most:
                    return events
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
