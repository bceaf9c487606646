"""A run at one moment: what its store has, and what its process publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowpregel._inspection.earlier_durations import earlier_durations
from flowpregel._inspection.run_time_left import estimate_of
from flowpregel._inspection.time_left import TimeLeft
from flowpregel.cli.call_counts import CallCounts
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._inspection.error_kinds import ErrorKind
    from flowpregel._inspection.reader import StoreReader
    from flowpregel._inspection.situations import StatusText
    from flowpregel.checkpoint.work import Status

NO_ACTIVITY: Mapping[str, Any] = {
    "running": [],
    "waiting": {},
    "workers": [],
}


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """A run at one moment. Each call is counted once."""

    thread_id: str
    status: Status
    text: StatusText
    now: float
    """The time of the snapshot, in wall-clock seconds."""
    began: float
    """The time at which the run began or resumed, in wall-clock seconds, or *now* if it
    is unknown.
    """
    counts: Mapping[str, Counter[str]]
    """The number of calls by name and category: ``before``, ``done``, ``failed``,
    ``asking``, ``running``, ``unfinished`` and ``waiting``.
    """
    running: Sequence[Mapping[str, Any]] = ()
    """The calls that run now, the longest first, as `StoreReader.live` returns them."""
    reports: Sequence[Mapping[str, Any]] = ()
    """The tasks that made the run's calls, and that report a progress of their own."""
    workers: Sequence[Mapping[str, Any]] = ()
    cpus: float | None = None
    """The number of CPUs that the workers on this machine use now, or None if it is
    unknown.
    """
    pools: Sequence[Mapping[str, Any]] = ()
    """The sizes of the pools, as `StoreReader.live` returns them."""
    errors: Sequence[ErrorKind] = ()
    time_left: TimeLeft | None = None
    """The estimated time until all known calls have ended, or None."""

    @property
    def total(self) -> Counter[str]:
        """The number of all calls by category."""
        return sum(self.counts.values(), Counter[str]())


def cpus_used(
    earlier: Mapping[str, Any] | None,
    later: Mapping[str, Any],
) -> float | None:
    """Return the number of CPUs that workers used between two activities of a run, or
    None if it is unknown.

    Args:
        earlier: The earlier activity, as `StoreReader.live` returns it, or None.
        later: The later activity.

    Example:
        >>> earlier = {"at": 0, "workers": [{"pid": 7, "cpu": 1.0}]}
        >>> later = {"at": 500_000_000, "workers": [{"pid": 7, "cpu": 1.4}]}
        >>> round(cpus_used(earlier, later), 3)
        0.8
    """
    if earlier is None or later["at"] <= earlier["at"]:
        return None
    known = {worker["pid"]: worker.get("cpu") for worker in earlier["workers"]}
    used = 0.0
    for worker in later["workers"]:
        before = known.get(worker["pid"])
        if before is not None and "cpu" in worker:
            used += max(0.0, worker["cpu"] - before)
    seconds: float = (later["at"] - earlier["at"]) / 1e9
    return used / seconds


class RunWatcher:
    """A reader of one run, which reads only the changes since its last read.

    Args:
        reader: The reader of the store.
        thread: The id of the run.
    """

    def __init__(self, reader: StoreReader, thread: str) -> None:
        self._reader = reader
        self._thread = thread
        self._calls = CallCounts()
        self._activity: Mapping[str, Any] | None = None
        """The last activity that the process of the run has published, or None."""
        self._cpus: float | None = None

    def snapshot(self, now: float) -> RunSnapshot:
        """Read the changes, and return a snapshot with the time *now*.

        Raises:
            ConfigurationError: There is no such run.
        """
        # The activity of the run is read before its calls. Calls that end between the
        # two reads can then be subtracted from the activity.
        live = self._reader.live(self._thread)
        if live is not None:
            self._cpus = cpus_used(self._activity, live) or self._cpus
            self._activity = live
            if live["started"] != self._calls.started:
                self._calls.restart(live["started"])
        for changes in self._reader.changes(self._thread, self._calls.mark):
            self._calls.apply(changes)
        row = self._reader.run(self._thread)
        activity = None
        if self._activity is not None:
            activity = self._calls.without_ended(self._activity)
        text = self._reader.status(self._thread, activity)
        if row is None or text is None:
            raise ConfigurationError(
                f"the store has no thread {self._thread!r}; `flowpregel ls` lists them"
            )
        started = self._calls.started / 1e9
        times = (started or now, now)
        if row.status != "running" or activity is None:
            return self._snapshot(row.status, text, NO_ACTIVITY, times)
        return self._snapshot(row.status, text, activity, times)

    def _snapshot(
        self,
        status: Status,
        text: StatusText,
        activity: Mapping[str, Any],
        times: tuple[float, float],
    ) -> RunSnapshot:
        """Return the snapshot of a run.

        Args:
            status: The status of the run.
            text: The status in words.
            activity: The activity, without the calls that have ended since.
            times: The beginning of the run, and the present time.
        """
        began, now = times
        tasks = activity["running"]
        running = [task for task in tasks if task["role"] == "leaf"]
        running.sort(key=lambda task: task["began"])
        reports = [
            task
            for task in tasks
            if task["role"] == "body" and task["done"] is not None
        ]
        waiting = activity["waiting"]
        return RunSnapshot(
            thread_id=self._thread,
            status=status,
            text=text,
            now=now,
            began=began,
            counts=self._counts(running, waiting),
            running=running,
            reports=reports,
            workers=activity["workers"],
            cpus=self._cpus,
            pools=activity.get("pools") or (),
            errors=self._calls.errors(),
            time_left=self._time_left(activity, running, now),
        )

    def _time_left(
        self,
        activity: Mapping[str, Any],
        running: Sequence[Mapping[str, Any]],
        now: float,
    ) -> TimeLeft | None:
        """Return the estimated time until all known calls have ended, or None."""
        durations = self._calls.durations
        if durations.earlier is None and (running or activity["waiting"]):
            durations.earlier = earlier_durations(self._reader, self._thread)
        return estimate_of(durations, activity, running, now)

    def _counts(
        self,
        running: Sequence[Mapping[str, Any]],
        waiting: Mapping[str, int],
    ) -> dict[str, Counter[str]]:
        """Return the number of calls by name and category."""
        counts = {
            name: Counter(count)
            for name, count in self._calls.counts.items()
            if name not in self._calls.bodies
        }
        for name, number in waiting.items():
            counts.setdefault(name, Counter())["waiting"] += number
        for task in running:
            count = counts.setdefault(task["name"], Counter())
            count["running"] += 1
            record = self._calls.open_calls.get(task["id"])
            if record is not None:
                # The call runs again, but its record is that of an earlier attempt,
                # which failed or saved its state. The call is no longer counted under
                # the state of that attempt.
                category = "asking" if record.state == "waiting" else record.state
                count[category] -= 1
        return {name: count for name, count in counts.items() if count.total() > 0}
