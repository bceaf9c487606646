"""The runs that a process takes from a store: those that are due, or those that died.

`RunWorker` asks a choice (`RunChoice`) for runs again and again. Before it begins a
run, it asks about this run once more, because other processes take runs from the same
store.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from flowpregel import _clock
from flowpregel._core.records import Address, Saved
from flowpregel._inspection.situations import is_pause
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.work import is_paused, work_of
from flowpregel.cli import targets
from flowpregel.errors import ConfigurationError
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import ConsumerRegistration, DurableSaver
    from flowpregel.checkpoint.maintenance import ThreadInfo
    from flowpregel.checkpoint.paused import PausedRuns
    from flowpregel.pregel.pregel import Pregel


class RunChoice(Protocol):
    """A rule that selects the runs that a process takes from a store."""

    def threads(self) -> list[ThreadInfo]:
        """Return the threads whose runs must begin or be resumed now, in order."""
        ...

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return the present facts about a thread that was chosen, or None if its run
        need not be resumed any more.
        """
        ...

    def flow_of(self, thread: ThreadInfo) -> Pregel:
        """Import the flow of a thread's run.

        Raises:
            ConfigurationError: The run recorded no flow, or the flow cannot be
                imported.
        """
        ...


@dataclass(frozen=True, slots=True)
class DueRuns:
    """The runs that are enqueued or stopped, or no longer need to wait.

    Args:
        reader: The store, open for reading.
        flows: The names of the flows whose runs are chosen; empty for all.
        registration: The record by which the store lists this process among those that
            take runs, or None.
    """

    reader: DurableSaver
    flows: Collection[str] = ()
    registration: ConsumerRegistration | None = None

    def threads(self) -> list[ThreadInfo]:
        """Return the threads of these runs, those with the greatest priority first."""
        now = _clock.wall()
        paused = self.reader.paused()
        due: list[ThreadInfo] = []
        waiting: dict[str, ThreadInfo] = {}
        for thread in self.reader.threads():
            if self.flows and thread.metadata.get(FLOW) not in self.flows:
                continue
            if thread.status == "waiting":
                waiting[thread.thread_id] = thread
            elif self._is_due(thread, paused):
                due.append(thread)
        due += (
            waiting[thread_id]
            for thread_id in self.reader.in_snapshots(waiting)
            if self._is_due(waiting[thread_id], paused)
        )
        return sorted(due, key=partial(_queue_rank, now=now))

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return the facts about a thread, or None if its run is not due."""
        thread = self.reader.thread(thread_id)
        if thread is None or not self._is_due(thread, self.reader.paused()):
            return None
        return thread

    def _is_due(self, thread: ThreadInfo, paused: PausedRuns) -> bool:
        if paused.reason(thread.thread_id, thread.metadata):
            return False
        match thread.status:
            case "enqueued":
                position = QueuePosition.of(thread.metadata) or QueuePosition()
                return position.not_before <= _clock.wall()
            case "stopped":
                return True
            case "waiting":
                saved = self.reader.load(Address(thread.thread_id))
                return saved is not None and _can_resume(self.reader, saved)
            case _:
                return False

    def flow_of(self, thread: ThreadInfo) -> Pregel:
        """Import the flow that a thread's run recorded. If that fails, record the
        reason in the store, because the program that enqueued the run is elsewhere.
        """
        try:
            return _recorded_flow(thread)
        except ConfigurationError as error:
            if self.registration is not None:
                self.registration.refuse(thread.thread_id, str(error))
            raise


@dataclass(frozen=True, slots=True)
class AbandonedRuns:
    """The runs whose process has died, because their leases have expired.

    Args:
        reader: The store, open for reading.
        flow: ``MODULE:FLOW`` for the runs that did not record their flow, or None.
    """

    reader: DurableSaver
    flow: str | None

    def threads(self) -> list[ThreadInfo]:
        """Return the threads of these runs, the oldest first."""
        paused = self.reader.paused()
        threads: list[ThreadInfo] = []
        # The run of a nested graph is not resumed here: the run that contains it
        # resumes it.
        thread_ids = [
            address.thread_id
            for address in self.reader.abandoned()
            if not address.namespace
        ]
        for thread_id in self.reader.in_snapshots(thread_ids):
            thread = self.reader.thread(thread_id)
            if thread is not None and not self._is_left(thread, paused):
                threads.append(thread)
        return sorted(threads, key=attrgetter("created"))

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return the facts about a thread, or None if its run did not die."""
        if Address(thread_id) not in self.reader.abandoned():
            return None
        return self.reader.thread(thread_id)

    def flow_of(self, thread: ThreadInfo) -> Pregel:
        """Import the flow that a thread's run recorded, or the flow of this choice if
        the run recorded none.
        """
        if self.flow is not None and thread.metadata.get(FLOW) is None:
            return targets.load_flow(self.flow)
        return _recorded_flow(thread)

    def _is_left(self, thread: ThreadInfo, paused: PausedRuns) -> bool:
        """Return whether the run is left to a person, because it is paused, or waits at
        a breakpoint.
        """
        if paused.reason(thread.thread_id, thread.metadata):
            return True
        saved = self.reader.load(Address(thread.thread_id))
        return saved is None or is_paused(saved)


def _queue_rank(thread: ThreadInfo, now: float) -> tuple[float, int, int]:
    """Return the sort key of a run among those that are due."""
    position = QueuePosition.of(thread.metadata) or QueuePosition()
    return position.rank(thread.created, now)


def _recorded_flow(thread: ThreadInfo) -> Pregel:
    """Import the flow that a thread's run recorded.

    Raises:
        ConfigurationError: The run recorded no flow, or the flow cannot be imported on
            this machine.
    """
    try:
        return targets.flow_in_metadata(thread.thread_id, thread.metadata)
    except ConfigurationError as error:
        host = socket.gethostname()
        folder = str(thread.metadata.get(FOLDER, "")) or "an unknown folder"
        raise ConfigurationError(
            f"{error} (on {host}, in {os.getcwd()}; the run was recorded by a program "
            f"in {folder}). Install the program on {host}, or start this command in "
            "the folder of the program"
        ) from error


def _can_resume(saver: DurableSaver, saved: Saved) -> bool:
    """Return whether a run waits for a time that has come or a signal that was sent."""
    for call_id, interrupt in pauses_of(saved):
        pause = interrupt.value
        if SLEEPS_UNTIL in pause:
            is_over = _has_come(str(pause[SLEEPS_UNTIL]))
        else:
            name = str(pause[AWAITS_SIGNAL])
            is_over = saver.has_signal(saved.address.thread_id, name, call_id)
        if is_over:
            return True
    return False


def pauses_of(saved: Saved) -> Iterator[tuple[str, Any]]:
    """Yield the id of each call of a run that waits for a time or a signal, with the
    interrupt that describes the wait.
    """
    for work in work_of(saved):
        for interrupt in work.interrupts:
            if is_pause(interrupt.value):
                yield work.id, interrupt


def _has_come(moment: str) -> bool:
    """Return whether a moment in ISO format has come."""
    return datetime.fromisoformat(moment).timestamp() <= _clock.wall()
