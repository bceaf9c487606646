"""What our savers have in common: checkpoints and pending writes as records in tables."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from flowpregel._code.digest import SOURCES
from flowpregel._core.ids import CODE_DIGITS, FailedCall
from flowpregel._core.records import CALLED, Address, Batch, Saved
from flowpregel._lmdb.records import SealedStore
from flowpregel.checkpoint import arguments, output, signals
from flowpregel.checkpoint.base import (
    BaseCheckpointSaver,
    EncodedBatch,
    Fences,
    Lease,
    OnConflict,
    Strategy,
    encode_batch,
    thread_name,
)
from flowpregel.checkpoint.reader import Reader
from flowpregel.checkpoint.retention import (
    Retention,
    Sweeper,
    copy_thread,
    forget_checkpoints,
    forget_thread,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.checkpoint.writer import put
from flowpregel.errors import ConfigurationError, LeaseLostError

_LONGEST = 1 << 16
"""Bytes that are kept of the source of a task or a body, compressed."""


class Leases(Protocol):
    """The leases that this process holds in one store."""

    held: set[tuple[str, int]]
    """The thread and the fence of each."""

    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write at *address* while the context is open."""


class RecordSaver(BaseCheckpointSaver):
    """A saver that keeps records in tables.

    Args:
        store: Where the records are.
        tables: Its tables.
        leases: Those of this process in it.
        retention: How much history is kept; None: all of it.
        kept: The most bytes that are kept of the arguments of a failed call, and of output.
    """

    def __init__(
        self,
        store: SealedStore,
        tables: Tables,
        leases: Leases,
        retention: Retention | None = None,
        kept: tuple[int, int] = (0, 0),
    ) -> None:
        self._store = store
        self._tables = tables
        self._leases = leases
        self._read, self._write = store.read, store.write
        self._put: Callable[..., None] = partial(put, tables)
        self._reader = Reader(tables, self._read, store.codec)
        self._kept_arguments, kept_output = kept
        self._sources: set[str] = set()
        """The digests of the code whose source is kept for certain."""
        self._output = output.OutputBuffer(tables, self._write, kept_output)
        self._sweeper = None if retention is None else Sweeper(tables, retention)

    # -------------------------------------------------------- the contract

    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        return self._reader.load(address, before, lazy_results=lazy_results)

    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        return self._reader.history(address, filter, before, limit)

    def load_channels(self, address: Address) -> Saved | None:
        """Return what `load` does, without what tasks have left on the checkpoint."""
        return self._reader.load(address, tasks=False)

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield what `history` does, without what the channels held."""
        return self._reader.history(address, bare=True)

    def prepare(self, batch: Batch) -> EncodedBatch:
        if isinstance(batch, EncodedBatch):
            return batch
        codec = self._store.codec
        made = encode_batch(batch, codec.encode)
        for task in batch.writes:
            channel, called = task.writes[-1] if task.writes else ("", None)
            codes = (called[2], called[5][:CODE_DIGITS]) if channel == CALLED and called else ()
            for code in codes:
                if code in SOURCES and code not in self._sources:
                    source = zlib.compress(SOURCES[code].encode(errors="replace"))
                    made.sources[code] = source[:_LONGEST]
        for task in made.writes:
            if isinstance(task.failed, FailedCall):
                task.failed = arguments.encoded(task.failed, self._kept_arguments, codec)
        return made

    def commit(self, batches: Sequence[Batch]) -> None:
        # Not by a `prepare` of a subclass, which may return one that is not encoded.
        prepared = [RecordSaver.prepare(self, batch) for batch in batches]
        for batch in prepared:
            thread, fence = batch.address.thread_id, batch.fence
            if fence is not None and (thread, fence) not in self._leases.held:
                raise LeaseLostError(thread, batch.address.namespace, "a newer run")
        if not prepared:
            return
        work = partial(self._put, batches=prepared)
        self._write(self._output.beside(work) if self._output.pending else work)
        self._sources.update(*(batch.sources for batch in prepared))
        if (sweeper := self._sweeper) is None:
            return
        for batch in prepared:
            if batch.checkpoint is not None and sweeper.is_due(batch.address):
                self._write(partial(sweeper.sweep, address=batch.address))

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        for each in self._tables.used(self._read, thread_id):
            yield Address(each.thread_id, each.namespace)

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        if on_conflict not in ("raise", "wait", "takeover"):
            raise ConfigurationError(
                f"on_conflict is {on_conflict!r}; use 'raise', 'wait' or 'takeover'"
            )
        return self._leases.hold(Address(thread_id, namespace), on_conflict, self._fence)

    def source_of(self, code: str) -> str:
        return str(self._read(partial(self._tables.source, code=code)))

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        data = self._store.codec.encode(value, f"signal {name!r}")
        thread = thread_name(thread_id)
        self._write(partial(signals.send, self._tables, thread_id=thread, name=name, data=data))

    def receive_signal(self, thread_id: str, name: str, receiver: str) -> tuple[Any] | None:
        asked = {"thread_id": thread_id, "name": name, "receiver": receiver}
        # A look costs no transaction that writes.
        if self._read(partial(signals.unreceived, self._tables, **asked)) is None:
            return None
        data = self._write(partial(signals.receive, self._tables, **asked))
        return None if data is None else (self._store.codec.decode(data, f"signal {name!r}"),)

    # -------------------------------------------------------- what is forgotten and copied

    def delete_thread(self, thread_id: str) -> None:
        self._make_room(partial(forget_thread, self._tables, thread_id=thread_name(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = frozenset(run_ids)
        for address in [*self.namespaces()]:
            gone = [
                saved.checkpoint.id
                for saved in self.outline(address)
                if saved.checkpoint.metadata.get("run_id") in wanted
            ]
            if gone:
                forget = partial(forget_checkpoints, self._tables, address=address, gone=gone)
                self._make_room(forget)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = thread_name(source_thread_id), thread_name(target_thread_id)
        self._write(partial(copy_thread, self._tables, source=source, target=target))

    def prune(self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ConfigurationError(f"strategy is {strategy!r}; use 'keep_latest' or 'delete'")
        for thread_id in map(thread_name, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for address in [*self.namespaces(thread_id)]:
                self._make_room(partial(forget_checkpoints, self._tables, address=address))

    # -------------------------------------------------------- inner

    def _make_room(self, work: Callable[[Any], Any]) -> Any:
        """Do *work*, which drops something."""
        return self._write(work)

    def _fence(self, address: Address, fence: int) -> int:
        """Return the fence the store knows of *address*, putting one there if given."""
        tables, place = self._tables, (address.thread_id, address.namespace)
        if fence:
            self._write(lambda t: tables.fence_off(t, *place, fence))
            return fence
        found = self._read(lambda t: tables.namespace(t, *place))
        return 0 if found is None else found.fence
