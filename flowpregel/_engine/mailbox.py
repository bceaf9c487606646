"""Where the events of a run arrive: one queue, emptied at each wake-up."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
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


_MOMENT: Final = 0.05
"""Seconds that who makes very many calls waits at most, should nobody take them."""


class Backpressure:
    """Where who makes very many calls lets the run go first, which has to start them.

    Both need the interpreter's lock. Who computes and computes leaves the other without
    it for 5 ms at each of its system calls, and workers without tasks meanwhile.
    """

    __slots__ = ("_is_asked", "_is_free")

    def __init__(self) -> None:
        self._is_asked = False
        self._is_free = threading.Event()

    def give(self, waiting: Collection[Event]) -> None:
        """Wait until what is *waiting* was taken, or a moment has passed."""
        self._is_free.clear()
        self._is_asked = True
        if waiting:
            self._is_free.wait(_MOMENT)

    def free(self) -> None:
        """Note that everything was taken."""
        if self._is_asked:
            self._is_asked = False
            self._is_free.set()


class ThreadMailbox:
    """The mailbox of a run whose OS thread waits for it; no other takes anything out."""

    attentive = True

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._sleeps = False
        """Whether the run waits for the bell."""
        self.way = Backpressure()
        """Where a body waits that makes very many calls."""
        self.backlog = Backlog()
        self.attend: Callable[[float | None], None] | None = None
        self.interrupt_attend: Callable[[], None] | None = None

    def post(self, event: Event) -> None:
        """Deliver an event, from any OS thread."""
        self._events.append(event)
        if self._sleeps:
            self._ring()
        if (interrupt := self.interrupt_attend) is not None:
            interrupt()

    def post_all(self, events: Sequence[Event]) -> None:
        """Deliver events, from any OS thread."""
        self._events.extend(events)
        if self._sleeps:
            self._ring()
        if (interrupt := self.interrupt_attend) is not None:
            interrupt()

    def give_way(self) -> None:
        """Let the run take what waits before more is posted; not for its own OS thread."""
        self.way.give(self._events)

    def _ring(self) -> None:
        self._sleeps = False
        self._bell.put(None)

    def take(self, timeout: float | None) -> list[Event]:
        """Wait for events, at most *timeout* seconds, and return those there are.

        Of very many, some: what they ask for is begun before the others are looked at.
        """
        events = self.drain(_MOST)
        if len(events) == _MOST and self.attend is not None:
            # Nor should who works for this run wait for more work until then.
            self.attend(0)
        if not events:
            self.way.free()
        if events or timeout == 0:
            return events
        if self.attend is not None:
            self.attend(timeout)
            return self.drain(_MOST)
        self._sleep(timeout)
        return self.drain()

    def _sleep(self, timeout: float | None) -> None:
        """Wait until there are events, at most *timeout* seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                # Said before it is looked once more: who posts does it the other way round.
                self._sleeps = True
                if self._events:
                    return
                # It may ring for what was taken already.
                self._bell.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except Empty:
            return
        finally:
            self._sleeps = False

    def drain(self, most: int = sys.maxsize) -> list[Event]:
        """Return all events there are, or the first *most*, without waiting."""
        waiting = self._events
        events = [*waiting] if len(waiting) <= most else [*islice(waiting, most)]
        for _ in events:
            waiting.popleft()
        if self.backlog.size and len(events) < most:
            self.backlog.clear()
        return events


def loop_mailbox(loop: Any) -> Any:
    """Return the mailbox of a run on the event loop *loop*."""
    from flowpregel._engine.loop_mailbox import LoopMailbox  # noqa: PLC0415 - imports asyncio

    return LoopMailbox(loop)
