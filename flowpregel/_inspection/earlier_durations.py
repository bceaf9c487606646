"""The durations of calls in earlier runs of a flow."""

from __future__ import annotations

from typing import Final

from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.time_left import CallDurations

_MOST_RUNS: Final = 3
"""The number of earlier runs that are read, the latest ones. Of each, only the first
calls are read: as many as one answer of the reader has.
"""


def earlier_durations(reader: StoreReader, thread_id: str) -> CallDurations:
    """Return the durations of calls in the last finished runs of the same flow.

    Args:
        reader: The reader of the store.
        thread_id: The thread of the run, which is left out.
    """
    durations = CallDurations()
    threads = _earlier_threads(reader, thread_id)
    # The latest run comes last, because the latest durations are kept.
    threads.reverse()
    for thread in threads:
        changes = reader.calls(thread)
        for call in changes.rows:
            if call.state == "done" and call.attempts:
                durations.add(call.name, call.seconds)
    return durations


def _earlier_threads(reader: StoreReader, thread_id: str) -> list[str]:
    """Return the threads of the last finished runs of the same flow, the latest
    first.
    """
    run = reader.run(thread_id)
    if run is None or run.flow is None:
        return []
    threads = [
        row.thread_id
        for row in reader.runs()
        if row.flow == run.flow and row.status == "done"
    ]
    if thread_id in threads:
        threads.remove(thread_id)
    return threads[:_MOST_RUNS]
