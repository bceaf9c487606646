"""The conversion of a reader's memory, and of the index of a run's calls, to columns
and back.

::

    RunCursor, TaskCursors ── run_columns ────► Columns ── restored_run ───► RunCursor
    CallIndex ── index_columns ──► Columns ── restored_index ──► CallIndex

A restored reader continues where the former one stopped: it reads the records that were
committed since, and compares the checksums of results that may have been deleted.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from flowpregel._core.records import Address
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_query import CallQuery
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.call_table import NUMBERS, CallTable
from flowpregel._inspection.columns import (
    Blob,
    Columns,
    PackedCells,
    pack_array,
    pack_cells,
    pack_texts,
    unpack_array,
    unpack_texts,
)
from flowpregel._inspection.cursors import FailedTasks, TaskCursor
from flowpregel._inspection.run_cursor import RunCursor
from flowpregel._inspection.tasks import TaskLocation, TaskRecords

VERSION: Final = f"5 {' '.join(CallRow._fields)}"
"""The version of the columns, which depends on the fields of a row."""


def run_columns(run: RunCursor) -> Columns | None:
    """Return the tracked changes of a run as columns.

    None is returned if a run holds the thread, or if a task was not read yet.
    """
    cursors = run.open_cursors
    is_behind = any(cursor.is_behind for cursor in cursors.values())
    if run.is_held or run.behind or is_behind:
        return None
    locations: list[list[Any]] = []
    for location in run.locations:
        address = location.address
        fields = [
            address.thread_id,
            address.namespace,
            address.checkpoint_id,
            location.step,
            location.key.hex(),
        ]
        locations.append(fields)
    blobs: dict[str, Blob] = {"log": bytes(run.log)}
    open_cursors: list[Any] = []
    for index, cursor in cursors.items():
        data, mark = cursor.to_bytes()
        states = dict(cursor.states)
        failed = cursor.known_failed
        open_cursors.append([index, states, mark, failed])
        blobs[f"tasks {index}"] = data
    head = {
        "first": run.first,
        "locations": locations,
        "newest": run.newest,
        "ended": run.ended,
        "store_mark": run.store_mark,
        "cursors": open_cursors,
    }
    return Columns(head, blobs)


def restored_run(columns: Columns, tasks: TaskRecords) -> RunCursor:
    """Return the tracked changes of a run from columns.

    Args:
        columns: The columns that `run_columns` returned.
        tasks: The reader of the tasks' records.
    """
    head = columns.head
    locations: list[TaskLocation] = []
    for thread_id, namespace, checkpoint_id, step, key in head["locations"]:
        address = Address(thread_id, namespace, checkpoint_id)
        location = TaskLocation(address, step, bytes.fromhex(key))
        locations.append(location)
    cursors: dict[int, TaskCursor] = {}
    for index, states, mark, failed in head["cursors"]:
        location = locations[index]
        cursor = TaskCursor(tasks, location)
        cursor.restore(
            bytes(columns.blobs[f"tasks {index}"]),
            mark,
            Counter(states),
        )
        if failed is not None:
            cursor.known_failed = FailedTasks(*failed)
        cursors[index] = cursor
    return RunCursor(
        first=head["first"],
        locations=locations,
        newest=head["newest"],
        log=bytearray(columns.blobs["log"]),
        open_cursors=cursors,
        ended=Counter(head["ended"]),
        store_mark=head["store_mark"],
    )


def index_columns(index: CallIndex) -> Iterator[Columns | None]:
    """Yield None after each part of the work, and at the end the calls of a run as
    columns.

    Args:
        index: The calls, none of which is running. They must not change in between.
    """
    table = index.table
    blobs: dict[str, Blob] = {}
    for name, column in table.cells.items():
        if name in NUMBERS:
            blobs[name] = column.tobytes()
        else:
            blobs[name] = pack_texts(column)
        yield None
    blobs["urgency"] = table.urgency.tobytes()
    blobs["sources"] = pack_texts(table.packed_sources)
    yield None
    for name, cells in table.fields.items():
        rows, values = pack_cells(cells)
        blobs[f"rows of {name}"] = rows
        blobs[f"values of {name}"] = values
        yield None
    # The usual order of the calls (the most urgent state first) is stored too, because
    # the page requests the calls in this order first.
    numbers = index.select(CallQuery())
    blobs["order"] = pack_array("q", numbers)
    head = {
        "mark": index.mark,
        "counts": index.counts,
        "body_counts": index.body_counts,
        "fields": list(table.fields),
    }
    yield Columns(head, blobs)


def restored_index(columns: Columns) -> CallIndex:
    """Return the calls of a run from columns that `index_columns` returned.

    The former index may have changed after its columns were stored, and a page may
    have rows of these changes. So the index has a new epoch, for which the page
    requests all rows again.
    """
    blobs = columns.blobs
    table_columns: dict[str, Any] = {}
    for name in CallRow._fields:
        blob = blobs[name]
        code = NUMBERS.get(name)
        if code is None:
            table_columns[name] = unpack_texts(blob)
        else:
            table_columns[name] = unpack_array(code, blob)
    fields: dict[str, PackedCells] = {}
    for name in columns.head["fields"]:
        rows = blobs[f"rows of {name}"]
        fields[name] = PackedCells(rows, blobs[f"values of {name}"])
    urgency: array[int] = unpack_array("b", blobs["urgency"])
    table = CallTable.of(
        table_columns,
        fields,
        urgency,
        unpack_texts(blobs["sources"]),
    )
    head = columns.head
    index = CallIndex()
    index.restore(
        table,
        counts=Counter(head["counts"]),
        body_counts=Counter(head["body_counts"]),
        mark=head["mark"],
        epoch=time.time_ns() // 1_000,
    )
    numbers: array[int] = unpack_array("q", blobs["order"])
    index.restore_order(numbers)
    return index
