"""The row of a run, and its status as a sentence.

::

    newest checkpoint, states of the tasks ──► RunRow
    RunRow, counted calls, failed and waiting tasks ──► RunFacts ──► StatusText
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from flowpregel._core.records import LIMIT_REACHED, Address
from flowpregel._inspection.call_rows import CallState
from flowpregel._inspection.checkpoint_tasks import (
    FailedTaskReader,
    open_questions,
)
from flowpregel._inspection.cursors import CheckpointView
from flowpregel._inspection.run_tracker import RunTracker
from flowpregel._inspection.situations import (
    RunFacts,
    StatusText,
    describe_reading,
    describe_status,
)
from flowpregel._inspection.tasks import RunRow, TaskRecords
from flowpregel.checkpoint.base import FLOW, QUEUE
from flowpregel.checkpoint.layout import NamespaceRecord
from flowpregel.checkpoint.paused import PAUSED, PausedRuns
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.work import Status, status_from

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import LeaseRegistry

Counting: TypeAlias = Literal["no", "some", "all"]
"""The calls that `StoreReader.status` counts: none; the calls that have been read, and
some more; or all.
"""


class StatusSummary(NamedTuple):
    """The status of a run for a row of a list."""

    text: StatusText
    """The status as a sentence with the next step."""
    failed: int | None = None
    """The number of failed calls, or None if they have not been counted. If the run is
    not done, only the calls of the last superstep are counted.
    """
    error: str = ""
    """The call that failed first in the last superstep, with its error."""


class RunStatusReader:
    """A reader of the rows and the statuses of runs.

    Args:
        tasks: The reader of the tasks' records.
        leases: The leases, which name the processes that run the runs.
        tracker: The tracked changes of runs.
        is_patient: True to read all tasks of a run's newest checkpoint before the row
            of the run is returned.
    """

    def __init__(
        self,
        tasks: TaskRecords,
        leases: LeaseRegistry,
        tracker: RunTracker,
        *,
        is_patient: bool,
    ) -> None:
        self._tasks = tasks
        self._leases = leases
        self._tracker = tracker
        self._is_patient = is_patient
        self._failed = FailedTaskReader(tasks)
        self.postponed: int = 0
        """The number of rows that were returned before all tasks had been read."""
        self.versions: dict[str, int] = {}
        """The version of the tasks of each run's newest checkpoint, at the time when
        the row of the run was last returned, by thread.
        """

    def row(
        self,
        namespace: NamespaceRecord,
        most: int,
    ) -> RunRow:
        """Return the row of a run.

        Args:
            namespace: The record of the run's outermost graph.
            most: The limit on the tasks that are read at once.
        """
        self._tracker.restore(namespace.thread_id)
        address = Address(namespace.thread_id)
        owner = self._leases.owner(address)
        newest = self._tracker.newest(namespace)
        states = self._states(
            newest,
            namespace.thread_id,
            most,
            is_held=owner is not None,
        )
        self.versions[namespace.thread_id] = newest.tasks.version
        is_behind = owner is None and not newest.tasks.was_read
        status = self._status(newest, states, is_held=owner is not None)
        flow = newest.metadata(FLOW)
        if not isinstance(flow, str):
            flow = None
        return RunRow(
            thread_id=namespace.thread_id,
            status=status,
            flow=flow,
            step=newest.record.step,
            created=namespace.created,
            updated=newest.record.at,
            checkpoints=namespace.checkpoints,
            states=states,
            host="" if owner is None else owner.host,
            pid=0 if owner is None else owner.pid,
            is_behind=is_behind,
        )

    def summary(
        self,
        row: RunRow,
        namespace: NamespaceRecord,
        counting: Counting,
    ) -> StatusSummary:
        """Return the status of a run, and its failed calls.

        Args:
            row: The row of the run.
            namespace: The record of the run's outermost graph.
            counting: The calls to count, as for `StoreReader.status`.
        """
        text = self.text(row, namespace, None, counting)
        if row.is_behind:
            return StatusSummary(text)
        if row.status == "done":
            states = self._counted_states(row.thread_id, counting)
            if states is None:
                return StatusSummary(text)
            return StatusSummary(text, states["failed"])
        newest = self._tracker.newest(namespace)
        failed = self._failed.read(newest)
        calls = row.states.get("failed", 0) - failed.bodies
        return StatusSummary(text, calls, failed.first)

    def text(
        self,
        row: RunRow,
        namespace: NamespaceRecord,
        activity: Mapping[str, Any] | None,
        counting: Counting,
    ) -> StatusText:
        """Return the status of a run as a sentence with the next step.

        Args:
            row: The row of the run.
            namespace: The record of the run's outermost graph.
            activity: The last activity of the run, or None.
            counting: The calls to count, as for `StoreReader.status`.
        """
        if row.is_behind:
            return describe_reading(sum(row.states.values()))
        states = self._counted_states(row.thread_id, counting)
        newest = self._tracker.newest(namespace)
        failure = ""
        if row.status == "failed":
            failure = self._failed.read(newest).first
        questions: list[dict[str, Any]] = []
        if row.status == "waiting":
            questions = open_questions(self._tasks, newest)
        paused = self.paused()
        facts = RunFacts(
            thread_id=row.thread_id,
            status=row.status,
            names_flow=row.flow is not None,
            finished=None if states is None else states["done"],
            failed=0 if states is None else states["failed"],
            unfinished=row.states.get("unfinished", 0),
            failure=failure,
            questions=questions,
            reached_limit=newest.record.follows == LIMIT_REACHED,
            owner=self._owner(row),
            position=_queue_position(newest),
            paused=paused.reason(row.thread_id, {FLOW: row.flow}),
            flow=row.flow or "",
            activity=activity,
        )
        return describe_status(facts)

    def _status(
        self,
        newest: CheckpointView,
        states: Mapping[CallState, int],
        *,
        is_held: bool,
    ) -> Status:
        """Return the status of the run whose newest checkpoint is *newest*."""
        run_ends: Collection[str] = states.keys() & {"failed", "waiting"}
        if run_ends and not is_held and not newest.tasks.is_behind:
            run_ends = newest.tasks.run_ends
        return status_from(
            states,
            newest.record.source,
            newest.record.follows,
            running=is_held,
            run_ends=run_ends,
            is_enqueued=_queue_position(newest) is not None,
        )

    def _owner(self, row: RunRow) -> str:
        """Return the process that runs a run, or that died while it ran it, or an empty
        string.
        """
        if row.status == "stopped":
            address = Address(row.thread_id)
            dead_owner = self._leases.dead_owner(address)
            return str(dead_owner or "")
        if row.pid:
            return f"process {row.pid} on {row.host}"
        return ""

    def _states(
        self,
        checkpoint: CheckpointView,
        thread_id: str,
        most: int,
        *,
        is_held: bool,
    ) -> dict[CallState, int]:
        """Return the number of a checkpoint's tasks in each state."""
        tasks = checkpoint.tasks
        mark = self._tracker.store_mark()
        was_read = tasks.advance(most, is_held=is_held, store_mark=mark)
        # The status of a run in progress does not depend on its tasks, so this call
        # reads no more than *most* of them. All tasks of any other run are read: in
        # this call if the reader is patient, or else in later calls of this method.
        while self._is_patient and was_read and tasks.is_behind and not is_held:
            was_read = tasks.advance(most, is_held=is_held, store_mark=mark)
        if tasks.is_behind and not is_held:
            self.postponed += 1
        if thread_id not in self._tracker.runs:
            tasks.changes.clear()
        present = +tasks.states
        return dict(present)

    def _counted_states(
        self,
        thread_id: str,
        counting: Counting,
    ) -> Counter[CallState] | None:
        """Return the number of a run's calls in each state.

        None is returned if they have not all been read.
        """
        if counting == "no":
            return None
        run = self._tracker.updated_run(thread_id)
        while run.behind and counting == "all":
            run = self._tracker.updated_run(thread_id)
        return None if run.behind else run.states

    def paused(self) -> PausedRuns:
        """Return the paused runs of the store."""
        tables = self._tasks.tables
        get_paused = partial(tables.meta.get, key=PAUSED)
        record = tables.read(get_paused)
        return PausedRuns.of(record)


def _queue_position(newest: CheckpointView) -> QueuePosition | None:
    """Return the position of an enqueued run, or None if the run is not enqueued."""
    return QueuePosition.of({QUEUE: newest.metadata(QUEUE)})
