"""Reads runs out of a store over and over, each time only what changed.

::

    thread ── checkpoint (input) ── checkpoint ── newest checkpoint
                 │ settled             │ settled      │ looked at each time
                 ▼                     ▼              ▼
              its tasks ───────────────────────────────────► a log of rows ──► who looks
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from flowpregel._core.records import Address
from flowpregel._lmdb.locks import Owner
from flowpregel.checkpoint.arguments import decoded
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.tables import CheckpointRecord, NamespaceRecord, Tables
from flowpregel.checkpoint.work import status_from
from flowpregel.executors.processes.crash_report import cpu_of, memory_of
from flowpregel.watching.inert import InertCodec
from flowpregel.watching.preview import plain, question
from flowpregel.watching.rows import CallChanges, CallRow, RunRow
from flowpregel.watching.seen import SeenCheckpoint

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_ATTEMPT = ("began", "seconds", "pid", "error", "traceback")


@dataclass(slots=True, eq=False)
class SeenRun:
    """What was read of a thread's last run."""

    first: int
    """The mark before its first change."""
    chains: dict[str, list[SeenCheckpoint]] = field(default_factory=dict)
    """By namespace, its checkpoints, the newest first."""
    log: list[CallRow] = field(default_factory=list)
    """Each change of a call."""
    behind: deque[tuple[SeenCheckpoint, bool]] = field(default_factory=deque)
    """What is to be read yet, and whether another checkpoint has followed it."""
    at: int = -1
    """The store's mark when it was read last."""
    is_held: bool = False
    """Whether a run had the thread then."""

    @property
    def mark(self) -> int:
        """The mark after its last change."""
        return self.first + len(self.log)


