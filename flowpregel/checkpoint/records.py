"""The base class of our savers, which encode batches and put them into tables as
records.

The user's code runs, and may fail, only while a batch is encoded. It never runs while a
transaction is open.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

from flowpregel._code.sources import SOURCES
from flowpregel._core.ids import CODE_DIGITS, AttemptRecord, CallRecord, FailedCall
from flowpregel._core.records import (
    CALLED,
    CONTROL_WRITES,
    INTERRUPT,
    MADE_BY,
    RETURN,
    SAVED,
    Address,
    Batch,
    Checkpoint,
    Delta,
    MadeBy,
    Saved,
    TaskWrites,
)
from flowpregel._interrupts import defer_interrupts, held_steps
from flowpregel.checkpoint import arguments, layout, output, signals
from flowpregel.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    Lease,
    Leases,
    OnConflict,
    Strategy,
)
from flowpregel.checkpoint.layout import NamespaceRecord, Tables, thread_name
from flowpregel.checkpoint.reader import Reader
from flowpregel.checkpoint.retention import (
    Retention,
    Sweeper,
    copy_thread,
    forget_checkpoints,
    forget_thread,
)
from flowpregel.errors import (
    ConfigurationError,
    LeaseLostError,
    StoreBusyError,
    StoreFullError,
)

LONGEST_INLINE = 128
"""The greatest size, in bytes, of a value that is stored inline in checkpoints. A
larger value is stored once for each version, in the table ``values``.
"""
_LONGEST_SOURCE = 1 << 16
"""The number of bytes to which the compressed source of a task or a body is cut."""
_KEPT_FIELDS = attrgetter(*layout.CheckpointRecord._fields[:-2])
"""A function that returns the fields of a checkpoint with which the record begins. Two
fields follow in the record: ``places`` and ``follows``.
"""


class RecordSaver(BaseCheckpointSaver):
    """A saver that keeps records in tables.

    Args:
        tables: The tables of the store.
        leases: The leases of this process in the store.
        retention: The history to keep, or None to keep all of it.
        limits: The limits, in bytes, on the stored arguments of a failed call, and on
            the stored output of a task.
    """

    keeps_attempts: ClassVar[bool] = True

    def __init__(
        self,
        tables: Tables,
        leases: Leases,
        retention: Retention | None = None,
        limits: tuple[int, int] = (0, 0),
    ) -> None:
        self._tables = tables
        self._leases = leases
        self._read, self._write = tables.read, tables.write
        self._reader = Reader(tables)
        self._kept_arguments, output_limit = limits
        self._sources: set[str] = set()
        """The digests of the code whose source is known to be in the store."""
        self._output = output.OutputBuffer(tables, output_limit)
        self._sweeper = None if retention is None else Sweeper(tables, retention)

    # -------------------------------------------------------- the contract

    @defer_interrupts()
    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        find = partial(self._reader.find, address=address, before=before)
        copied = self._read(partial(find, lazy_results=lazy_results))
        return None if copied is None else self._reader.decoded(copied)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        return held_steps(self._reader.history(address, filter, before, limit))

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield the same checkpoints as `history`, without the channel values."""
        return self._reader.history(address, bare=True)

    def prepare(self, batch: Batch) -> EncodedBatch:
        if isinstance(batch, EncodedBatch):
            return batch
        codec = self._tables.codec
        encoded = encode_batch(batch, codec.encode)
        codes: list[str] = []
        for task in batch.writes:
            channel, called = task.writes[-1] if task.writes else ("", None)
            if channel == CALLED and called:
                codes += called[2], called[5][:CODE_DIGITS]
            codes += [] if task.ran is None else _codes_behind(task.ran)
        if batch.checkpoint is not None and MADE_BY in batch.checkpoint.metadata:
            made_by = MadeBy(*batch.checkpoint.metadata[MADE_BY])
            for ran in made_by.attempts():
                codes += _codes_behind(ran)
        for code in codes:
            if code in SOURCES and code not in self._sources:
                source = zlib.compress(SOURCES[code].encode(errors="replace"))
                encoded.sources[code] = source[:_LONGEST_SOURCE]
        for task in encoded.writes:
            if isinstance(task.failed, FailedCall):
                task.failed = arguments.encoded(
                    task.failed, self._kept_arguments, codec
                )
        return encoded

    @defer_interrupts()
    def commit(self, batches: Sequence[Batch]) -> None:
        # A subclass's `prepare` may return a batch that is not encoded.
        prepared = [RecordSaver.prepare(self, batch) for batch in batches]
        for batch in prepared:
            thread, fence = batch.address.thread_id, batch.fence
            if fence is not None and (thread, fence) not in self._leases.held:
                raise LeaseLostError(thread, batch.address.namespace, "a newer run")
        write = self._output.write if self._output.pending else self._write
        grown = write(partial(self._put, batches=prepared))
        self._sources.update(*(batch.sources for batch in prepared))
        sweeper = self._sweeper
        for namespace in grown:
            if sweeper and sweeper.is_due(namespace):
                address = Address(namespace.thread_id, namespace.namespace)
                # The batches are already committed, so the error need not be raised. A
                # later commit can sweep.
                with suppress(StoreBusyError, StoreFullError):
                    self._make_room(partial(sweeper.sweep, address=address))

    def _put(
        self, transaction: Any, batches: Sequence[EncodedBatch]
    ) -> list[NamespaceRecord]:
        """Put batches into a transaction.

        Returns:
            The namespaces with a new checkpoint.

        Raises:
            LeaseLostError: Another run has taken over the lease of a batch.
        """
        tables = self._tables
        grown: list[NamespaceRecord] = []
        for batch in batches:
            key = layout.namespace_key(batch.address.thread_id, batch.address.namespace)
            data = tables.threads.get(transaction, key)
            before = None if data is None else NamespaceRecord(*tables.fields_of(data))
            namespace = before or tables.new_namespace(transaction, batch.address)
            if batch.fence is not None:
                if batch.fence < namespace.fence:
                    raise LeaseLostError(
                        namespace.thread_id, namespace.namespace, "a newer run"
                    )
                namespace = namespace._replace(fence=batch.fence)
            for code, source in batch.sources.items():
                tables.put_source(transaction, code, source)
            for task in batch.writes:
                _put_task(tables, transaction, namespace.prefix, task)
            if batch.checkpoint is not None:
                namespace = _put_checkpoint(
                    tables, transaction, namespace, batch.checkpoint
                )
                if tables.looks_ahead:
                    tables.note_checkpoint(transaction, namespace, batch.checkpoint.id)
                grown.append(namespace)
            if namespace != before:
                tables.threads.put(transaction, key, tables.record_of(tuple(namespace)))
        return grown

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        for record in self._tables.used(thread_id):
            yield Address(record.thread_id, record.namespace)

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        if on_conflict not in ("raise", "wait", "takeover"):
            raise ConfigurationError(
                f"on_conflict is {on_conflict!r}; use 'raise', 'wait' or 'takeover'"
            )
        return self._leases.hold(
            Address(thread_id, namespace), on_conflict, self._fence
        )

    def source_of(self, code: str) -> str:
        return str(self._read(partial(self._tables.source, code=code)))

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        return self._reader.node_results(address)

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        data = self._tables.codec.encode(value, f"signal {name!r}")
        thread = thread_name(thread_id)
        self._write(
            partial(signals.send, self._tables, thread_id=thread, name=name, data=data)
        )

    def receive_signal(
        self, thread_id: str, name: str, receiver: str
    ) -> tuple[Any] | None:
        request = {"thread_id": thread_id, "name": name, "receiver": receiver}
        # A read comes first, because runs poll for signals, and most polls need no
        # write.
        if self._read(partial(signals.unreceived, self._tables, **request)) is None:
            return None
        data = self._write(partial(signals.receive, self._tables, **request))
        return (
            None
            if data is None
            else (self._tables.codec.decode(data, f"signal {name!r}"),)
        )

    # -------------------------------------------------------- deletion and copies

    def delete_thread(self, thread_id: str) -> None:
        thread = thread_name(thread_id)
        self._make_room(partial(forget_thread, self._tables, thread_id=thread))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        runs = frozenset(run_ids)
        for address in [*self.namespaces()]:
            gone = [
                saved.checkpoint.id
                for saved in self.outline(address)
                if saved.checkpoint.metadata.get("run_id") in runs
            ]
            if gone:
                forget = partial(
                    forget_checkpoints, self._tables, address=address, gone=gone
                )
                self._make_room(forget)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = thread_name(source_thread_id), thread_name(target_thread_id)
        self._write(partial(copy_thread, self._tables, source=source, target=target))

    def prune(
        self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest"
    ) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ConfigurationError(
                f"strategy is {strategy!r}; use 'keep_latest' or 'delete'"
            )
        for thread_id in map(thread_name, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for address in [*self.namespaces(thread_id)]:
                self._make_room(
                    partial(forget_checkpoints, self._tables, address=address)
                )

    # -------------------------------------------------------- inner

    def _make_room(self, work: Callable[[Any], Any]) -> Any:
        """Call *work*, which deletes records, in a write transaction."""
        return self._write(work)

    def _fence(self, address: Address, fence: int) -> int:
        """Return the fence of *address*. If *fence* is not 0, store it there first."""
        if fence:
            self._write(partial(self._tables.fence_off, address=address, fence=fence))
            return fence
        namespace = self._read(partial(self._tables.namespace, address=address))
        return 0 if namespace is None else namespace.fence


# ---------------------------------------------------------------- encoded


def _codes_behind(ran: AttemptRecord) -> list[str]:
    """Return the digests of the code behind a result."""
    codes = [code for _, code, _ in ran.used]
    codes.append(ran.code)
    return codes


@dataclass(slots=True)
class EncodedBatch(Batch):
    """A batch with encoded values.

    A saver may commit a batch some time after receiving it. Until then the run
    continues and may change the objects in the batch, but encoded values do not change.
    """

    sources: dict[str, bytes] = field(default_factory=dict)
    """The source code of tasks with recorded calls, by the digest of the code. Sources
    that are known to be in the store are left out.
    """


def _call_in(task: TaskWrites) -> CallRecord | None:
    """Return the call that a task's writes record, or None."""
    for name, value in task.writes:
        if name == CALLED and value is not None:
            return CallRecord(*value)
    return None


def _write_text(task: TaskWrites, call: CallRecord | None, name: str) -> str:
    """Return the description of a write, for an error about the write."""
    if call is not None and name == RETURN:
        return f"the result of {call.text}"
    if name in _PUBLIC_NAMES:
        return f"the {_PUBLIC_NAMES[name]}"
    return f"the write of task {task.task_id!r} to {name!r}"


def _value_text(name: str, step: str) -> str:
    """Return the description of a channel's value, for an error about the value."""
    if name in _PUBLIC_NAMES:
        return f"the {_PUBLIC_NAMES[name]}"
    return f"the value of channel {name!r} {step}"


_PUBLIC_NAMES: Mapping[str, str] = {
    "__start__": "input",
    "__end__": "result",
    "__previous__": "result",
    INTERRUPT: "question",
}
"""The names that messages use for the channels of an entrypoint and for questions."""


def encode_batch(batch: Batch, encode: Callable[[Any, str], Any]) -> EncodedBatch:
    """Return *batch* with each value encoded. An object that occurs twice is encoded
    once.

    Args:
        batch: The batch.
        encode: A function that returns the encoded form of a value. Its second argument
            is the name of the value in error messages.

    Raises:
        ValueEncodingError: A value cannot be encoded.
    """
    # Ids are unique here, because *batch* keeps the objects alive.
    encoded: dict[int, Any] = {}

    def encode_once(value: Any, label: str) -> Any:
        if id(value) not in encoded:
            encoded[id(value)] = encode(value, label)
        return encoded[id(value)]

    tasks = []
    for task in batch.writes:
        call = _call_in(task)
        writes = tuple(
            (name, encode_once(value, _write_text(task, call, name)))
            for name, value in task.writes
        )
        if writes:
            identity = task.checkpoint_id, task.task_id, task.path
            tasks.append(TaskWrites(*identity, writes, task.ran, task.failed))
    result = EncodedBatch(batch.address, tuple(tasks), None, batch.fence)
    checkpoint = batch.checkpoint
    if checkpoint is not None:
        step = f"(step {checkpoint.step})"
        values = {
            name: encode_once(value, _value_text(name, step))
            for name, value in checkpoint.values.items()
        }
        deltas = {}
        for name, delta in checkpoint.deltas.items():
            label = f"what was added to channel {name!r} {step}"
            added = tuple(encode_once(value, label) for value in delta.writes)
            deltas[name] = Delta(delta.previous, added)
        label = "the metadata of a checkpoint"
        metadata = {
            name: encode_once(value, label)
            for name, value in checkpoint.metadata.items()
        }
        result.checkpoint = checkpoint.with_content(values, deltas, metadata)
    return result


# ---------------------------------------------------------------- put


def _put_task(
    tables: Tables, transaction: Any, prefix: bytes, task: TaskWrites
) -> None:
    """Add a task's pending writes to its stored writes on a checkpoint.

    A control write replaces an older control write of the same kind. Any other write is
    stored under its position and never replaced. Once a task has such a write, the
    state that it saved for its next attempt is deleted. The arguments of a failed call
    are stored beside the writes until the call finishes.
    """
    key = layout.checkpoint_key(prefix, task.checkpoint_id) + layout.digest(
        task.task_id
    )
    known: dict[int, tuple[str, bytes]] = {}
    ran = None if task.ran is None else tuple(task.ran)
    if (data := tables.writes.get(transaction, key)) is not None:
        old = layout.WritesRecord(*tables.fields_of(data))
        known, ran = dict(old.writes), _newer(old.ran, task.ran)
        if not CONTROL_WRITES.issuperset(channel for channel, _ in task.writes):
            tables.writes.delete(transaction, layout.beside(layout.ARGUMENTS, key))
    for index, write in enumerate(task.writes):
        position = WRITES_IDX_MAP.get(write[0], index)
        if position < 0 or position not in known:
            known[position] = write
        if position >= 0:
            known.pop(WRITES_IDX_MAP[SAVED], None)
    tables.writes.put(
        transaction, key, tables.record_of((task.task_id, task.path, known, ran))
    )
    if isinstance(task.failed, bytes):
        tables.writes.put(
            transaction, layout.beside(layout.ARGUMENTS, key), task.failed
        )


def _newer(
    old: tuple[Any, ...] | None, new: AttemptRecord | None
) -> tuple[Any, ...] | None:
    """Return the newer of a task's attempt records.

    If the new record has no code, it gets the code of the old record.
    """
    if old is None or new is None:
        return old if new is None else tuple(new)
    before = AttemptRecord(*old)
    return tuple(new if new.code else new._replace(code=before.code, used=before.used))


def _put_checkpoint(
    tables: Tables, transaction: Any, namespace: NamespaceRecord, checkpoint: Checkpoint
) -> NamespaceRecord:
    """Store a checkpoint and the values that it changed.

    Returns:
        The new record of the namespace.
    """
    if checkpoint.parent_id == checkpoint.id:
        raise ConfigurationError(
            f"checkpoint {checkpoint.id!r} cannot be its own parent"
        )
    versions = checkpoint.channel_versions
    values = checkpoint.values
    deltas = checkpoint.deltas
    above = checkpoint.parent_id
    parent = None if above is None else tables.checkpoint(transaction, namespace, above)
    before = {} if parent is None else parent.channel_versions
    parent_places = {} if parent is None else parent.places
    # There may be thousands of channels, and a superstep changes few of them. The
    # locations of all other values are copied from the parent.
    moved = [name for name, version in versions.items() if before.get(name) != version]
    places = dict(parent_places)
    for name in (*moved, *(parent_places.keys() - versions.keys())):
        places.pop(name, None)
    written = (*values.keys() & versions.keys(), *deltas.keys() & versions.keys())
    for name in dict.fromkeys((*moved, *written)):
        version = versions[name]
        if name in values:
            places[name] = data = values[name]
            if not isinstance(data, bytes) or len(data) > LONGEST_INLINE:
                places[name] = layout.STORED
                tables.values.put(
                    transaction, layout.value_key(namespace.prefix, version, name), data
                )
        elif name in deltas:
            previous = deltas[name].previous
            base = parent_places.get(name, layout.EMPTY)
            if previous is None:
                base = layout.EMPTY
            elif previous != before.get(name):
                base = tables.place(transaction, namespace, name, previous)
            added = tables.record_of((previous, base, deltas[name].writes))
            tables.deltas.put(
                transaction, layout.value_key(namespace.prefix, version, name), added
            )
            places[name] = layout.DELTA
        elif name not in checkpoint.changed:
            places[name] = tables.place(transaction, namespace, name, version)
    record = (*_KEPT_FIELDS(checkpoint), places, checkpoint.follows)
    key = layout.checkpoint_key(namespace.prefix, checkpoint.id)
    is_new = tables.checkpoints.get(transaction, key) is None
    tables.checkpoints.put(transaction, key, tables.record_of(record))
    newest = max(namespace.newest or "", checkpoint.id)
    return namespace._replace(newest=newest, checkpoints=namespace.checkpoints + is_new)
