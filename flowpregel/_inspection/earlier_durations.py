"""The durations of calls in earlier runs of a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import eq
from typing import Final

from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.time_left import CallDurations, PlannedTime, time_left

_MOST_RUNS: Final = 3
"""The number of earlier runs that are read: the latest ones. Only the first calls of
each run are read: as many as the reader returns at once.
"""


def earlier_durations(reader: StoreReader, thread_id: str) -> CallDurations:
    """Return the durations of calls in the last finished runs of the same flow.

    Args:
        reader: The reader of the store.
        thread_id: The thread of the run, which is left out.
    """
    durations = CallDurations()
    run = reader.run(thread_id)
    if run is None or run.flow is None:
        return durations
    calls = _earlier_calls(
        reader,
        thread_id,
        partial(eq, run.flow),
    )
    for call in calls:
        durations.add(call.name, call.seconds)
    return durations


def planned_time(
    reader: StoreReader,
    thread_id: str,
    is_same_flow: Callable[[str], bool],
    counts: Mapping[str, int],
) -> PlannedTime | None:
    """Return the estimated time of calls that a run would make, or None if too little
    is known.

    The durations are those of the run itself and of the last finished runs of the flow.
    The estimate assumes that as many calls run at once as did in these runs.

    Args:
        reader: The reader of the store.
        thread_id: The thread of the run, which may not have begun.
        is_same_flow: A function that returns whether a recorded flow is that of the
            run.
        counts: The number of calls of each task, by name.
    """
    durations = CallDurations()
    at_once = 0
    earlier_calls = _earlier_calls(
        reader,
        thread_id,
        is_same_flow,
    )
    own_calls = _executed_calls(reader, thread_id)
    for calls in (earlier_calls, own_calls):
        relevant = [call for call in calls if call.name in counts]
        for call in relevant:
            durations.add(call.name, call.seconds)
        at_once = max(at_once, _most_at_once(relevant))
    estimate = time_left(
        durations,
        (),
        counts,
        max(1, at_once),
    )
    if estimate is None:
        return None
    return PlannedTime(estimate, at_once)


def _earlier_calls(
    reader: StoreReader,
    thread_id: str,
    is_same_flow: Callable[[str], bool],
) -> list[CallRow]:
    """Return the calls of the last finished runs of a flow. The calls of the latest run
    come last, because `CallDurations` keeps only the durations that are added last.
    """
    threads: list[str] = []
    for row in reader.runs():
        is_finished = row.status == "done"
        if not is_finished or row.flow is None or row.thread_id == thread_id:
            continue
        if is_same_flow(row.flow):
            threads.append(row.thread_id)
    calls: list[CallRow] = []
    for thread in reversed(threads[:_MOST_RUNS]):
        calls += _executed_calls(reader, thread)
    return calls


def _executed_calls(reader: StoreReader, thread_id: str) -> list[CallRow]:
    """Return the calls of a run that are done and were executed. Only the first calls
    are searched, as many as the reader returns at once.
    """
    changes = reader.calls(thread_id)
    calls: list[CallRow] = []
    for call in changes.rows:
        if call.state == "done" and call.attempts:
            calls.append(call)  # noqa: PERF401 - read as a step
    return calls


def _most_at_once(calls: Iterable[CallRow]) -> int:
    """Return the greatest number of calls that ran at the same time."""
    changes: list[tuple[float, int]] = []
    for call in calls:
        ended = call.began + call.seconds * 1e9
        changes.append((call.began, 1))
        changes.append((ended, -1))
    changes.sort()
    count = 0
    most = 0
    for _, change in changes:
        count += change
        most = max(most, count)
    return most