class StoreReader:
    """Reads the runs of one store for somebody who looks at it all the time.

    It keeps what it has read; one that is used by several OS threads needs a lock around it.
    Nothing of the user's is imported or run.

    Args:
        saver: The open store. It is opened once more, to be read inertly.
        most: How many calls are read, and told, at once: the others the next time.
    """

    def __init__(self, saver: DurableSaver, most: int = 5_000) -> None:
        self._most = most
        self._store, self._leases = saver.opened_to_look(InertCodec())
        self._tables = Tables(self._store)
        self._read = self._store.environment.read
        self._newest: dict[bytes, SeenCheckpoint] = {}
        """The newest checkpoint of each namespace, by the prefix of its keys."""
        self._runs: dict[str, SeenRun] = {}

    def close(self) -> None:
        """Give the store back."""
        self._store.close()

    def mark(self) -> int:
        """Return a number that is the same as long as nothing is committed to the store.

        For a moment after a commit it is another each time. It takes some microseconds.
        """
        return int(self._store.environment.mark())

    # ------------------------------------------------------------ runs

    def runs(self) -> list[RunRow]:
        """Return all runs, the one that changed last first."""
        found = [*self._tables.used(self._read, None)]
        rows = [self._run_row(each) for each in found if not each.namespace]
        return sorted(rows, key=lambda row: row.updated, reverse=True)

    def run(self, thread_id: str) -> RunRow | None:
        """Return one run, or None if there is no such thread."""
        found = self._namespaces(thread_id).get("")
        return None if found is None else self._run_row(found)

    def _namespaces(self, thread_id: str) -> dict[str, NamespaceRecord]:
        found = self._tables.used(self._read, thread_id)
        return {each.namespace: each for each in found}

    def _run_row(self, namespace: NamespaceRecord) -> RunRow:
        owner = self._leases.owner(Address(namespace.thread_id))
        newest = self._checkpoint(namespace, namespace.newest or "")
        while newest.look(self._most, is_held=owner is not None) and newest.unread:
            pass  # it reads some of them at a time
        states = {state: count for state, count in newest.states.items() if count}
        flow = newest.item(FLOW)
        return RunRow(
            thread_id=namespace.thread_id,
            status=status_from(states, newest.source, running=owner is not None),
            flow=flow if isinstance(flow, str) else None,
            step=newest.step,
            created=namespace.created,
            updated=newest.at,
            checkpoints=namespace.checkpoints,
            states=states,
            host=owner.host if owner else "",
            pid=owner.pid if owner else 0,
        )

    def _checkpoint(self, namespace: NamespaceRecord, id: str) -> SeenCheckpoint:
        seen = self._newest.get(namespace.prefix)
        if seen is None or seen.id != id:
            decode = self._store.codec.decode
            seen = SeenCheckpoint(self._tables, self._read, decode, namespace, id)
            if id == namespace.newest:
                self._newest[namespace.prefix] = seen
        return seen

    def checkpoints(self, thread_id: str) -> list[tuple[str, CheckpointRecord]]:
        """Return the checkpoints of a thread, each with its id, the newest first."""
        if (namespace := self._namespaces(thread_id).get("")) is None:
            return []
        read = partial(self._tables.newest_first, namespace=namespace)
        found: list[tuple[str, CheckpointRecord]] = self._read(lambda at: [*read(at)])
        return found

    # ------------------------------------------------------------ calls

    def calls(self, thread_id: str, since: int = 0) -> CallChanges:
        """Return the calls of a thread's last run that changed since a mark.

        Of very many the first ones: `CallChanges.is_more` says that there are others.

        Args:
            thread_id: Whose.
            since: The `CallChanges.mark` of the last time; 0: all of them.
        """
        run = self._runs.setdefault(thread_id, SeenRun(1))
        was_behind = bool(run.behind)
        if not self._follow(run, thread_id):
            # Read anew: something was taken back, or another run has begun.
            for namespace in self._namespaces(thread_id).values():
                self._newest.pop(namespace.prefix, None)
            run = self._runs[thread_id] = SeenRun(run.mark + 1)
            self._follow(run, thread_id)
        is_whole = not run.first <= since <= run.mark
        begin = 0 if is_whole else since - run.first
        rows = tuple(run.log[begin : begin + self._most])
        mark = run.first + begin + len(rows)
        # After the last of what it was behind with it looks what has changed meanwhile.
        is_more = was_behind or bool(run.behind) or mark < run.mark
        return CallChanges(mark=mark, is_whole=is_whole, is_more=is_more, rows=rows)

    def changes(self, thread_id: str, since: int = 0) -> Iterator[CallChanges]:
        """Yield what `calls` returns until there is no more."""
        is_more = True
        while is_more:
            changes = self.calls(thread_id, since)
            since, is_more = changes.mark, changes.is_more
            yield changes

    def _follow(self, run: SeenRun, thread_id: str) -> bool:
        """Add to *run* some of what has changed; return False if it is not what it was."""
        if not (run.behind or self._gather(run, thread_id)):
            return False
        left = self._most
        while run.behind and left > 0:
            seen, is_last = run.behind[0]
            if not seen.look(left, is_held=run.is_held, is_last=is_last):
                run.at = -1  # too early: to be looked at again, though nothing is committed
            if seen.is_taken_back:
                return False
            left -= len(seen.changes)
            run.log += seen.changes
            seen.changes.clear()
            if not seen.unread:
                run.behind.popleft()
        return True

    def _gather(self, run: SeenRun, thread_id: str) -> bool:
        """Note which checkpoints of *run* are to be read; return False if it is another run."""
        if (at := self.mark()) == run.at:
            return True
        run.is_held = self._leases.owner(Address(thread_id)) is not None
        for name, namespace in sorted(self._namespaces(thread_id).items()):
            known = run.chains.setdefault(name, [])
            roots = {seen.id for seen in run.chains[""]} if name else set()
            added = [*self._since(namespace, known, roots)]
            if known and added:
                first = added[-1]
                if first.source == "input" or first.parent_id != known[0].id:
                    return False
            # Those behind them were looked at when the next one was there already.
            run.behind += [(seen, seen.id != namespace.newest) for seen in (*added, *known[:1])]
            known[:0] = added
        run.at = at
        return True

    def _since(
        self, namespace: NamespaceRecord, known: list[SeenCheckpoint], roots: set[str]
    ) -> Iterator[SeenCheckpoint]:
        """Yield the checkpoints of a run that are not *known*, the newest first.

        Of a nested graph only those that it reached in a superstep of *roots*.
        """
        id = namespace.newest
        while id is not None and not (known and id == known[0].id):
            seen = self._checkpoint(namespace, id)
            if not seen.is_there or (roots and seen.root_id not in roots):
                return
            yield seen
            id = None if seen.source == "input" else seen.parent_id

    def call(self, thread_id: str, call_id: str) -> dict[str, Any] | None:
        """Return all that is kept of one call, or None if the last run has no such.

        That is its ``row``, a `CallRow`; its ``arguments``, if it failed, by position and name;
        its ``result``; its ``error``, with ``type`` and ``message``, or a line
        of it if the call is to be made again; its ``attempts`` that
        failed: ``began``, ``seconds``, ``pid``, ``error`` and ``traceback`` of each; its
        ``questions``: ``id`` and ``value`` of each. Values are previews, fit for JSON.
        """
        for _ in self.changes(thread_id):
            pass  # all of them have been read then
        for seen in chain.from_iterable(self._runs[thread_id].chains.values()):
            if (row := seen.row(call_id)) is not None:
                break
        else:
            return None
        ran, work = seen.work_of(call_id)
        data = self._read(partial(self._tables.writes.get, key=seen.arguments_key(call_id)))
        arguments: dict[str, Any] | None = None
        if data is not None:
            kept = decoded(data, self._store.codec)
            arguments = {str(place): each for place, each in enumerate(kept.args)} | kept.kwargs
        return {
            "row": row,
            "arguments": plain(arguments),
            "result": plain(work.result if work.writes is None else work.writes),
            "error": plain(work.error),
            "attempts": [
                dict(zip(_ATTEMPT, each, strict=True)) for each in (ran.failed if ran else ())
            ],
            "questions": [*map(question, work.interrupts)],
        }

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
