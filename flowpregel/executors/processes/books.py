"""The books of a pool: its flights that have not landed, and those whose runs are to be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import compress, repeat
from typing import Final

from flowpregel._core.effects import Ended
from flowpregel.executors.base import JobKey
from flowpregel.executors.processes.slot import Flight, Landing

_NOBODY: Final = repeat(None)


class Books:
    """Flights, from when they are taken to when their runs are told of their ends.

    All but `tell` want the pool's lock held, unless said otherwise.
    """

    def __init__(self) -> None:
        self._flights: dict[int, Flight] = {}
        self._by_task: dict[str, Flight] | None = None
        """The flights by their tasks' ids. None: nobody has asked for one by its task
        since there was none, as nearly always."""
        self._landed: deque[list[Landing]] = deque()
        self.unattended = 0
        """How many flights are of runs that do not come to read. May be read without the lock."""

    def __bool__(self) -> bool:
        """Return whether there are any flights; needs no lock."""
        return bool(self._flights)

    def add(self, flights: dict[int, Flight], attended: bool) -> None:
        """Take in *flights*, by number, of a run that is as *attended* says."""
        self._flights.update(flights)
        if self._by_task is not None:
            self._by_task.update(_by_task(flights.values()))
        if not attended:
            self.unattended += len(flights)

    def find(self, key: JobKey) -> Flight | None:
        """Return the flight of a job, if it has not landed."""
        if self._by_task is None:
            self._by_task = _by_task(self._flights.values())
        flight = self._by_task.get(key[0])
        if flight is None or flight.job.key != key or flight.number not in self._flights:
            return None
        return flight

    def strike(self, ended: list[Landing]) -> None:
        """Take out flights that have ended; `tell` does the rest."""
        numbers: list[int] = []
        for flight, _ in ended:
            numbers.append(flight.number)
        # Ctrl-C comes between calls: it finds each in the books, or among the landed.
        landed = [*compress(ended, map(self._flights.pop, numbers, _NOBODY))]
        self._landed.append(landed)
        if self.unattended:
            self.unattended -= sum(not flight.party.attended for flight, _ in landed)
        if self._by_task is not None:
            self._strike_tasks(self._by_task, landed)

    def _strike_tasks(self, by_task: dict[str, Flight], landed: list[Landing]) -> None:
        for flight, ended in landed:
            if by_task.get(ended.task_id) is flight:
                del by_task[ended.task_id]
        if not self._flights:
            self._by_task = None

    def tell(self) -> None:
        """Tell the runs of all that have landed."""
        while self._landed:
            try:
                landed = self._landed.popleft()
            except IndexError:
                # Another OS thread tells them.
                return
            try:
                _tell(landed)
            except KeyboardInterrupt:
                # It is meant for one run, and these may be others'. Who hears it twice ignores it.
                self._landed.appendleft(landed)
                self.tell()
                raise


def _tell(landed: list[Landing]) -> None:
    """Tell the runs of flights that have landed together."""
    if not landed:
        return
    mailbox = landed[0][0].mailbox
    events: list[Ended] = []
    for flight, ended in landed:
        if flight.mailbox is not mailbox:
            mailbox.post_all(events)
            mailbox, events = flight.mailbox, []
        events.append(ended)
    mailbox.post_all(events)


def _by_task(flights: Iterable[Flight]) -> dict[str, Flight]:
    """Return *flights* by their tasks' ids: of one task, that of its last attempt."""
    return {flight.job.info.task_id: flight for flight in flights}
