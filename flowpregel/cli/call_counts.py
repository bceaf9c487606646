"""The calls of a run by name and category, counted as their records change."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flowpregel._inspection.error_kinds import ErrorKind, FailedCalls
from flowpregel._inspection.time_left import CallDurations

if TYPE_CHECKING:
    from flowpregel._inspection.call_rows import CallChanges, CallRow

ENDED = ("done", "failed", "asking")
"""The categories of calls that have run, and do not run now."""


class CallCounts:
    """The number of a run's calls by name and category, and the calls that failed.

    The categories are ``done``, ``failed``, ``asking``, and ``before`` for a call that
    was done before the process of the run began or resumed it.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.durations: CallDurations = CallDurations()
        """The durations of the calls that are done, by name."""
        self.open_calls: dict[str, CallRow] = {}
        """The calls that have records but have not succeeded, by id."""
        self.started: int = 0
        """The time at which the run began or resumed, in wall-clock nanoseconds, or 0
        if it is unknown.
        """
        self.mark: int = 0
        """The mark (a position among all changes of calls) after the last change that
        was read; 0 to read all calls again.
        """
        self.bodies: set[str] = set()
        """The names of the tasks that made calls, and are not calls themselves."""
        self._callers: set[str] = set()
        """The paths of the tasks that made calls. A path is the position of a task in
        its superstep.
        """
        self._names: dict[str, str] = {}
        """The names of the tasks that are not calls, by path (the position in the
        superstep).
        """
        self._failed = FailedCalls()
        self._late: list[CallRow] = []
        """The calls whose records changed, without those that had ended when the
        activity of the run was last published.
        """

    def restart(self, started: int) -> None:
        """Count all calls again, for a run that has begun or resumed."""
        self.started = started
        self.mark = 0

    def apply(self, changes: CallChanges) -> None:
        """Update the counts by *changes*: the changes since the last update."""
        if changes.is_whole:
            self.open_calls.clear()
            self.counts.clear()
            self.durations.clear()
            self.bodies.clear()
            self._callers.clear()
            self._names.clear()
            self._late.clear()
        for call in changes.rows:
            before = self.open_calls.pop(call.id, None)
            if before is not None:
                self._add(before, -1)
            self._add(call, 1)
            if call.state != "done":
                self.open_calls[call.id] = call
        self._failed.update(changes)
        self._late += changes.rows
        self._find_bodies(changes.rows)
        self.mark = changes.mark

    def _find_bodies(self, rows: Iterable[CallRow]) -> None:
        """Note which tasks are bodies (tasks that made calls), from these rows and
        those of earlier changes.
        """
        for row in rows:
            if row.caller:
                self._callers.add(row.caller)
            if not row.text:
                self._names[row.path] = row.name
        paths = self._callers & self._names.keys()
        self.bodies.update(self._names[path] for path in paths)

    def _add(self, call: CallRow, number: int) -> None:
        """Add *number* to the count of calls with the name and category of *call*."""
        category = self._category(call)
        self.counts[call.name][category] += number
        if call.state == "done" and call.attempts:
            # Here *number* is always 1: a call that is done never changes, so it is
            # never subtracted.
            self.durations.add(call.name, call.seconds)

    def _category(self, call: CallRow) -> str:
        """Return the category under which a call is counted."""
        if call.state == "done" and call.began < self.started:
            return "before"
        if call.state == "waiting":
            return "asking"
        return call.state

    def without_ended(self, activity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the activity that a run has published, without the calls that have
        ended since.

        The activity was published some time before the calls were read from the store.
        So a call that ended in between would be counted twice: as running, and as
        ended.
        """
        published: int = activity.get("at", 0)
        self._late = [row for row in self._late if _ended_at(row) > published]
        ended = {row.id: row for row in self._late if row.state in ("done", "failed")}
        running: list[Mapping[str, Any]] = []
        for task in activity["running"]:
            row = ended.pop(task["id"], None)
            # A failed call that has begun another attempt since the failure is running,
            # so it stays in the list.
            if row is None or row.began < task["began"]:
                running.append(task)
        waiting = Counter(activity["waiting"])
        for row in ended.values():
            # A call that was planned after the counts were published is not among the
            # waiting calls, so it is not subtracted.
            if row.planned <= published:
                waiting[row.name] -= 1
        return {**activity, "running": running, "waiting": dict(+waiting)}

    def errors(self) -> list[ErrorKind]:
        """Return the failed calls by kind of error, the most frequent kind first."""
        return self._failed.kinds()


def _ended_at(call: CallRow) -> float:
    """Return the wall-clock nanoseconds at which a call's last attempt ended."""
    return call.began + call.seconds * 1e9
