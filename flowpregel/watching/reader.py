"""Reads runs out of a store over and over, each time only what changed.

::

    thread ── checkpoint (input) ── checkpoint ── newest checkpoint
                 │ settled             │ settled      │ looked at each time
                 ▼                     ▼              ▼
              its tasks ──────────────────────────► a log of which changed
                 │                                    │ since a mark
                 └──────── read where they lie ───────┴──────► rows, for who looks
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from flowpregel._core.records import Address
from flowpregel._lmdb.locks import Owner
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.layout import CheckpointRecord, NamespaceRecord
from flowpregel.checkpoint.work import status_from
from flowpregel.executors.processes.crash_report import cpu_of, memory_of
from flowpregel.watching.inert import InertCodec
from flowpregel.watching.seen import DIGEST, SeenCheckpoint, SeenTasks
from flowpregel.watching.tasks import CallChanges, Place, RunRow, TaskRecords

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_NUMBER = 4
"""Bytes of the number of a checkpoint in the log."""
_CHANGE = _NUMBER + DIGEST
_MOST_RUNS = 16
"""Of so many runs it is noted what changed: those that were asked for last."""


@dataclass(slots=True, eq=False)
class SeenRun:
    """What was seen of a thread's last run, by somebody who looks at its calls."""

    first: int = field(default_factory=lambda: time.time_ns() // 1_000)
    """The mark before its first change: microseconds, of which each change takes more than one.
    So no other run has its marks, and none that another server has seen."""
    places: list[Place] = field(default_factory=list)
    """Its checkpoints, by number."""
    newest: dict[str, int] = field(default_factory=dict)
    """By namespace, the number of its newest checkpoint."""
    log: bytearray = field(default_factory=bytearray)
    """Of each change of a task the number of its checkpoint, and its digest."""
    behind: deque[tuple[int, bool]] = field(default_factory=deque)
    """The checkpoints that are to be looked at yet, and whether another has followed."""
    opened: dict[int, SeenTasks] = field(default_factory=dict)
    """By number of the checkpoint, the tasks that are looked at again."""
    was_behind: bool = False
    """Whether it was, when somebody looked last."""
    at: int = -1
    """The store's mark when it was looked at last."""
    is_held: bool = False
    """Whether a run had the thread then."""

    @property
    def mark(self) -> int:
        """The mark after its last change."""
        return self.first + len(self.log) // _CHANGE

    def note(self, number: int, digests: bytes) -> None:
        """Add changes of tasks of a checkpoint to the log."""
        head = number.to_bytes(_NUMBER, "big")
        for at in range(0, len(digests), DIGEST):
            self.log += head + digests[at : at + DIGEST]

    def changed(self, begin: int, end: int) -> Iterator[tuple[Place, bytes]]:
        """Yield the checkpoint and the key of the tasks that changed, between places in the log."""
        log = bytes(self.log[begin * _CHANGE : end * _CHANGE])
        for at in range(0, len(log), _CHANGE):
            place = self.places[int.from_bytes(log[at : at + _NUMBER], "big")]
            yield place, place.key + log[at + _NUMBER : at + _CHANGE]


class StoreReader:
    """Reads the runs of one store for somebody who looks at it all the time.

    Of a task it remembers some fifty bytes: rows are read where they lie, by whoever asks. One
    that is used by several OS threads needs a lock around it. Nothing of the user's is imported
    or run.

    Args:
        saver: The open store. It is opened once more, to be read inertly.
        most: How many calls are read, and told, at once: the others the next time.
    """

    def __init__(self, saver: DurableSaver, most: int = 5_000) -> None:
        self._most = most
        self._store, self._leases = saver.opened_to_look(InertCodec())
        self._tasks = TaskRecords(self._store)
        self._tables, self._read = self._tasks.tables, self._tasks.read
        self._newest: dict[bytes, SeenCheckpoint] = {}
        """The newest checkpoint of each namespace, by the prefix of its keys."""
        self._runs: dict[str, SeenRun] = {}
        """By thread, the one that was asked for last at the end."""

    def close(self) -> None:
        """Give the store back."""
        self._store.close()

    def mark(self) -> int:
        """Return a number that is the same as long as nothing is committed to the store.

        For a moment after a commit it is another each time. It takes some microseconds.
        """
        return int(self._store.mark())

    # ------------------------------------------------------------ runs

    def runs(self) -> list[RunRow]:
        """Return all runs, the one that changed last first."""
        found = [*self._tables.used(None)]
        # Of threads that were deleted nothing is kept.
        prefixes = self._newest.keys() & {each.prefix for each in found}
        self._newest = {prefix: self._newest[prefix] for prefix in prefixes}
        rows = [self._run_row(each) for each in found if not each.namespace]
        return sorted(rows, key=lambda row: row.updated, reverse=True)

    def run(self, thread_id: str) -> RunRow | None:
        """Return one run, or None if there is no such thread."""
        found = self._namespaces(thread_id).get("")
        return None if found is None else self._run_row(found)

    def _namespaces(self, thread_id: str) -> dict[str, NamespaceRecord]:
        return {each.namespace: each for each in self._tables.used(thread_id)}

    def _run_row(self, namespace: NamespaceRecord) -> RunRow:
        owner = self._leases.owner(Address(namespace.thread_id))
        newest = self._checkpoint(namespace, namespace.newest or "")
        tasks, is_held = newest.tasks, owner is not None
        # Of one that goes on some of them at a time: it is running, whatever they are.
        while tasks.look(self._most, is_held=is_held) and tasks.is_behind and not is_held:
            pass
        if namespace.thread_id not in self._runs:
            tasks.changes.clear()
        states = {state: count for state, count in tasks.states.items() if count}
        flow = newest.item(FLOW)
        return RunRow(
            thread_id=namespace.thread_id,
            status=status_from(
                states, newest.record.source, newest.record.follows, running=is_held
            ),
            flow=flow if isinstance(flow, str) else None,
            step=newest.record.step,
            created=namespace.created,
            updated=newest.record.at,
            checkpoints=namespace.checkpoints,
            states=states,
            host=owner.host if owner else "",
            pid=owner.pid if owner else 0,
        )

    def _checkpoint(self, namespace: NamespaceRecord, id: str) -> SeenCheckpoint:
        seen = self._newest.get(namespace.prefix)
        if seen is None or seen.id != id:
            seen = SeenCheckpoint(self._tasks, namespace, id)
            if id == namespace.newest:
                self._newest[namespace.prefix] = seen
        return seen

    def checkpoints(self, thread_id: str, most: int) -> list[tuple[str, CheckpointRecord]]:
        """Return the newest checkpoints of a thread, each with its id, the newest first."""
        if (namespace := self._namespaces(thread_id).get("")) is None:
            return []
        read = partial(self._tables.newest_first, namespace=namespace)
        found: list[tuple[str, CheckpointRecord]] = self._read(lambda at: [*islice(read(at), most)])
        return found

    # ------------------------------------------------------------ calls

    def calls(self, thread_id: str, since: int = 0) -> CallChanges:
        """Return the calls of a thread's last run that changed since a mark.

        Of very many the first ones: `CallChanges.is_more` says that there are others.

        Args:
            thread_id: Whose.
            since: The `CallChanges.mark` of the last time; 0: all of them.
        """
        run = self._seen(thread_id)
        is_whole = not run.first <= since <= run.mark
        begin = 0 if is_whole else since - run.first
        mark = min(run.first + begin + self._most, run.mark)
        rows = self._tasks.rows(run.changed(begin, mark - run.first))
        # After the last of what it was behind with it looks what has changed meanwhile.
        is_more = run.was_behind or bool(run.behind) or mark < run.mark
        return CallChanges(mark=mark, is_whole=is_whole, is_more=is_more, rows=rows)

    def changes(self, thread_id: str, since: int = 0) -> Iterator[CallChanges]:
        """Yield what `calls` returns until there is no more."""
        is_more = True
        while is_more:
            changes = self.calls(thread_id, since)
            since, is_more = changes.mark, changes.is_more
            yield changes

    def _seen(self, thread_id: str) -> SeenRun:
        """Return a thread's last run, after a look at some of what has changed."""
        run = self._runs.pop(thread_id, None)
        if run is None or not self._follow(run, thread_id):
            # Anew: something was taken back, or another run has begun.
            for namespace in self._namespaces(thread_id).values():
                self._newest.pop(namespace.prefix, None)
            run = SeenRun()
            self._follow(run, thread_id)
        self._runs[thread_id] = run
        while len(self._runs) > _MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        return run

    def _follow(self, run: SeenRun, thread_id: str) -> bool:
        """Note some of what has changed of *run*; return False if it is not what it was."""
        run.was_behind = bool(run.behind)
        if not (run.behind or self._gather(run, thread_id)):
            return False
        left = self._most
        while run.behind and left > 0:
            number, is_last = run.behind[0]
            tasks = run.opened.get(number) or self._tasks_at(run.places[number])
            run.opened[number] = tasks
            if not tasks.look(left, is_held=run.is_held, is_last=is_last):
                run.at = -1  # too early: to be looked at again, though nothing is committed
            if tasks.is_taken_back:
                return False
            left -= len(tasks.changes) // DIGEST
            run.note(number, bytes(tasks.changes))
            tasks.changes.clear()
            if not tasks.is_behind:
                run.behind.popleft()
                if is_last:
                    del run.opened[number]
        return True

    def _tasks_at(self, place: Place) -> SeenTasks:
        newest = self._newest.get(place.key[:8])
        is_newest = newest is not None and newest.tasks.place == place
        return newest.tasks if newest and is_newest else SeenTasks(self._tasks, place)

    def _gather(self, run: SeenRun, thread_id: str) -> bool:
        """Note which checkpoints of *run* are to be looked at; return False if it is another."""
        if (at := self.mark()) == run.at:
            return True
        run.is_held = self._leases.owner(Address(thread_id)) is not None
        for name, namespace in sorted(self._namespaces(thread_id).items()):
            known = run.newest.get(name)
            known_id = None if known is None else run.places[known].address.checkpoint_id
            seen, number = None, len(run.places)
            for seen in self._since(run, namespace, known_id):
                # Those behind the newest were looked at when the next one was there already.
                run.behind.append((len(run.places), seen.id != namespace.newest))
                run.places.append(seen.tasks.place)
            is_another = seen and (
                seen.record.source == "input" or seen.record.parent_id != known_id
            )
            if known is not None:
                if is_another:
                    return False
                run.behind.append((known, known_id != namespace.newest))
            if seen is not None:
                run.newest[name] = number
        run.at = at
        return True

    def _since(
        self, run: SeenRun, namespace: NamespaceRecord, known_id: str | None
    ) -> Iterator[SeenCheckpoint]:
        """Yield the checkpoints of a run that came after one, the newest first.

        Of a nested graph only those that it reached in a superstep of the outermost.
        """
        addresses = (place.address for place in run.places) if namespace.namespace else ()
        roots = {each.checkpoint_id for each in addresses if not each.namespace}
        id = namespace.newest
        while id is not None and id != known_id:
            seen = self._checkpoint(namespace, id)
            if not seen.is_there or (roots and seen.root_id not in roots):
                return
            yield seen
            id = None if seen.record.source == "input" else seen.record.parent_id

    def call(self, thread_id: str, call_id: str, at: str | None = None) -> dict[str, Any] | None:
        """Return all that is kept of one call, or None if the last run has no such.

        Args:
            thread_id: Whose last run.
            call_id: Which.
            at: The checkpoint it started at; None: all of the run are tried.

        That is its ``row``, a `CallRow`; its ``arguments``, if it failed, by position and name;
        its ``result``; its ``error``, with ``type`` and ``message``, or a line
        of it if the call is to be made again; its ``attempts`` that
        failed: ``began``, ``seconds``, ``pid``, ``error`` and ``traceback`` of each; its
        ``questions``: ``id`` and ``value`` of each. Values are previews, fit for JSON.
        """
        return self._tasks.call(self._places(thread_id, at), call_id)

    def output(self, thread_id: str, call_id: str, at: str | None = None) -> str:
        """Return what a call, given as for `call`, has printed and logged; empty: nothing."""
        return self._tasks.output(self._places(thread_id, at), call_id)

    def _places(self, thread_id: str, at: str | None) -> list[Place]:
        places = self._seen(thread_id).places
        return [each for each in places if at in (None, each.address.checkpoint_id)]

    def live(self, thread_id: str) -> dict[str, Any] | None:
        """Return what a run is doing now; None: nothing runs, or it has not answered yet.

        To ask is to watch: for some seconds from now on the running process shows it, five
        times a second. That is what `live_state` tells; ``host`` and ``pid`` of the process,
        since when it has the run (``started``), and when it told (``at``; both wall-clock
        nanoseconds); and of each worker on this machine ``memory`` (bytes) and ``cpu``
        (seconds, since it was started).
        """
        found = self._leases.watch(Address(thread_id))
        if found is None:
            return None
        (owner, state), me = found, Owner.me()
        if (owner.host, owner.namespace) == (me.host, me.namespace):
            for worker in state["workers"]:
                worker |= {"memory": memory_of(worker["pid"]), "cpu": cpu_of(worker["pid"])}
        return {"thread_id": thread_id, "host": owner.host, "pid": owner.pid, **state}
