"""The estimated time left of a run, from what its store and its process show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowpregel._inspection.earlier_durations import earlier_durations
from flowpregel._inspection.time_left import CallDurations, TimeLeft, time_left

if TYPE_CHECKING:
    from flowpregel._inspection.call_index import CallIndex
    from flowpregel._inspection.call_rows import CallChanges, CallRow
    from flowpregel._inspection.reader import StoreReader

_MOST_RESTORED: Final = 1_000
"""The greatest number of calls in a restored index (one that was read from a cache)
whose durations are used: those of the last calls.
"""


def estimate_of(
    durations: CallDurations,
    activity: Mapping[str, Any],
    running: Sequence[Mapping[str, Any]],
    now: float,
) -> TimeLeft | None:
    """Return the estimated time until the known calls of a run have ended, or None if
    too little is known or no call runs.

    Args:
        durations: The durations of ended calls.
        activity: The activity of the run, as `StoreReader.live` returns it.
        running: The calls that run, without nested graphs and tasks that make calls
            themselves: these use no worker while they wait, and they end with their
            calls.
        now: The present time, in wall-clock seconds.
    """
    elapsed: list[tuple[str, float]] = []
    for task in running:
        began = task["began"] / 1e9
        seconds = max(0.0, now - began)
        elapsed.append((task["name"], seconds))
    # Other runs may use workers of the same pool. So the estimate assumes that the run
    # keeps the number of workers that it uses now.
    workers = len(running)
    if not workers:
        return None
    return time_left(
        durations,
        elapsed,
        activity["waiting"],
        workers,
    )


class RunTimeLeft:
    """The estimated time until the known calls of a run have ended.

    Calls take about as long as finished calls of the same task, in this run or in the
    last three finished runs of the flow.

    Args:
        reader: The reader of the store.
        thread_id: The thread of the run.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import StoreReader
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def double(number: int) -> int:
        ...         return 2 * number
        ...     double.run(4, id="1")
        ...     reader = StoreReader(saver)
        ...     left = RunTimeLeft(reader, "1")
        ...     for changes in reader.changes("1"):
        ...         left.update(changes)
        ...     print(left.estimate(reader.live("1"), now=0.0))  # the run has ended
        ...     reader.close()
        8
        None
    """

    def __init__(self, reader: StoreReader, thread_id: str) -> None:
        self._reader = reader
        self._thread_id = thread_id
        self._durations = CallDurations()

    def update(self, changes: CallChanges) -> None:
        """Add the durations of calls that have ended.

        Args:
            changes: The calls, as `StoreReader.calls` returns them.
        """
        if changes.is_whole:
            self._durations.clear()
        for call in changes.rows:
            self._add(call)

    def restore(self, index: CallIndex) -> None:
        """Add the durations of the last calls of an index that was restored from a
        cache, so that its first calls did not arrive as changes.

        Args:
            index: The calls of the run.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> from flowpregel.watching import CallIndex, StoreReader
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     left = RunTimeLeft(reader, "1")
            ...     left.restore(CallIndex())
            ...     reader.close()
        """
        count = len(index.table)
        first = max(0, count - _MOST_RESTORED)
        for number in range(first, count):
            call = index.table.row(number)
            self._add(call)

    def _add(self, call: CallRow) -> None:
        """Add the duration of a call, if it is done and was executed."""
        if call.state == "done" and call.attempts:
            self._durations.add(call.name, call.seconds)

    def estimate(
        self,
        activity: Mapping[str, Any] | None,
        now: float,
    ) -> TimeLeft | None:
        """Return the estimated time, or None if too little is known or no call runs.

        Args:
            activity: The activity of the run, as `StoreReader.live` returns it.
            now: The present time, in wall-clock seconds.
        """
        if activity is None:
            return None
        tasks = activity["running"]
        running = [task for task in tasks if task["role"] == "leaf"]
        if running and self._durations.earlier is None:
            self._durations.earlier = earlier_durations(
                self._reader,
                self._thread_id,
            )
        return estimate_of(
            self._durations,
            activity,
            running,
            now,
        )
