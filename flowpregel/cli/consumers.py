"""The wait until a process of ``work`` (a consumer) takes a run, and descriptions of
such processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowpregel._text import in_one_line
from flowpregel.cli.console import Code, print_note

if TYPE_CHECKING:
    from flowpregel._inspection.reader import StoreReader
    from flowpregel._inspection.tasks import RunRow
    from flowpregel.checkpoint.durable import DurableSaver, QueueConsumer

_PERIOD: Final = 0.5
"""Seconds between two reads of a run for which the command waits."""
_RESUMED_BY_WORK: Final = ("sleeping", "awaiting signal", "killed", "stopped")
"""The situations in which `work` resumes a run sooner or later."""


def consumers_of(saver: DurableSaver, flow: object) -> list[QueueConsumer]:
    """Return the processes of `work` that are alive and take the runs of a flow.

    Args:
        saver: The open store.
        flow: The flow that the runs recorded, or None.
    """
    consumers = saver.consumers.alive()
    return [consumer for consumer in consumers if consumer.entry.takes(flow)]


def consumer_text(consumers: Iterable[QueueConsumer]) -> str:
    """Return a line that names processes of `work` and their hosts.

    Example:
        >>> from flowpregel.checkpoint.durable import ConsumerEntry, QueueConsumer
        >>> from flowpregel.storage import LockHolder
        >>> owner = LockHolder("node3", 12)
        >>> consumer_text([QueueConsumer(owner=owner, entry=ConsumerEntry(jobs=4))])
        'process 12 on node3 (4 jobs)'
    """
    texts: list[str] = []
    for consumer in consumers:
        jobs = consumer.entry.jobs
        number = "1 job" if jobs == 1 else f"{jobs} jobs"
        texts.append(f"{consumer.owner} ({number})")
    return ", ".join(texts)


def consumer_records(consumers: Iterable[QueueConsumer]) -> list[dict[str, Any]]:
    """Return processes of `work` as values for JSON."""
    return [
        {
            "host": consumer.owner.host,
            "pid": consumer.owner.pid,
            "jobs": consumer.entry.jobs,
        }
        for consumer in consumers
    ]


def refusals(consumers: Iterable[QueueConsumer], thread_id: str) -> list[str]:
    """Return the reasons why processes of `work` cannot begin a run, each with the
    process.
    """
    lines: list[str] = []
    for consumer in consumers:
        reason = consumer.entry.refused.get(thread_id)
        if reason is not None:
            line = in_one_line(f"{consumer.owner} cannot begin it: {reason}")
            lines.append(line)
    return lines


class QueueWait:
    """The wait of a command until a process of `work` takes a run.

    Args:
        saver: The open store.
        reader: The reader of the store.
        thread_id: The thread of the run.
        until_end: True to wait also if the run was stopped, sleeps, or waits for a
            signal, because `work` resumes it. False to wait only if it is enqueued.
    """

    def __init__(
        self,
        saver: DurableSaver,
        reader: StoreReader,
        thread_id: str,
        *,
        until_end: bool = False,
    ) -> None:
        self._saver = saver
        self._reader = reader
        self._thread_id = thread_id
        self._until_end = until_end
        self._notes: set[str] = set()
        """The lines that were printed. Each line is printed only once."""
        self._is_refused = False
        self._was_enqueued = False

    def sleep_if_due(self, row: RunRow) -> bool:
        """Sleep for a moment if the run will be taken, and return whether it will.

        Args:
            row: The row of the run.
        """
        was_enqueued = self._was_enqueued
        self._was_enqueued = row.status == "enqueued"
        if was_enqueued and not self._was_enqueued:
            # The reader of the row reads first whether a process has the run, and then
            # the tasks. A run that begins in between seems to be stopped. So the caller
            # must read the row once more.
            return True
        if not self._must_wait(row):
            return False
        time.sleep(_PERIOD)
        return True

    def exit_code(self, code: Code) -> Code:
        """Return the exit code of the command.

        Args:
            code: The exit code for the status of the run.
        """
        return Code.FAILED if self._is_refused else code

    def _must_wait(self, row: RunRow) -> bool:
        is_enqueued = row.status == "enqueued"
        is_resumed = self._until_end and row.status in ("stopped", "waiting")
        if not is_enqueued and not is_resumed:
            return False
        text = self._reader.status(self._thread_id, counting="no")
        if text is None or text.paused:
            return False
        if not is_enqueued and text.situation not in _RESUMED_BY_WORK:
            return False
        consumers = consumers_of(self._saver, row.flow)
        lines = refusals(consumers, self._thread_id)
        self._is_refused = bool(consumers) and len(lines) == len(consumers)
        if not consumers:
            lines = [f"{text.short}: no process of `flowpregel work` takes it now"]
        elif not lines:
            lines = [f"{text.short}: taken by {consumer_text(consumers)}"]
        self._print_new(lines)
        return not self._is_refused

    def _print_new(self, lines: Sequence[str]) -> None:
        """Print those lines that were not printed before."""
        for line in lines:
            if line not in self._notes:
                self._notes.add(line)
                print_note(line)
