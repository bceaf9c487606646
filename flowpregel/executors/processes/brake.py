"""The brake: a worker whose chunks nobody takes in is not read for a while.

::

    worker --chunks--> link --> reception --> mailbox --> run --> a reader that is slow
                        ^                        |
                        +---- left unread, so that the worker waits in its next `send`

Without it a task that streams faster than its reader reads would fill the
coordinator's memory. A reader holds back its own run's tasks only, and only
while no other run waits for a worker: it may itself wait for that run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from flowpregel.executors.base import Backlog, Mailbox
from flowpregel.executors.processes.hub import Hub
from flowpregel.executors.processes.line import Line
from flowpregel.executors.processes.slot import Flight, Slot

_EACH: Final = 256
"""Bytes that a chunk costs beside what is in it."""
_AGAIN: Final = 1 << 20
"""Bytes after which a brake that was not allowed is tried again."""


class Brake:
    """Holds back workers.

    Args:
        hub: Who reads the links.
        line: Who waits for a worker.
        recall: Takes back the tasks that the worker of a slot has not begun.
    """

    def __init__(self, hub: Hub, line: Line, recall: Callable[[Slot], None]) -> None:
        self._hub = hub
        self._line = line
        self._recall = recall
        self._held: dict[Slot, Mailbox] = {}

    @property
    def is_on(self) -> bool:
        """Whether a worker is held back."""
        return bool(self._held)

    def before_post(self, flight: Flight, size: int) -> Backlog | None:
        """Count a chunk that is about to be posted; return a backlog that is too large now."""
        backlog: Backlog | None = getattr(flight.mailbox, "backlog", None)
        if backlog is None or not backlog.add(size + _EACH):
            return None
        return backlog

    def hold(self, slot: Slot, flight: Flight, backlog: Backlog) -> None:
        """Leave the link of *slot* unread until *backlog* was taken in, if that harms no other."""
        mailbox = flight.mailbox
        if slot in self._held or flight.stopping is not None:
            return
        if any(each.mailbox is not mailbox for each in slot.flights.values()):
            self._recall(slot)
            if any(each.mailbox is not mailbox for each in slot.flights.values()):
                return
        if any(each.mailbox is not mailbox for each in self._line.all()):
            backlog.limit = backlog.size + _AGAIN
            return
        self._held[slot] = mailbox
        slot.is_held = True
        self._hub.mute(slot.link.fileno(), True)
        if not backlog.hold(partial(self.free, slot)):
            self.free(slot)

    def free(self, slot: Slot) -> None:
        """Read the link of *slot* again, if it was held back; safe from any OS thread."""
        if self._held.pop(slot, None) is not None:
            slot.is_held = False
            self._hub.mute(slot.link.fileno(), False)

    def free_for(self, mailbox: Mailbox) -> None:
        """Hold back nobody while the run of *mailbox* waits for a worker."""
        for slot, held_by in tuple(self._held.items()):
            if held_by is not mailbox:
                self.free(slot)
