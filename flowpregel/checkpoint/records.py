"""The base class of flowpregel's own savers, which encode batches and put them into
tables as records.

The user's code runs, and may fail, only while a batch is encoded. It never runs while a
transaction is open.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

from flowpregel._code.sources import SOURCES, parts_key
from flowpregel._core import ids
from flowpregel._core.ids import CODE_DIGITS, AttemptRecord, CallRecord, FailedCall
from flowpregel._core.records import (
    CALLED,
    CONTROL_WRITES,
    DRAWING,
    MADE_BY,
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
from flowpregel._loggers import store_log
from flowpregel.checkpoint import arguments, layout, output, signals
from flowpregel.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    Lease,
    Leases,
    OnConflict,
    Strategy,
)
from flowpregel.checkpoint.call_files import CallFiles
from flowpregel.checkpoint.delta_history import COUNTERS, with_langgraphs_deltas
from flowpregel.checkpoint.insertion import put_checkpoint
from flowpregel.checkpoint.labels import METADATA, ValueLabel, WriteLabel
from flowpregel.checkpoint.layout import NamespaceRecord, WritesRecord
from flowpregel.checkpoint.parents import greatest_version
from flowpregel.checkpoint.reader import Reader
from flowpregel.checkpoint.retention import (
    Retention,
    RetentionCollector,
    copy_thread,
    forget_checkpoints,
    forget_thread,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.checkpoint.value_references import writes_payload
from flowpregel.errors import (
    ConfigurationError,
    LeaseLostError,
    StoreBusyError,
    StoreFullError,
)

_LONGEST_SOURCE = 1 << 16
"""The greatest size, in bytes, of the stored source code of a task or a body,
compressed. Longer source code is cut.
"""


class RecordSaver(BaseCheckpointSaver):
    """A saver that keeps records in tables.

    Args:
        tables: The tables of the store.
        leases: The leases of this process in the store.
        retention: The history to keep, or None to keep all of it.
        limits: The limits, in bytes, on the stored arguments of a failed call, on the
            stored output of a task, and on the stored media of a call's preview.
    """

    keeps_attempts: ClassVar[bool] = True

    def __init__(
        self,
        tables: Tables,
        leases: Leases,
        retention: Retention | None = None,
        limits: tuple[int, int, int] = (0, 0, 1 << 18),
    ) -> None:
        self._tables = tables
        self._leases = leases
        self._read = tables.read
        self._write = tables.write
        self._reader = Reader(tables)
        self._kept_arguments, output_limit, self._kept_previews = limits
        self._sources: set[str] = set()
        """The digests of code whose source is already in the store."""
        self._output = output.OutputBuffer(tables, output_limit)
        self._collector: RetentionCollector | None = None
        if retention is not None:
            self._collector = RetentionCollector(tables, retention)

    # -------------------------------------------------------- the contract

    @defer_interrupts()
    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        find = partial(self._reader.find, address=address, before=before)
        copied = self._read(partial(find, lazy_results=lazy_results))
        if copied is None:
            return None
        saved = self._reader.decoded(copied)
        if self.owns_versions:
            everything = Address(address.thread_id, address.namespace)
            version = greatest_version(self.outline(everything))
            saved = replace(saved, newest_versions=version)
        if COUNTERS in saved.checkpoint.metadata:
            saved = with_langgraphs_deltas(self._loaded, saved)
        return saved

    def _loaded(self, address: Address) -> Saved | None:
        """Return the checkpoint at *address* in its stored form."""
        copied = self._read(partial(self._reader.find, address=address))
        return None if copied is None else self._reader.decoded(copied)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        history = self._reader.history(address, filter, before, limit)
        complete = partial(with_langgraphs_deltas, self._loaded)
        return held_steps(map(complete, history))

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield the same checkpoints as `history`, without the channel values."""
        return self._reader.history(address, bare=True)

    def prepare(self, batch: Batch) -> EncodedBatch:
        if isinstance(batch, EncodedBatch):
            return batch
        codec = self._tables.codec
        encoded = encode_batch(batch, codec.encode, codec.plain_types)
        for code in codes_in(batch):
            if code in SOURCES and code not in self._sources:
                encoded.sources.update(_compressed_source(code))
        for task in encoded.writes:
            if task.media or self._kept_previews <= 0:
                self._limit_preview(task)
            if isinstance(task.failed, FailedCall):
                task.failed = arguments.encoded(
                    task.failed, self._kept_arguments, codec
                )
        return encoded

    def _limit_preview(self, task: TaskWrites) -> None:
        """Drop the media of a call's preview if they are too large, and the whole
        preview if the store keeps no previews.
        """
        if len(task.media) > self._kept_previews:
            task.media = b""
        if self._kept_previews <= 0 and task.ran is not None:
            task.ran = task.ran._replace(preview=b"")

    @defer_interrupts()
    def commit(self, batches: Sequence[Batch]) -> None:
        # A subclass's `prepare` may return a batch that is not encoded, so the batches
        # are prepared here too.
        prepared: list[EncodedBatch] = []
        for batch in batches:
            if isinstance(batch, EncodedBatch):
                prepared.append(batch)
            else:
                prepared.append(RecordSaver.prepare(self, batch))
        try:
            for batch in prepared:
                thread = batch.address.thread_id
                fence = batch.fence
                if fence is not None and (thread, fence) not in self._leases.held:
                    owner = "a newer run"
                    # The error is raised inside this `try`, so that it is logged like
                    # the error of a commit that the store refuses.
                    raise LeaseLostError(  # noqa: TRY301
                        thread, batch.address.namespace, owner
                    )
            write = self._output.write if self._output.pending else self._write
            grown = write(partial(put_batches, self._tables, batches=prepared))
        except LeaseLostError as error:
            store_log.warning("%s", error)
            raise
        for batch in prepared:
            self._sources.update(batch.sources)
        if self._collector is not None:
            self._sweep(self._collector, grown)

    def _sweep(
        self, collector: RetentionCollector, grown: Iterable[NamespaceRecord]
    ) -> None:
        """Delete the history that the retention policy does not keep, in those
        namespaces of *grown* that have got enough new checkpoints since the last
        deletion.
        """
        for namespace in grown:
            if not collector.is_due(namespace):
                continue
            address = Address(namespace.thread_id, namespace.namespace)
            # The batches are already committed, so the run need not fail with this
            # error. A later commit sweeps again.
            with suppress(StoreBusyError, StoreFullError):
                dropped = self._make_room(partial(collector.sweep, address=address))
                store_log.debug(
                    "thread %r: its retention has deleted %d checkpoints",
                    address.thread_id,
                    dropped,
                )

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

    def output_files(self, address: Address) -> Iterator[CallFiles]:
        return self._reader.output_files(address)

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        if not name:
            raise ConfigurationError(
                "the name of the signal is empty: pass the name for which the run waits"
            )
        data = self._tables.codec.encode(value, f"signal {name!r}")
        thread = ids.new_thread_name(thread_id)
        send = partial(signals.send, thread_id=thread, name=name, data=data)
        self._write(partial(send, self._tables))

    def receive_signal(
        self, thread_id: str, name: str, receiver: str
    ) -> tuple[Any] | None:
        request = {"thread_id": thread_id, "name": name, "receiver": receiver}
        # A run that waits for a signal polls the store, and most polls find no signal.
        # So the store is read first, because a read needs no write transaction.
        signal = self._read(partial(signals.unreceived, self._tables, **request))
        if signal is None:
            return None
        data = self._write(partial(signals.receive, self._tables, **request))
        if data is None:
            return None
        value = self._tables.codec.decode(data, f"signal {name!r}")
        return (value,)

    # -------------------------------------------------------- deletion and copies

    def delete_thread(self, thread_id: str) -> None:
        thread = ids.thread_name(thread_id)
        self._make_room(partial(forget_thread, self._tables, thread_id=thread))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        runs = frozenset(run_ids)
        for address in list(self.namespaces()):
            gone: list[str] = []
            for saved in self.outline(address):
                checkpoint = saved.checkpoint
                if checkpoint.metadata.get("run_id") in runs:
                    gone.append(checkpoint.id)
            if gone:
                forget = partial(
                    forget_checkpoints, self._tables, address=address, gone=gone
                )
                self._make_room(forget)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source = ids.thread_name(source_thread_id)
        target = ids.new_thread_name(target_thread_id)
        self._write(partial(copy_thread, self._tables, source=source, target=target))

    def prune(
        self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest"
    ) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ConfigurationError(
                f"strategy is {strategy!r}; use 'keep_latest' or 'delete'"
            )
        for thread_id in map(ids.thread_name, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for address in list(self.namespaces(thread_id)):
                forget = partial(forget_checkpoints, self._tables, address=address)
                self._make_room(forget)

    # -------------------------------------------------------- helpers

    def _make_room(self, work: Callable[[Any], Any]) -> Any:
        """Call *work*, which deletes records, in a write transaction.

        If the disk is full, free the reserved space, and try again.
        """
        try:
            return self._write(work)
        except StoreFullError:
            if not self.free_reserve():
                raise
            return self._write(work)

    def free_reserve(self) -> bool:
        """Free the space that this kind of store reserves for deletions on a full disk;
        return whether there was any. The default reserves none.
        """
        return False

    def _fence(self, address: Address, fence: int) -> int:
        """Return the stored fence (the number of the newest lease) of *address*. If
        *fence* is not 0, store that number first.
        """
        if fence:
            reject = partial(self._tables.reject_leases_before, fence=fence)
            self._write(partial(reject, address=address))
            return fence
        namespace = self._read(partial(self._tables.namespace, address=address))
        return 0 if namespace is None else namespace.fence


# ---------------------------------------------------------------- encoding


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


Encode: TypeAlias = Callable[[Any, object], Any]
"""A function that returns the encoded form of a value. Its second argument is the label
of the value, for error messages.
"""


def encode_batch(
    batch: Batch, encode: Encode, plain_types: Collection[type] = ()
) -> EncodedBatch:
    """Return *batch* with each value encoded. An object that occurs twice is encoded
    once.

    Args:
        batch: The batch to encode.
        encode: A function that returns the encoded form of a value. Its second
            argument is the label of the value, for error messages.
        plain_types: The exact types of the values whose encoded form is the value
            itself.

    Example:
        >>> from flowpregel.checkpoint.base import Address, Batch, TaskWrites
        >>> writes = TaskWrites("checkpoint-1", "task-1", "", (("names", ["ada"]),))
        >>> batch = Batch(Address("1"), (writes,))
        >>> encoded = encode_batch(batch, lambda value, label: repr(value))
        >>> encoded.writes[0].writes
        (('names', "['ada']"),)

    Raises:
        ValueEncodingError: A value cannot be encoded.
    """
    encoder = _Encoder(encode, plain_types)
    tasks = []
    for task in batch.writes:
        writes = encoder.encoded(task.writes, partial(WriteLabel, task))
        if writes:
            identity = task.checkpoint_id, task.task_id, task.path
            values = tuple(writes)
            tasks.append(
                TaskWrites(*identity, values, task.ran, task.failed, task.media)
            )
    result = EncodedBatch(batch.address, tuple(tasks), None, batch.fence)
    if batch.checkpoint is not None:
        result.checkpoint = _encode_checkpoint(batch.checkpoint, encoder)
    return result


@dataclass(slots=True, eq=False)
class _Encoder:
    """An encoder of the values of one batch, which encodes each object only once.

    Objects are recognized by their `id`, which is unique because the batch keeps the
    objects alive.
    """

    encode: Encode
    plain_types: Collection[type]
    _known: dict[int, Any] = field(default_factory=dict)
    """The encoded form of each object, by its id."""

    def encoded(
        self, values: Iterable[tuple[str, Any]], label_of: Callable[[str], object]
    ) -> list[tuple[str, Any]]:
        """Return named values with each value encoded.

        Args:
            values: The names and the values.
            label_of: A function that returns the label of the value with a name.
        """
        known = self._known
        encoded: list[tuple[str, Any]] = []
        for name, value in values:
            if type(value) in self.plain_types:
                encoded.append((name, value))
                continue
            if id(value) not in known:
                known[id(value)] = self.encode(value, label_of(name))
            encoded.append((name, known[id(value)]))
        return encoded


def _encode_checkpoint(checkpoint: Checkpoint, encoder: _Encoder) -> Checkpoint:
    """Return a copy of *checkpoint* with its values, deltas and metadata encoded."""
    step = checkpoint.step
    label_of = partial(ValueLabel, step=step)
    values = encoder.encoded(checkpoint.values.items(), label_of)
    deltas = {}
    for name, delta in checkpoint.deltas.items():
        label = f"what was added to channel {name!r} (step {step})"
        writes = [(label, value) for value in delta.writes]
        added = [data for _, data in encoder.encoded(writes, str)]
        deltas[name] = Delta(delta.previous, tuple(added))
    metadata = encoder.encoded(checkpoint.metadata.items(), lambda _: METADATA)
    # `dataclasses.replace` is not used, because it takes three times as long, and this
    # is done with each stored superstep.
    return Checkpoint(
        id=checkpoint.id,
        parent_id=checkpoint.parent_id,
        at=checkpoint.at,
        step=step,
        source=checkpoint.source,
        channel_versions=dict(checkpoint.channel_versions),
        # A shallow copy is enough, because a run replaces the inner mapping of a node
        # and never changes it.
        versions_seen=dict(checkpoint.versions_seen),
        changed=checkpoint.changed,
        updated_channels=checkpoint.updated_channels,
        values=dict(values),
        deltas=deltas,
        metadata=dict(metadata),
        follows=checkpoint.follows,
    )


def _compressed_source(code: str) -> dict[str, bytes]:
    """Return the strings to store for the code with the digest *code*, compressed: its
    source, and the list of the code's parts. Each key of the dict is an argument for
    `layout.source_key`.
    """
    texts: dict[str, bytes] = {}
    for key in (code, parts_key(code)):
        if key not in SOURCES:
            # A key that is missing in `SOURCES` is skipped: the drawing of a graph has
            # no list of parts.
            continue
        text = SOURCES[key].encode(errors="replace")
        texts[key] = zlib.compress(text)[:_LONGEST_SOURCE]
    return texts


def codes_in(batch: Batch) -> list[str]:
    """Return the digests of the code that made the calls and the results in *batch*,
    and the digest of the graph's drawing.
    """
    codes: list[str] = []
    attempts: list[AttemptRecord] = []
    for task in batch.writes:
        if task.ran is not None:
            attempts.append(task.ran)
        # The record of a call is looked up only in the last write, because it is always
        # the last of the call's writes.
        fields = dict(task.writes[-1:]).get(CALLED)
        if fields:
            call = CallRecord(*fields)
            codes += call.code, call.caller[:CODE_DIGITS]
    if batch.checkpoint is not None and DRAWING in batch.checkpoint.metadata:
        codes.append(batch.checkpoint.metadata[DRAWING])
    if batch.checkpoint is not None and MADE_BY in batch.checkpoint.metadata:
        made_by = MadeBy(*batch.checkpoint.metadata[MADE_BY])
        attempts += made_by.attempts()
    for attempt in attempts:
        codes.append(attempt.code)
        for _, code, _ in attempt.used:
            codes.append(code)
    return codes


# ---------------------------------------------------------------- writing


def put_batches(
    tables: Tables, transaction: Any, batches: Sequence[EncodedBatch]
) -> list[NamespaceRecord]:
    """Put batches into the tables.

    Returns:
        The namespaces with a new checkpoint.

    Raises:
        LeaseLostError: Another run has taken over the lease of a batch.
    """
    grown = []
    for batch in batches:
        namespace = _put_batch(tables, transaction, batch)
        if batch.checkpoint is not None:
            grown.append(namespace)
    return grown


def _put_batch(
    tables: Tables, transaction: Any, batch: EncodedBatch
) -> NamespaceRecord:
    """Put a batch into the tables.

    Returns:
        The new record of the namespace.

    Raises:
        LeaseLostError: Another run has taken over the lease of the batch.
    """
    key = layout.namespace_key(batch.address.thread_id, batch.address.namespace)
    data = tables.threads.get(transaction, key)
    before: NamespaceRecord | None = None
    if data is not None:
        before = NamespaceRecord(*tables.fields_of(data))
    namespace = before or tables.new_namespace(transaction, batch.address)
    fence = batch.fence
    if fence is None:
        fence = namespace.fence
    if fence < namespace.fence:
        raise LeaseLostError(namespace.thread_id, namespace.namespace, "a newer run")
    if fence != namespace.fence:
        namespace = namespace._replace(fence=fence)
    for code, source in batch.sources.items():
        tables.put_source(transaction, code, source)
    if batch.checkpoint is not None:
        namespace = put_checkpoint(tables, transaction, namespace, batch.checkpoint)
        if tables.looks_ahead:
            tables.look_ahead(transaction, namespace, batch.checkpoint.id)
    # The checkpoint is stored first, because the records of the writes may refer to its
    # values.
    for task in batch.writes:
        _put_task(tables, transaction, namespace.prefix, task, batch.checkpoint)
    if namespace != before:
        tables.threads.put(transaction, key, tables.record_of(tuple(namespace)))
    return namespace


def _put_task(
    tables: Tables,
    transaction: Any,
    prefix: bytes,
    task: TaskWrites,
    checkpoint: Checkpoint | None,
) -> None:
    """Add a task's pending writes to its stored writes on a checkpoint.

    The arguments of a failed call are stored beside the writes until the call
    finishes.

    Args:
        tables: The tables of the store.
        transaction: A write transaction of the store.
        prefix: The prefix of the namespace's keys.
        task: The task, with its new writes.
        checkpoint: The checkpoint that ends the superstep of the task, if it is in the
            same batch.
    """
    table = tables.writes
    pending = layout.checkpoint_key(prefix, task.checkpoint_id)
    key = pending + layout.digest(task.task_id)
    data = table.get(transaction, key)
    writes: dict[int, tuple[str, bytes]] = {}
    ran = None if task.ran is None else tuple(task.ran)
    if data is not None:
        stored = WritesRecord(*tables.fields_of(data))
        writes = dict(stored.writes)
        ran = _newer(stored.ran, task.ran)
        if task.ran is not None and not task.media:
            table.delete(transaction, layout.sidecar_key(layout.MEDIA, key))
        if not CONTROL_WRITES.issuperset(dict(task.writes)):
            table.delete(transaction, layout.sidecar_key(layout.ARGUMENTS, key))
    _add_writes(writes, task.writes)
    fields = (task.task_id, task.path, writes, ran)
    if tables.shares_values:
        payload = writes_payload(fields, task, checkpoint, tables.record_of)
    else:
        payload = tables.record_of(fields)
    table.put(transaction, key, payload)
    if task.media:
        media_key = layout.sidecar_key(layout.MEDIA, key)
        table.put(transaction, media_key, task.media)
    if isinstance(task.failed, bytes):
        arguments_key = layout.sidecar_key(layout.ARGUMENTS, key)
        table.put(transaction, arguments_key, task.failed)


def _add_writes(
    stored: dict[int, tuple[str, bytes]], writes: Sequence[tuple[str, bytes]]
) -> None:
    """Add new writes of a task to its stored writes.

    A control write, such as an error or a question, replaces an older control write of
    the same kind. Any other write is stored under its position and never replaced. Once
    a task has such a write, the state that it saved for its next attempt is deleted.
    """
    for index, write in enumerate(writes):
        channel, _ = write
        position = WRITES_IDX_MAP.get(channel, index)
        if position < 0:
            stored[position] = write
        else:
            stored.setdefault(position, write)
            stored.pop(WRITES_IDX_MAP[SAVED], None)


def _newer(
    old: tuple[Any, ...] | None, new: AttemptRecord | None
) -> tuple[Any, ...] | None:
    """Return the newer of a task's attempt records.

    If the new record names no digest of code, it gets that of the old record.
    """
    if new is None:
        return old
    if old is not None and not new.code:
        before = AttemptRecord(*old)
        new = new._replace(code=before.code, used=before.used)
    return tuple(new)
