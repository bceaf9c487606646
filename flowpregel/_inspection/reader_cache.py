"""The data that earlier readers of a store remembered, in the user's cache files.

A large run has three files, which were stored together and have the same snapshot id:
one with the states of the tasks, which the list of runs needs; one with the data that a
page needs first; and one with the index of the calls, which is read only when the page
asks for more.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from flowpregel._inspection.cache_files import CacheFiles
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.columns import Columns
from flowpregel._inspection.run_cursor import RunCursor
from flowpregel._inspection.snapshots import (
    VERSION,
    index_columns,
    restored_index,
    restored_run,
    run_columns,
)
from flowpregel._inspection.tasks import TaskRecords

LEAST_CALLS: Final = 2_000
"""The number of calls from which a run is cached. Fewer calls are read so fast that a
cache is not needed.
"""


class ReaderCache:
    """The cache of a reader: what earlier readers of the store remembered.

    Args:
        store: The path of the store.
        tasks: The reader of the tasks' records.
    """

    def __init__(self, store: str, tasks: TaskRecords) -> None:
        self._files = CacheFiles(store, tasks.tables.meta)
        self._tasks = tasks
        self._tried: set[str] = set()
        """The threads whose files were searched for, and read if they existed."""
        self._snapshots: dict[str, str] = {}
        """The snapshot id of each restored thread."""
        self._marks: dict[str, tuple[int, int]] = {}
        """The mark of each restored thread after the last change (a position in the log
        of changes), and the store's mark at that time (a number that each commit
        changes).
        """

    def run(self, thread_id: str) -> RunCursor | None:
        """Return what an earlier reader remembered of a thread, or None.

        The file of a thread is read once.
        """
        if thread_id in self._tried:
            return None
        self._tried.add(thread_id)
        columns = self._load(f"tasks {thread_id}")
        if columns is None:
            return None
        run = restored_run(columns, self._tasks)
        self._snapshots[thread_id] = columns.head["snapshot"]
        self._marks[thread_id] = (run.mark, run.store_mark)
        return run

    def index(self, thread_id: str) -> CallIndex:
        """Return the index of a thread's calls that was stored together with the data
        that `run` returns, or an empty index.
        """
        snapshot = self._snapshots.pop(thread_id, None)
        if snapshot is None:
            return CallIndex()
        columns = self._load(f"calls {thread_id}")
        if columns is None:
            return CallIndex()
        if columns.head["snapshot"] != snapshot:
            return CallIndex()
        return restored_index(columns)

    def first_answers(self, thread_id: str) -> Any:
        """Return the data that a page of a thread needs first, which was stored
        together with the data that `run` returns, or None.
        """
        snapshot = self._snapshots.get(thread_id)
        if snapshot is None:
            return None
        columns = self._load(f"first {thread_id}")
        if columns is None or columns.head["snapshot"] != snapshot:
            return None
        return columns.head["answers"]

    @classmethod
    def of_store(cls, store: str, tasks: TaskRecords) -> ReaderCache | None:
        """Return the cache of a store on disk, or None for a store at a URL. A restored
        backup of a database may have the mark of the cached data, but other content, so
        a cache of it could return wrong data.
        """
        if not os.path.exists(store):
            return None
        return cls(store, tasks)

    def keep(
        self,
        runs: Mapping[str, RunCursor],
        indexes: Mapping[str, CallIndex],
    ) -> None:
        """Store what a reader remembers, and remove the files of threads that the store
        no longer has.

        Args:
            runs: The tracked changes of runs by thread.
            indexes: The calls of runs by thread.
        """
        for thread_id, index in indexes.items():
            run = runs.get(thread_id)
            if run is not None:
                for _ in self.keep_in_steps(thread_id, run, index):
                    pass
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove the files of threads that the store no longer has."""
        names: set[str] = set()
        for namespace in self._tasks.tables.used(None):
            names.add(f"tasks {namespace.thread_id}")
            names.add(f"calls {namespace.thread_id}")
            names.add(f"first {namespace.thread_id}")
        self._files.remove_others(names)

    def keep_in_steps(
        self,
        thread_id: str,
        run: RunCursor,
        index: CallIndex,
        first_answers: Callable[[], Any] | None = None,
    ) -> Iterator[None]:
        """Store what a reader remembers of a thread, and yield after each part of the
        work. Nothing is stored if the run is small or has not been read to its end, or
        if the index changes before all its columns are packed.

        Args:
            thread_id: The id of the thread.
            run: The tracked changes of the thread's last run.
            index: The calls of that run.
            first_answers: A function that returns the data that a page needs first, as
                values that JSON supports, or None to store none.
        """
        marks = (run.mark, run.store_mark)
        if self._marks.get(thread_id) == marks:
            return
        if len(index.table) < LEAST_CALLS:
            return
        is_running = index.counts["running"] > 0
        if is_running or index.mark != run.mark:
            return
        tasks = run_columns(run)
        if tasks is None:
            return
        snapshot = secrets.token_hex(16)
        version = (index.epoch, index.version)
        calls: Columns | None = None
        for part in index_columns(index):
            calls = part
            yield
            if (index.epoch, index.version) != version:
                return
        assert calls is not None
        if first_answers is not None:
            first = Columns({"answers": first_answers()}, {})
            self._save(f"first {thread_id}", first, snapshot)
            yield
            if (index.epoch, index.version) != version:
                return
        if self._save(f"calls {thread_id}", calls, snapshot):
            yield
            self._save(f"tasks {thread_id}", tasks, snapshot)
            self._marks[thread_id] = marks
            self._remove_others()

    def _load(self, name: str) -> Columns | None:
        data = self._files.load(name)
        if data is not None:
            # The file may come from another version of flowpregel, whose data has
            # another form.
            with suppress(ValueError):
                return Columns.from_bytes(data, VERSION)
        return None

    def _save(
        self,
        name: str,
        columns: Columns,
        snapshot: str,
    ) -> bool:
        head = {**columns.head, "snapshot": snapshot}
        data = Columns(head, columns.blobs).to_bytes(VERSION)
        return self._files.save(name, data)
