"""A reader of the runs in a store, which reads only the changes since its last read.

::

    thread ── checkpoint (input) ── checkpoint ── newest checkpoint
                 │ complete            │ complete     │ read each time
                 ▼                     ▼              ▼
              its tasks ──────────────────────────► log of changed tasks
                 │                                    │ after a mark
                 └─── read again, where they lie ─────┴──────► rows, for the caller

The reader's memory:

* A `RunCursor` belongs to a thread's last run. Its log names each task that changed, by
  checkpoint and digest. A mark is a position in the log.
* A `TaskCursor` belongs to a checkpoint. It stores the state and the checksum of each
  task, and finds the tasks that changed. When another checkpoint has followed, the
  tasks do not change any more, so the cursor is discarded after it has read all of
  them.
* A row is created from the task's record when the caller requests it. No row is
  remembered.

If a known task was undone, or if a checkpoint does not continue the run, the log is no
longer valid. The reader then starts a new `RunCursor`, whose marks differ from all
earlier marks. Since the caller's old mark is not in the new log, the caller gets all
rows again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flowpregel._core.records import LIMIT_REACHED, Address
from flowpregel._inspection import checkpoint_tasks
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.cursors import DIGEST, CheckpointView, TaskCursor
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.reader_cache import ReaderCache
from flowpregel._inspection.run_cursor import RunCursor
from flowpregel._inspection.situations import (
    RunFacts,
    StatusText,
    describe_reading,
    describe_status,
)
from flowpregel._inspection.steps import RunBeginning, StepReader, StepRow, StepValues
from flowpregel._inspection.tasks import (
    CallChanges,
    CallPart,
    CallState,
    RunRow,
    TaskLocation,
    TaskRecords,
)
from flowpregel.checkpoint.base import FLOW, QUEUE
from flowpregel.checkpoint.layout import NamespaceRecord
from flowpregel.checkpoint.paused import PAUSED, PausedRuns
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.work import status_from
from flowpregel.executors.processes.coordinator.crash_report import cpu_of, memory_of
from flowpregel.storage.locks import LockHolder

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_FEW = 100
"""The number of tasks that are read of each run after a run that is not read whole."""
_MOST_RUNS = 16
"""The number of runs whose changes are tracked. They are the last requested runs."""
Counting: TypeAlias = Literal["no", "some", "all"]
"""The calls that `StoreReader.status` counts: none; the calls that have been read, and
some more; or all.
"""


class StoreReader:
    """A reader of the runs of one store, for a caller that polls.

    The reader remembers some fifty bytes for each task, and reads rows from the store
    when the caller requests them. OS threads that share a reader must protect it with a
    lock. None of the user's code is imported or run.

    Args:
        saver: The open store. The reader opens it once more, with an inert codec.
        most: The limit on the calls that are read and returned at once. The next call
            returns more.
        is_patient: True to read all tasks of a run's newest checkpoint before the row
            of the run is returned. Otherwise `RunRow.is_behind` may be true, and the
            caller asks again when `postponed` changes.
        is_cached: True to begin from what an earlier reader has passed to `keep`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.func import entrypoint, task
        >>> @task(executor="inline")
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def total(numbers: list[int]) -> int:
        ...         return sum(future.result() for future in double.map(numbers))
        ...     total.run([1, 2], id="1")
        ...     reader = StoreReader(saver)
        ...     print(reader.run("1").status)
        ...     print(reader.status("1").sentence)
        ...     print([row.step for row in reader.steps("1", most=10)])
        ...     newest = reader.steps("1", most=1)[0].checkpoint_id
        ...     print(sorted(row.text for row in reader.calls("1").rows))
        ...     print(reader.values("1", newest).after)
        ...     reader.close()
        6
        done
        Done.
        [0, -1]
        ['', 'double(1)', 'double(2)']
        {'result': 6, 'previous': 6}
    """

    def __init__(
        self,
        saver: DurableSaver,
        most: int = 5_000,
        *,
        is_patient: bool = True,
        is_cached: bool = False,
    ) -> None:
        self._most = most
        self._is_patient = is_patient
        self.postponed: int = 0
        """The number of rows that were returned before all tasks had been read."""
        codec = InertCodec()
        self._store, self._leases = saver.opened_to_look(codec)
        self._tasks = TaskRecords(self._store)
        self._tables = self._tasks.tables
        self._steps = StepReader(self._tables)
        self._cache: ReaderCache | None = None
        if is_cached:
            self._cache = ReaderCache.of_store(saver.path, self._tasks)
        self._newest: dict[bytes, CheckpointView] = {}
        """The newest checkpoint of each namespace, by the namespace's key prefix."""
        self._runs: dict[str, RunCursor] = {}
        """The tracked run of each thread, in the order of the last requests."""

    def close(self) -> None:
        """Close the reader's view of the store."""
        self._store.close()

    def mark(self) -> int:
        """Return a number that stays the same as long as nothing is committed.

        For a moment after a commit, each call returns a different number. A call takes
        some microseconds.
        """
        return int(self._store.change_counter())

    # ------------------------------------------------------------ runs

    def runs(self) -> list[RunRow]:
        """Return all runs. The run that changed last comes first."""
        namespaces = list(self._tables.used(None))
        # Threads that were deleted are forgotten.
        prefixes = {namespace.prefix for namespace in namespaces}
        for prefix in self._newest.keys() - prefixes:
            del self._newest[prefix]
        rows: list[RunRow] = []
        most = self._most
        for namespace in namespaces:
            if namespace.namespace:
                continue
            row = self._run_row(namespace, most)
            if row.is_behind:
                # The answer is not delayed by further large runs, but small runs are
                # still read whole.
                most = _FEW
            rows.append(row)
        return sorted(
            rows,
            key=lambda row: row.updated,
            reverse=True,
        )

    def run(self, thread_id: str) -> RunRow | None:
        """Return one run, or None if there is no such thread.

        Args:
            thread_id: The id of the thread.
        """
        namespace = self._namespaces(thread_id).get("")
        if namespace is None:
            return None
        return self._run_row(namespace)

    def status(
        self,
        thread_id: str,
        activity: Mapping[str, Any] | None = None,
        *,
        counting: Counting = "all",
    ) -> StatusText | None:
        """Return the status of a run as a sentence with the next step.

        None is returned if there is no such thread.

        Args:
            thread_id: The id of the thread.
            activity: The last activity of the run, which `live` returned, or None.
            counting: The calls to count: ``"all"``; ``"some"``, if the caller will ask
                again and must not wait; or ``"no"``. A sentence without counts does not
                mention the failed calls of a run that is done.
        """
        namespace = self._namespaces(thread_id).get("")
        if namespace is None:
            return None
        row = self._run_row(namespace)
        if row.is_behind:
            return describe_reading(sum(row.states.values()))
        states = self._counted_states(thread_id, counting)
        newest = self._checkpoint(namespace, namespace.newest or "")
        owner = f"process {row.pid} on {row.host}" if row.pid else ""
        if row.status == "stopped":
            owner = str(self._leases.dead_owner(Address(thread_id)) or "")
        facts = RunFacts(
            thread_id=thread_id,
            status=row.status,
            names_flow=row.flow is not None,
            finished=None if states is None else states["done"],
            failed=0 if states is None else states["failed"],
            unfinished=row.states.get("unfinished", 0),
            failure=checkpoint_tasks.failed_tasks(self._tasks, newest).first
            if row.status == "failed"
            else "",
            questions=checkpoint_tasks.open_questions(self._tasks, newest)
            if row.status == "waiting"
            else (),
            reached_limit=newest.record.follows == LIMIT_REACHED,
            owner=owner,
            position=QueuePosition.of({QUEUE: newest.metadata(QUEUE)}),
            paused=self._paused().reason(thread_id, {FLOW: row.flow}),
            flow=row.flow or "",
            activity=activity,
        )
        return describe_status(facts)

    def _paused(self) -> PausedRuns:
        """Return the paused runs of the store."""
        return PausedRuns.of(
            self._tables.read(partial(self._tables.meta.get, key=PAUSED))
        )

    def _counted_states(
        self,
        thread_id: str,
        counting: Counting,
    ) -> Counter[CallState] | None:
        """Return the number of a run's calls in each state.

        None is returned if they have not all been read.
        """
        if counting == "no":
            return None
        run = self._updated_run(thread_id)
        while run.behind and counting == "all":
            run = self._updated_run(thread_id)
        return None if run.behind else run.states

    def failures(
        self,
        thread_id: str,
        counting: Counting = "all",
    ) -> tuple[int | None, str]:
        """Return the number of failed calls, and the first of them with the error.

        The number is None if the calls have not been counted. If the run is not done,
        only the calls of the last superstep are considered.

        Args:
            thread_id: The id of the thread.
            counting: The calls of a finished run to count, as for `status`.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     reader = StoreReader(saver)
            ...     print(reader.failures("1"), reader.beginning("1").input)
            ...     reader.close()
            8
            (0, '') 4
        """
        namespace = self._namespaces(thread_id).get("")
        if namespace is None:
            return None, ""
        row = self._run_row(namespace)
        if row.is_behind:
            return None, ""
        if row.status == "done":
            states = self._counted_states(thread_id, counting)
            return None if states is None else states["failed"], ""
        newest = self._checkpoint(namespace, namespace.newest or "")
        failed = checkpoint_tasks.failed_tasks(self._tasks, newest)
        return row.states.get("failed", 0) - failed.bodies, failed.first

    def beginning(self, thread_id: str) -> RunBeginning | None:
        """Return the beginning of a thread's last run, or None if it is unknown.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     print(reader.beginning("no such thread"))
            ...     reader.close()
            None
        """
        namespace = self._namespaces(thread_id).get("")
        return None if namespace is None else self._steps.beginning(namespace)

    def _namespaces(self, thread_id: str) -> dict[str, NamespaceRecord]:
        """Return the records of a thread's namespaces, by name."""
        records = self._tables.used(thread_id)
        return {record.namespace: record for record in records}

    def _run_row(
        self,
        namespace: NamespaceRecord,
        most: int | None = None,
    ) -> RunRow:
        """Return the row of a run.

        Args:
            namespace: The record of the run's outermost graph.
            most: The limit on the tasks that are read, or None for that of the reader.
        """
        self._restore(namespace.thread_id)
        address = Address(namespace.thread_id)
        owner = self._leases.owner(address)
        newest = self._checkpoint(namespace, namespace.newest or "")
        states = self._states(
            newest,
            namespace.thread_id,
            self._most if most is None else most,
            is_held=owner is not None,
        )
        is_behind = owner is None and not newest.tasks.was_read
        status = status_from(
            states,
            newest.record.source,
            newest.record.follows,
            running=owner is not None,
            is_enqueued=newest.metadata(QUEUE) is not None,
        )
        flow = newest.metadata(FLOW)
        if not isinstance(flow, str):
            flow = None
        return RunRow(
            thread_id=namespace.thread_id,
            status=status,
            flow=flow,
            step=newest.record.step,
            created=namespace.created,
            updated=newest.record.at,
            checkpoints=namespace.checkpoints,
            states=states,
            host="" if owner is None else owner.host,
            pid=0 if owner is None else owner.pid,
            is_behind=is_behind,
        )

    def _states(
        self,
        checkpoint: CheckpointView,
        thread_id: str,
        most: int,
        *,
        is_held: bool,
    ) -> dict[CallState, int]:
        """Return the number of a checkpoint's tasks in each state."""
        tasks = checkpoint.tasks
        mark = self.mark()
        was_read = tasks.advance(most, is_held=is_held, store_mark=mark)
        # The status of a run in progress is known without its tasks, so only some of
        # them are read now. The tasks of other runs are read to the end, now or when
        # the caller asks again.
        while self._is_patient and was_read and tasks.is_behind and not is_held:
            was_read = tasks.advance(most, is_held=is_held, store_mark=mark)
        if tasks.is_behind and not is_held:
            self.postponed += 1
        if thread_id not in self._runs:
            tasks.changes.clear()
        return {state: count for state, count in tasks.states.items() if count}

    def _checkpoint(
        self,
        namespace: NamespaceRecord,
        id: str,
    ) -> CheckpointView:
        """Return a checkpoint, and remember it if it is the newest."""
        checkpoint = self._newest.get(namespace.prefix)
        if checkpoint is None or checkpoint.id != id:
            checkpoint = CheckpointView(self._tasks, namespace, id)
            if id == namespace.newest:
                self._newest[namespace.prefix] = checkpoint
        return checkpoint

    def steps(self, thread_id: str, most: int) -> list[StepRow]:
        """Return a thread's newest supersteps, the newest first.

        Args:
            thread_id: The id of the thread.
            most: The greatest number of supersteps to return.
        """
        namespace = self._namespaces(thread_id).get("")
        return [] if namespace is None else self._steps.rows(namespace, most)

    def values(self, thread_id: str, checkpoint_id: str) -> StepValues | None:
        """Return the values of the channels at a checkpoint and before it, or None if
        the thread has no such checkpoint.

        Args:
            thread_id: The id of the thread.
            checkpoint_id: The id of the checkpoint.
        """
        return self._steps.values(Address(thread_id, "", checkpoint_id))

    # ------------------------------------------------------------ calls

    def calls(self, thread_id: str, since: int = 0) -> CallChanges:
        """Return the calls of a thread's last run that changed since a mark.

        If there are too many calls for one answer, the answer has the first of them,
        and `CallChanges.is_more` is true.

        Args:
            thread_id: The id of the thread.
            since: The `CallChanges.mark` of the last answer, or 0 for all calls.
        """
        run = self._updated_run(thread_id)
        is_whole = not run.first <= since <= run.mark
        first = run.first if is_whole else since
        mark = min(first + self._most, run.mark)
        changed = run.changed(first - run.first, mark - run.first)
        rows = self._tasks.rows(changed)
        # If checkpoints remained to be read when the update began, later commits have
        # not been looked up, so the caller must ask once more.
        is_behind = run.was_behind or bool(run.behind)
        is_more = is_behind or mark < run.mark
        return CallChanges(
            mark=mark,
            is_whole=is_whole,
            is_more=is_more,
            rows=rows,
        )

    def changes(
        self,
        thread_id: str,
        since: int = 0,
    ) -> Iterator[CallChanges]:
        """Yield the answers of `calls` until no changes remain.

        Args:
            thread_id: The id of the thread.
            since: The `CallChanges.mark` of the last answer, or 0 for all calls.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     reader = StoreReader(saver)
            ...     for changes in reader.changes("1"):
            ...         print([(row.name, row.state) for row in changes.rows])
            ...     reader.close()
            8
            [('double', 'done')]
        """
        is_more = True
        while is_more:
            changes = self.calls(thread_id, since)
            since = changes.mark
            is_more = changes.is_more
            yield changes

    def _updated_run(self, thread_id: str) -> RunCursor:
        """Return the updated cursor of a thread's last run."""
        self._restore(thread_id)
        run = self._runs.pop(thread_id, None) or RunCursor()
        if not self._update(run, thread_id):
            # A result was undone, or another run has begun, so all that was read is
            # forgotten, and read again.
            namespaces = self._namespaces(thread_id)
            for namespace in namespaces.values():
                self._newest.pop(namespace.prefix, None)
            run = RunCursor()
            self._update(run, thread_id)
        self._runs[thread_id] = run
        while len(self._runs) > _MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        return run

    def _restore(self, thread_id: str) -> None:
        """Begin from what an earlier reader has read of a thread."""
        if self._cache is None:
            return
        run = self._cache.run(thread_id)
        if run is None:
            return
        self._runs[thread_id] = run
        namespaces = self._namespaces(thread_id)
        for cursor in run.open_cursors.values():
            address = cursor.location.address
            namespace = namespaces.get(address.namespace)
            if namespace is None:
                continue
            newest = self._checkpoint(namespace, namespace.newest or "")
            if newest.tasks.location == cursor.location:
                newest.tasks = cursor

    def index(self, thread_id: str) -> CallIndex:
        """Return an index for the calls of a thread's last run.

        It has the calls that an earlier reader has passed to `keep`, or none. The
        changes since its mark must be added.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     index = reader.index("1")
            ...     print(index.mark, len(index.table))
            ...     reader.close()
            0 0
        """
        if self._cache is None:
            return CallIndex()
        self._restore(thread_id)
        return self._cache.index(thread_id)

    def keep(self, indexes: Mapping[str, CallIndex]) -> None:
        """Store what this reader remembers of large runs for the next reader, in
        private files in the user's cache directory.

        The files of threads that the store no longer has are removed. Nothing is stored
        of runs that are running.

        Args:
            indexes: The calls of runs by thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver, is_cached=True)
            ...     index = reader.index("1")
            ...     for changes in reader.changes("1", index.mark):
            ...         index.update(changes)
            ...     reader.keep({"1": index})
            ...     reader.close()
        """
        if self._cache is not None:
            self._cache.keep(self._runs, indexes)

    def _update(self, run: RunCursor, thread_id: str) -> bool:
        """Add changes of *run* to the log, or return False if the log is not valid."""
        run.was_behind = bool(run.behind)
        if not run.behind and not self._find_checkpoints(run, thread_id):
            return False
        remaining = self._most
        while run.behind and remaining > 0:
            index, is_last = run.behind[0]
            tasks = self._cursor_at(run, index)
            if not tasks.advance(
                remaining,
                is_held=run.is_held,
                is_last=is_last,
                store_mark=run.store_mark,
            ):
                # The tasks could not be read yet. The next update must read them even
                # if nothing is committed in between.
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

    def _cursor_at(self, run: RunCursor, index: int) -> TaskCursor:
        """Return the cursor over the tasks of a checkpoint of *run*."""
        cursor = run.open_cursors.get(index)
        if cursor is None:
            location = run.locations[index]
            cursor = self._newest_cursor(location)
            if cursor is None:
                cursor = TaskCursor(self._tasks, location)
            # The tasks of the newest checkpoint may have been read for its status, but
            # this run's log has none of them.
            cursor.repeat_changes()
            run.open_cursors[index] = cursor
        return cursor

    def _newest_cursor(self, location: TaskLocation) -> TaskCursor | None:
        """Return the task cursor of a namespace's newest checkpoint.

        None is returned if *location* is not that checkpoint.
        """
        newest = self._newest.get(location.key[:8])
        if newest is None or newest.tasks.location != location:
            return None
        return newest.tasks

    def _find_checkpoints(self, run: RunCursor, thread_id: str) -> bool:
        """Queue the checkpoints of *run* that must be read.

        Returns:
            False if the thread's last run is not *run*.
        """
        store_mark = self.mark()
        if store_mark == run.store_mark:
            return True
        owner = self._leases.owner(Address(thread_id))
        run.is_held = owner is not None
        namespaces = self._namespaces(thread_id)
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

    def call(
        self,
        thread_id: str,
        call_id: str,
        at: str | None = None,
    ) -> dict[str, Any] | None:
        """Return all stored data of one call, or None if the last run has no such call.

        The keys are: ``row``, a `CallRow`; ``arguments``, by position and name, if the
        call failed; ``result``; ``error``, with ``type`` and ``message``, or one line
        of text if the call is due again; ``attempts``, the failed attempts, each with
        ``began``, ``seconds``, ``pid``, ``error`` and ``traceback``; ``questions``,
        each with ``id``, ``value`` and, if it has one, ``response_schema``. Values are
        previews that JSON supports.

        Args:
            thread_id: The id of the thread.
            call_id: The id of the call.
            at: The id of the checkpoint from which the call started, or None to search
                all checkpoints of the run.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     reader = StoreReader(saver)
            ...     row = reader.calls("1").rows[0]
            ...     print(reader.call("1", row.id)["result"]["__end__"])
            ...     reader.close()
            8
            8
        """
        locations = self._locations(thread_id, at)
        return self._tasks.call(locations, call_id)

    def value(
        self,
        thread_id: str,
        call_id: str,
        part: CallPart,
        at: str | None = None,
    ) -> Any:
        """Return the whole value of a part of a call, read inertly, or None.

        Args:
            thread_id: The id of the thread.
            call_id: The id of the call.
            part: The part: ``"arguments"``, ``"result"`` or ``"error"``.
            at: The id of the checkpoint from which the call started, or None to search
                all checkpoints of the run.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def count(number: int) -> list[int]:
            ...         return [*range(number)]
            ...     numbers = count.run(1_000, id="1")
            ...     reader = StoreReader(saver)
            ...     row = reader.calls("1").rows[0]
            ...     print(len(reader.value("1", row.id, "result")["__end__"]))
            ...     reader.close()
            1000
        """
        locations = self._locations(thread_id, at)
        return self._tasks.value(locations, call_id, part)

    def output(
        self,
        thread_id: str,
        call_id: str,
        at: str | None = None,
    ) -> str:
        """Return the text that a call has printed and logged.

        Args:
            thread_id: The id of the thread.
            call_id: The id of the call.
            at: The id of the checkpoint from which the call started, or None to search
                all checkpoints of the run.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint, task
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> @task
            ... def double(number: int) -> int:
            ...     print(f"The number is {number}.")
            ...     return 2 * number
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def twice(number: int) -> int:
            ...         return double(number).result()
            ...     twice.run(4, id="1")
            ...     reader = StoreReader(saver)
            ...     for row in reader.calls("1").rows:
            ...         if row.text == "double(4)":
            ...             print(reader.output("1", row.id))
            ...     reader.close()
            [double] The number is 4.
            8
            The number is 4.
            <BLANKLINE>
        """
        locations = self._locations(thread_id, at)
        return self._tasks.output(locations, call_id)

    def _locations(
        self,
        thread_id: str,
        at: str | None,
    ) -> list[TaskLocation]:
        """Return the checkpoints of a thread's last run, or only the checkpoint
        *at*.
        """
        locations = self._updated_run(thread_id).locations
        if at is None:
            return locations
        return [
            location for location in locations if location.address.checkpoint_id == at
        ]

    def live(self, thread_id: str) -> dict[str, Any] | None:
        """Return the current activity of a run, or None.

        The result is None if no process holds the run, or if that process has not
        answered yet. For some seconds after a call of this method, the process
        publishes the run's activity five times a second.

        The keys are:

        * ``host`` and ``pid`` of the process;
        * ``started``, the time at which the process began to hold the run, and ``at``,
          the time of the answer, both in wall-clock nanoseconds;
        * ``running``, a list of the running tasks, which is cut if it is long, and
          ``count``, the number of all running tasks;
        * ``waiting``, the number of waiting tasks by name;
        * ``workers``, each with its ``pid`` and its ``task``. A worker on this machine
          also has ``memory``, in bytes, and ``cpu``, in seconds since it started;
        * ``pools``, each with its size, ``workers``, and ``nice``, the nice value of
          the workers, or None.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     reader = StoreReader(saver)
            ...     print(reader.live("1"))  # the run has ended
            ...     reader.close()
            8
            None
        """
        answer = self._leases.watch(Address(thread_id))
        if answer is None:
            return None
        owner, state = answer
        here = LockHolder.me()
        if (owner.host, owner.namespace) == (here.host, here.namespace):
            for worker in state["workers"]:
                pid = worker["pid"]
                worker["memory"] = memory_of(pid)
                worker["cpu"] = cpu_of(pid)
        return {
            "thread_id": thread_id,
            "host": owner.host,
            "pid": owner.pid,
            **state,
        }
