"""A reader of the runs in a store, which reads only the changes since its last read.

::

    StoreReader ── RunTracker ────── which tasks changed (see `run_tracker`)
        │    └──── RunStatusReader ─ the row and the status of a run
        ├───────── StepReader ────── supersteps, and the values of channels
        └───────── TaskRecords ───── calls: rows, arguments, results, output
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowpregel._core.records import Address
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_rows import CallChanges
from flowpregel._inspection.call_series import CallSeries
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.reader_cache import ReaderCache
from flowpregel._inspection.run_status import (
    Counting,
    RunStatusReader,
    StatusSummary,
)
from flowpregel._inspection.run_tracker import RunTracker
from flowpregel._inspection.situations import StatusText
from flowpregel._inspection.steps import RunBeginning, StepReader, StepRow, StepValues
from flowpregel._inspection.tasks import CallPart, RunRow, TaskLocation, TaskRecords
from flowpregel.checkpoint.layout import NamespaceRecord
from flowpregel.checkpoint.paused import PausedRuns
from flowpregel.checkpoint.run_prefetcher import RunPrefetcher
from flowpregel.executors.processes.coordinator.crash_report import cpu_of, memory_of
from flowpregel.storage.locks import LockHolder
from flowpregel.storage.stores import in_snapshots

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

Item = TypeVar("Item")
_FEW = 100
"""The number of tasks that are read of each run in a list, after the first run that was
too large to be read whole.
"""


class StoreReader:
    """A reader of the runs of one store, for a caller that polls.

    The reader remembers some fifty bytes for each task, and reads rows from the store
    when the caller requests them. OS threads that share a reader must protect it with a
    lock. None of the user's code is imported or run.

    Args:
        saver: The open store. The reader opens the store a second time, with a codec
            that runs none of the user's code.
        most: The limit on the calls that are read and returned at once. The next call
            returns more.
        is_patient: True to read all tasks of a run's newest checkpoint before the row
            of the run is returned. Otherwise `RunRow.is_behind` may be true. If
            `postponed` has changed, the caller must request the rows once more.
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
        codec = InertCodec()
        self._store, self._leases = saver.opened_to_look(codec)
        self._tasks = TaskRecords(self._store)
        self._steps = StepReader(self._tasks.tables)
        self._prefetcher = RunPrefetcher(self._store, self._tasks.tables, self._leases)
        self.series: CallSeries = CallSeries(self._tasks)
        """The values that calls have recorded over time."""
        self._cache: ReaderCache | None = None
        if is_cached:
            self._cache = ReaderCache.of_store(saver.path, self._tasks)
        self._tracker = RunTracker(
            self._tasks,
            owners=self._leases,
            store_mark=self.mark,
            most=most,
            cache=self._cache,
        )
        self._statuses = RunStatusReader(
            self._tasks,
            self._leases,
            self._tracker,
            is_patient=is_patient,
        )

    @property
    def postponed(self) -> int:
        """The number of rows that were returned before all tasks had been read."""
        return self._statuses.postponed

    def task_version(self, thread_id: str) -> int:
        """Return a number that changes with the tasks of a run's newest checkpoint. It
        is the number at the time when the row of the run was last returned.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     print(reader.task_version("no such thread"))
            ...     reader.close()
            0
        """
        return self._statuses.versions.get(thread_id, 0)

    def close(self) -> None:
        """Close the store that this reader has opened."""
        self._store.close()

    def mark(self) -> int:
        """Return a number that stays the same as long as nothing is committed.

        For a moment after a commit, each call returns a different number. A call takes
        some microseconds.
        """
        return int(self._store.change_counter())

    def in_snapshots(
        self,
        items: Iterable[Item],
        thread_of: Callable[[Item], str] | None = None,
    ) -> Iterator[Item]:
        """Yield *items*, such as threads. The reads inside the caller's loop, on this
        OS thread, share a snapshot of the store, which is renewed after every few
        items. This saves round trips to a database on another machine.

        Args:
            items: The items, in order.
            thread_of: A function that returns the thread of an item. A database on
                another machine reads the status of these threads ahead. None reads
                nothing ahead.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     print([reader.run(id) for id in reader.in_snapshots(["a", "b"])])
            ...     reader.close()
            [None, None]
        """

        def prefetch(chunk: Sequence[Item]) -> None:
            """Read the threads of a few items ahead."""
            if thread_of is not None:
                self._prefetcher.threads([thread_of(item) for item in chunk])

        return in_snapshots(self._store, items, prefetch)

    # ------------------------------------------------------------ runs

    def runs(self) -> list[RunRow]:
        """Return all runs. The run that changed last comes first."""
        namespaces = list(self._tasks.tables.used(None))
        self._tracker.forget_others(namespaces)
        self._statuses.versions.clear()
        rows: list[RunRow] = []
        most = self._most
        outermost = [namespace for namespace in namespaces if not namespace.namespace]
        for namespace in in_snapshots(self._store, outermost, self._prefetcher.rows):
            row = self._statuses.row(namespace, most)
            if row.is_behind:
                # After one large run was read only in part, other large runs are read
                # in part too, so that the list is not delayed. Small runs are still
                # read whole.
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
        run = self._run(thread_id)
        return None if run is None else run[0]

    def _run(self, thread_id: str) -> tuple[RunRow, NamespaceRecord] | None:
        """Return a run, and the record of the outermost graph."""
        namespace = self._tracker.namespaces(thread_id).get("")
        if namespace is None:
            return None
        row = self._statuses.row(namespace, self._most)
        return row, namespace

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
        run = self._run(thread_id)
        if run is None:
            return None
        return self._statuses.text(*run, activity, counting)

    def summary(
        self,
        thread_id: str,
        counting: Counting = "all",
    ) -> StatusSummary | None:
        """Return the status of a run, with the number of failed calls and the first of
        them, or None if there is no such thread.

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
            ...     summary = reader.summary("1")
            ...     print(summary.text.short, summary.failed, repr(summary.error))
            ...     print(reader.beginning("1").input)
            ...     reader.close()
            8
            done 0 ''
            4
        """
        run = self._run(thread_id)
        if run is None:
            return None
        return self._statuses.summary(*run, counting)

    def paused(self) -> PausedRuns:
        """Return the runs that `flowpregel work` neither begins nor resumes.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver)
            ...     saver.pause(["wing"])
            ...     print(sorted(reader.paused().threads))
            ...     reader.close()
            ['wing']
        """
        return self._statuses.paused()

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
        namespace = self._tracker.namespaces(thread_id).get("")
        return None if namespace is None else self._steps.beginning(namespace)

    def drawing(self, thread_id: str) -> dict[str, Any] | None:
        """Return the drawing of the `StateGraph` that a thread's last run executed, as
        ``get_graph().outline()`` does, or None if it is not stored.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> from flowpregel.graph import START, StateGraph
            >>> graph = StateGraph(dict).add_node("step", lambda state: state)
            >>> graph = graph.add_edge(START, "step")
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     result = graph.compile(checkpointer=saver).invoke({}, thread_id="1")
            ...     reader = StoreReader(saver)
            ...     print(reader.drawing("1")["edges"])
            ...     reader.close()
            [['__start__', 'step'], ['step', '__end__']]
        """
        namespace = self._tracker.namespaces(thread_id).get("")
        return None if namespace is None else self._steps.drawing(namespace)

    def steps(
        self,
        thread_id: str,
        most: int,
        *,
        of_last_run: bool = False,
    ) -> list[StepRow]:
        """Return a thread's newest supersteps, the newest first.

        Args:
            thread_id: The id of the thread.
            most: The greatest number of supersteps to return.
            of_last_run: True to end with the input of the thread's last run.
        """
        namespace = self._tracker.namespaces(thread_id).get("")
        if namespace is None:
            return []
        return self._steps.rows(namespace, most, of_last_run=of_last_run)

    def values(self, thread_id: str, checkpoint_id: str) -> StepValues | None:
        """Return the values of the channels at a checkpoint and at its parent (before
        the superstep), or None if the thread has no such checkpoint.

        Args:
            thread_id: The id of the thread.
            checkpoint_id: The id of the checkpoint.
        """
        return self._steps.values(Address(thread_id, "", checkpoint_id))

    # ------------------------------------------------------------ calls

    def calls(self, thread_id: str, since: int = 0) -> CallChanges:
        """Return the calls of a thread's last run that changed since a mark.

        If there are too many of them to return at once, the result has the first of
        them, and `CallChanges.is_more` is true.

        Args:
            thread_id: The id of the thread.
            since: The `CallChanges.mark` of the last result, or 0 for all calls.
        """
        run = self._tracker.updated_run(thread_id)
        is_whole = not run.first <= since <= run.mark
        first = run.first if is_whole else since
        mark = min(first + self._most, run.mark)
        changed = run.changed(first - run.first, mark - run.first)
        rows = self._tasks.rows(changed)
        # If the last update did not read all checkpoints, it did not search for later
        # ones either, so the caller must ask once more.
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
        """Yield the results of `calls` until no changes remain.

        Args:
            thread_id: The id of the thread.
            since: The `CallChanges.mark` of the last result, or 0 for all calls.

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

    def index(self, thread_id: str) -> CallIndex:
        """Return an index for the calls of a thread's last run.

        It has the calls that an earlier reader has passed to `keep`, or none. The
        caller must then add the changes since the mark of the index.

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
        self._tracker.restore(thread_id)
        return self._cache.index(thread_id)

    def first_answers(self, thread_id: str) -> Any:
        """Return the data that a page needs first, which was stored with the calls of a
        thread's last run, or None.

        The data are valid only if no call has changed since they were stored. So they
        must contain the mark of the calls, since which the caller requests changes.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver, is_cached=True)
            ...     print(reader.first_answers("1"))
            ...     reader.close()
            None
        """
        if self._cache is None:
            return None
        self._tracker.restore(thread_id)
        return self._cache.first_answers(thread_id)

    def keep_in_steps(
        self,
        thread_id: str,
        index: CallIndex,
        first_answers: Callable[[], Any] | None = None,
    ) -> Iterator[None]:
        """Store what this reader remembers of a run, as `keep` does, and yield after
        each part of the work.

        Nothing is stored if the index changes in between.

        Args:
            thread_id: The id of the thread.
            index: The calls of the run.
            first_answers: A function that returns the value, which JSON must support,
                that the method `first_answers` of the next reader will return.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     reader = StoreReader(saver, is_cached=True)
            ...     print(list(reader.keep_in_steps("1", reader.index("1"))))
            ...     reader.close()
            []
        """
        run = self._tracker.runs.get(thread_id)
        if self._cache is not None and run is not None:
            yield from self._cache.keep_in_steps(
                thread_id,
                run,
                index,
                first_answers,
            )

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
            self._cache.keep(self._tracker.runs, indexes)

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
        """Return the whole value of a part of a call, decoded without the user's code,
        or None.

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
        locations = self._tracker.updated_run(thread_id).locations
        if at is None:
            return locations
        return [
            location for location in locations if location.address.checkpoint_id == at
        ]

    def live(self, thread_id: str) -> dict[str, Any] | None:
        """Return the current activity of a run, or None.

        The result is None if no process runs the run (has its lease), or if that
        process has not answered yet. For some seconds after a call of this method, the
        process publishes the run's activity five times a second.

        The keys are:

        * ``host`` and ``pid`` of the process;
        * ``started``, the time at which the process began or resumed the run, and
          ``at``, the time of the answer, both in wall-clock nanoseconds;
        * ``running``, a list of the running tasks, which is cut if it is long, and
          ``count``, the number of all running tasks. The ``series`` of a task has some
          points of the metrics, which `CallSeries.running` reads;
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
