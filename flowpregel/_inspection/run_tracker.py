"""The tracked changes of the last runs in a store: which tasks changed, and when.

::

    thread ── checkpoint (input) ── checkpoint ── newest checkpoint
                 │ complete            │ complete     │ read each time
                 ▼                     ▼              ▼
              its tasks ──────────────────────────► log of changed tasks
                 │                                    │ after a mark
                 └─── records read when requested ────┴──────► rows, for the caller

The tracker's memory:

* A `RunCursor` belongs to a thread's last run. Its log names each task that changed, by
  checkpoint and digest. A mark is a position in the log.
* A `TaskCursor` belongs to a checkpoint. It stores the state and the checksum of each
  task, and finds the tasks that changed. When another checkpoint has followed, the
  tasks do not change any more, so the cursor is discarded after it has read all of
  them.
* A row is created from the task's record when the caller requests it. No row is
  remembered.

If the result of a known task was deleted, or if a checkpoint does not continue the run,
the log is no longer valid. The tracker then starts a new `RunCursor`, whose marks
differ from all earlier marks. Since the caller's old mark is not in the new log, the
caller gets all rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from flowpregel._core.records import Address
from flowpregel._inspection.cursors import DIGEST, CheckpointView, TaskCursor
from flowpregel._inspection.reader_cache import ReaderCache
from flowpregel._inspection.run_cursor import RunCursor
from flowpregel._inspection.tasks import TaskLocation, TaskRecords
from flowpregel.checkpoint.layout import NamespaceRecord
from flowpregel.storage.locks import LockHolder

_MOST_RUNS = 16
"""The number of runs whose changes are tracked: those that were requested last."""


class RunOwners(Protocol):
    """A look-up of the process that runs a run."""

    def owner(self, address: Address) -> LockHolder | None:
        """Return the process that runs a run (has its lease), or None."""


class RunTracker:
    """The tracked changes of the last runs in a store.

    Args:
        tasks: The reader of the tasks' records.
        owners: A look-up of the process that runs a run.
        store_mark: A function that returns the store's mark.
        most: The limit on the records that are read at once.
        cache: What an earlier reader has remembered, or None.
    """

    def __init__(
        self,
        tasks: TaskRecords,
        *,
        owners: RunOwners,
        store_mark: Callable[[], int],
        most: int,
        cache: ReaderCache | None,
    ) -> None:
        self._tasks = tasks
        self._owners = owners
        self.store_mark: Callable[[], int] = store_mark
        self._most = most
        self._cache = cache
        self._newest: dict[bytes, CheckpointView] = {}
        """The newest checkpoint of each namespace, by the namespace's key prefix."""
        self.runs: dict[str, RunCursor] = {}
        """The tracked run of each thread, in the order of the last requests."""

    def forget_others(self, namespaces: Collection[NamespaceRecord]) -> None:
        """Forget the checkpoints of all namespaces that are not in *namespaces*, such
        as those of deleted threads.
        """
        prefixes = {namespace.prefix for namespace in namespaces}
        for prefix in self._newest.keys() - prefixes:
            del self._newest[prefix]

    def namespaces(self, thread_id: str) -> dict[str, NamespaceRecord]:
        """Return the records of a thread's namespaces, by name."""
        records = self._tasks.tables.used(thread_id)
        return {record.namespace: record for record in records}

    def newest(self, namespace: NamespaceRecord) -> CheckpointView:
        """Return the newest checkpoint of a namespace."""
        return self._checkpoint(namespace, namespace.newest or "")

    def _checkpoint(
        self,
        namespace: NamespaceRecord,
        id: str,
    ) -> CheckpointView:
        """Return the `CheckpointView` of the checkpoint with an id. The view of a
        namespace's newest checkpoint is remembered, with the states of the checkpoint's
        tasks.
        """
        checkpoint = self._newest.get(namespace.prefix)
        if checkpoint is None or checkpoint.id != id:
            checkpoint = CheckpointView(self._tasks, namespace, id)
            if id == namespace.newest:
                self._newest[namespace.prefix] = checkpoint
        return checkpoint

    def updated_run(self, thread_id: str) -> RunCursor:
        """Return the updated cursor of a thread's last run."""
        self.restore(thread_id)
        run = self.runs.pop(thread_id, None) or RunCursor()
        if not self._update(run, thread_id):
            # A result was deleted, or another run has begun, so all that was read is
            # forgotten, and read again.
            namespaces = self.namespaces(thread_id)
            for namespace in namespaces.values():
                self._newest.pop(namespace.prefix, None)
            run = RunCursor()
            self._update(run, thread_id)
        self.runs[thread_id] = run
        while len(self.runs) > _MOST_RUNS:
            threads = iter(self.runs)
            oldest = next(threads)
            del self.runs[oldest]
        return run

    def restore(self, thread_id: str) -> None:
        """Begin from what an earlier reader has read of a thread."""
        if self._cache is None:
            return
        run = self._cache.run(thread_id)
        if run is None:
            return
        self.runs[thread_id] = run
        namespaces = self.namespaces(thread_id)
        for cursor in run.open_cursors.values():
            address = cursor.location.address
            namespace = namespaces.get(address.namespace)
            if namespace is None:
                continue
            newest = self.newest(namespace)
            if newest.tasks.location == cursor.location:
                newest.tasks = cursor

    def _update(
        self,
        run: RunCursor,
        thread_id: str,
    ) -> bool:
        """Add changes of *run* to the log, or return False if the log is not valid."""
        run.was_behind = bool(run.behind)
        if not run.behind and not self._find_checkpoints(run, thread_id):
            return False
        remaining = self._most
        while run.behind and remaining > 0:
            index, is_last = run.behind[0]
            tasks = self._cursor_at(run, index)
            if is_last:
                tasks.end_step()
            if not tasks.advance(
                remaining,
                is_held=run.is_held,
                is_last=is_last,
                store_mark=run.store_mark,
            ):
                # The tasks could not be read yet. The store's mark is reset, so that
                # the next update reads them even if nothing is committed in between.
                run.store_mark = -1
            if tasks.is_taken_back:
                return False
            digests = bytes(tasks.changes)
            tasks.changes.clear()
            remaining -= len(digests) // DIGEST
            run.add_changes(index, digests)
            if not tasks.is_behind:
                run.finish_first(is_last=is_last)
        return True

    def _cursor_at(
        self,
        run: RunCursor,
        index: int,
    ) -> TaskCursor:
        """Return the cursor over the tasks of a checkpoint of *run*."""
        cursor = run.open_cursors.get(index)
        if cursor is None:
            location = run.locations[index]
            cursor = self._newest_cursor(location)
            if cursor is None:
                cursor = TaskCursor(self._tasks, location)
            # If the tasks of the newest checkpoint were read only for its status, the
            # log of this run does not have their changes yet, so the cursor reports
            # them again.
            cursor.repeat_changes()
            run.open_cursors[index] = cursor
        return cursor

    def _newest_cursor(self, location: TaskLocation) -> TaskCursor | None:
        """Return the task cursor of a namespace's newest checkpoint.

        None is returned if *location* is not that checkpoint.
        """
        prefix = location.key[:8]
        newest = self._newest.get(prefix)
        if newest is None or newest.tasks.location != location:
            return None
        return newest.tasks

    def _find_checkpoints(
        self,
        run: RunCursor,
        thread_id: str,
    ) -> bool:
        """Queue the checkpoints of *run* that must be read.

        Returns:
            False if the thread's last run is not *run*.
        """
        store_mark = self.store_mark()
        if store_mark == run.store_mark:
            return True
        owner = self._owners.owner(Address(thread_id))
        run.is_held = owner is not None
        namespaces = self.namespaces(thread_id)
        for name in sorted(namespaces):
            namespace = namespaces[name]
            if not self._find_checkpoints_of(run, namespace):
                return False
        run.store_mark = store_mark
        return True

    def _find_checkpoints_of(
        self,
        run: RunCursor,
        namespace: NamespaceRecord,
    ) -> bool:
        """Queue the checkpoints of a namespace that must be read.

        Returns:
            False if the namespace's last run is not *run*.
        """
        known_index = run.newest.get(namespace.namespace)
        known_id: str | None = None
        if known_index is not None:
            known_id = run.locations[known_index].address.checkpoint_id
        newest_index = len(run.locations)
        oldest: CheckpointView | None = None
        for checkpoint in self._checkpoints_since(run, namespace, known_id):
            # The tasks of a checkpoint are complete if another checkpoint has
            # followed.
            is_last = checkpoint.id != namespace.newest
            run.behind.append((len(run.locations), is_last))
            run.locations.append(checkpoint.tasks.location)
            oldest = checkpoint
        if known_index is not None:
            if oldest is not None and not oldest.continues(known_id):
                return False
            is_last = known_id != namespace.newest
            run.behind.append((known_index, is_last))
        if oldest is not None:
            run.newest[namespace.namespace] = newest_index
        return True

    def _checkpoints_since(
        self,
        run: RunCursor,
        namespace: NamespaceRecord,
        known_id: str | None,
    ) -> Iterator[CheckpointView]:
        """Yield the checkpoints of a run after the known one, the newest first.

        Of a nested graph, only the checkpoints are yielded that belong to a superstep
        of the run's outermost graph.
        """
        root_ids = run.root_ids if namespace.namespace else set()
        id = namespace.newest
        while id is not None and id != known_id:
            checkpoint = self._checkpoint(namespace, id)
            if not checkpoint.exists:
                return
            if root_ids and checkpoint.root_id not in root_ids:
                return
            yield checkpoint
            if checkpoint.record.source == "input":
                return
            id = checkpoint.record.parent_id
