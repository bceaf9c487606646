"""The executor that runs jobs on OS threads."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

from flowpregel.executors.local import ThreadExecutor
from tests.unit.executors.quick_pools import LONG, Events, job_of


@dataclass(eq=False)
class Table:
    """A value that may be large."""

    rows: int = 0


def copied(table: Table) -> Table:
    """Return another table."""
    return Table(table.rows)


def test_an_idle_thread_keeps_neither_the_input_nor_the_result_of_its_last_job() -> (
    None
):
    """It may wait long for the next one."""
    executor = ThreadExecutor(1)
    events = Events()
    table = Table()
    freed = threading.Semaphore(0)
    weakref.finalize(table, freed.release)
    job = job_of(copied, table)
    executor.start([job], events)

    result = events.value(job)
    weakref.finalize(result, freed.release)
    del job, result, table

    assert freed.acquire(timeout=LONG)
    assert freed.acquire(timeout=LONG)
    executor.close()
