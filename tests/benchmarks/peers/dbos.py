"""DBOS: every step in a SQLite database, or in PostgreSQL.

Many steps at once are coroutines that one workflow gathers, or functions in OS threads,
each in a workflow of its own. The former are several times faster; the latter is for
functions that would block the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from tests.benchmarks import work
from tests.benchmarks.model import Working


@contextlib.contextmanager
def launched(url: str) -> Iterator[None]:
    """Start DBOS on the database at *url*."""
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    logging.getLogger("dbos").setLevel(logging.ERROR)
    try:
        yield
    finally:
        DBOS.destroy()


def sqlite(folder: Path) -> str:
    """Return the address of a new database in *folder*."""
    return f"sqlite:///{folder / 'dbos.sqlite'}"


@DBOS.step()
def same(value: Any) -> Any:
    """Do nothing."""
    return value


@DBOS.step()
def called(function: str, value: Any) -> Any:
    """Call a function of `work`."""
    return getattr(work, function)(value)


@DBOS.workflow()
def one_by_one(count: int) -> int:
    """Run steps one after the other."""
    return sum(same(n) for n in range(count))


@DBOS.step()
async def same_async(value: Any) -> Any:
    """Do nothing, as a coroutine."""
    return value


@DBOS.workflow()
async def all_gathered(count: int) -> int:
    """Run steps of one workflow at once."""
    return sum(await asyncio.gather(*(same_async(n) for n in range(count))))


@DBOS.workflow()
def same_later(value: Any) -> Any:
    """Do a step, in a workflow of its own."""
    return same(value)


@DBOS.workflow()
def call_later(function: str, value: Any) -> Any:
    """Call a function in a step."""
    return called(function, value)


@DBOS.workflow()
def all_at_once(count: int) -> int:
    """Run workflows of a step each, at once."""
    handles = [DBOS.start_workflow(same_later, n) for n in range(count)]
    return sum(handle.get_result() for handle in handles)


@DBOS.workflow()
def map_all(function: str, items: list[Any]) -> int:
    """Call a function for each item, at once."""
    handles = [DBOS.start_workflow(call_later, function, each) for each in items]
    return len([handle.get_result() for handle in handles])


@contextlib.contextmanager
def steps(count: int, url: str = "") -> Working:
    """Yield a workflow of *count* steps, in SQLite unless *url* says; the time is that
    of one.
    """
    with work.folder() as folder, launched(url or sqlite(folder)):
        yield lambda: work.seconds_of(lambda: one_by_one(count), count)


@contextlib.contextmanager
def gather(count: int) -> Working:
    """Yield *count* trivial steps of a workflow at once; the time is that of one."""
    with work.folder() as folder, launched(sqlite(folder)), asyncio.Runner() as runner:

        async def gathered() -> int:
            return await all_gathered(count)

        yield lambda: work.seconds_of(lambda: runner.run(gathered()), count)


@contextlib.contextmanager
def gather_workflows(count: int) -> Working:
    """Yield *count* workflows of a trivial step at once; the time is that of one."""
    with work.folder() as folder, launched(sqlite(folder)):
        yield lambda: work.seconds_of(lambda: all_at_once(count), count)


@contextlib.contextmanager
def mapped(function: str, given: list[Any]) -> Working:
    """Yield a map over values; the time is that of all."""
    with work.folder() as folder, launched(sqlite(folder)):

        def turn() -> float:
            items = work.values(*given)
            return work.seconds_of(lambda: map_all(function, items))

        yield turn


@DBOS.workflow()
def append_all(count: int) -> int:
    """Run steps that return 200 bytes each."""
    return len([called("item", n) for n in range(count)])


@contextlib.contextmanager
def appended(count: int) -> Working:
    """Yield a workflow of steps that return 200 bytes each, and read what it kept."""

    def turn() -> dict[str, float]:
        with work.folder() as folder, launched(sqlite(folder)):
            name = str(uuid.uuid4())

            def write() -> None:
                with SetWorkflowID(name):
                    append_all(count)

            def read() -> None:
                assert len(DBOS.list_workflow_steps(name)) == count

            return {
                "seconds": work.seconds_of(write, count),
                "state": work.seconds_of(read),
                "bytes": work.bytes_in(folder) / count,
            }

    yield turn
