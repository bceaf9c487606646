"""What durable savers have in common: records in tables, whoever keeps the tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, Protocol

from flowpregel._core.records import Address, Batch, Saved
from flowpregel._lmdb.codec import Codec
from flowpregel._lmdb.locks import Owner
from flowpregel._lmdb.options import StoreOptions
from flowpregel._lmdb.records import SealedStore
from flowpregel.checkpoint.base import (
    BaseCheckpointSaver,
    EncodedBatch,
    Lease,
    OnConflict,
    Strategy,
    check_strategy,
    thread_name,
)
from flowpregel.checkpoint.lmdb import arguments, maintenance, output, signals
from flowpregel.checkpoint.lmdb.leases import Fences
from flowpregel.checkpoint.lmdb.maintenance import Stats, ThreadInfo, Verification
from flowpregel.checkpoint.lmdb.reader import Reader
from flowpregel.checkpoint.lmdb.redo import take_back
from flowpregel.checkpoint.lmdb.retention import (
    Retention,
    Sweeper,
    copy_thread,
    forget_checkpoints,
    forget_thread,
)
from flowpregel.checkpoint.lmdb.tables import Tables
from flowpregel.checkpoint.lmdb.writer import encoded, put
from flowpregel.checkpoint.output import CallOutput
from flowpregel.errors import LeaseLostError


class Leases(Protocol):
    """The leases that this process holds in one store."""

    held: set[tuple[str, int]]
    """The thread and the fence of each."""

    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write at *address* while the context is open."""

    def owner(self, address: Address) -> Owner | None:
        """Return who holds the lease at *address*; None: nobody does."""

    def ask_to_stop(self, address: Address) -> Owner | None:
        """Ask the run that holds the lease at *address* to stop; return whose it is."""

    def watch(self, address: Address) -> tuple[Owner, dict[str, Any]] | None:
        """Return whose run holds the lease at *address*, and what it shows; None: nothing yet."""


class DurableSaver(BaseCheckpointSaver):
    """A saver whose records are on disk, here or elsewhere, for many processes at once.

    Args:
        store: Where the records are.
        tables: Its tables.
        leases: Those of this process in it.
        retention: How much history is kept; None: all of it.
    """

    keeps_arguments: ClassVar[bool] = True
    options: StoreOptions
    """How the store was opened."""

    def __init__(
        self, store: SealedStore, tables: Tables, leases: Leases, retention: Retention | None
    ) -> None:
        self._store = store
        self.path: str = store.environment.path
        """The store, as messages name it."""
        self._tables = tables
        self._leases = leases
        self._read = store.environment.read
        self._write = partial(store.environment.write, timeout=self.options.lock_timeout)
        self._put: Callable[..., None] = partial(put, tables)
        self._reader = Reader(tables, self._read, store.codec)
        self._sources: set[str] = set()
        """The digests of the code whose source is kept for certain."""
        self._output = output.OutputBuffer(tables, self._write, self.options.kept_output)
        self._sweeper = None if retention is None else Sweeper(tables, retention)

    @property
    def location(self) -> str:
        """What the store is opened by: the path of a folder, or a URL."""
        return self.path

    @abstractmethod
    def opened_to_look(self, codec: Codec) -> tuple[SealedStore, Leases]:
        """Open the store once more, to be read with *codec*; return that and who holds leases."""

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

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield what `history` does, without what the channels held."""
        return self._reader.history(address, bare=True)

    def prepare(self, batch: Batch) -> EncodedBatch:
        if isinstance(batch, EncodedBatch):
            return batch
        return encoded(batch, self._store.codec, self.options.kept_arguments, self._sources)

    def commit(self, batches: Sequence[Batch]) -> None:
        prepared = [self.prepare(batch) for batch in batches]
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
        return self._leases.hold(Address(thread_id, namespace), on_conflict, self._fence)

    def owner(self, thread_id: str, namespace: str = "") -> Owner | None:
        """Return the process whose run holds a thread, or None if nothing runs on it."""
        return self._leases.owner(Address(thread_name(thread_id), namespace))

    def cancel(self, thread_id: str, namespace: str = "") -> Owner | None:
        """Ask the run that holds a thread to stop, in whatever process it is.

        It looks for such requests five times a second. Tasks in worker processes
        are stopped, what had finished is kept, and ``invoke`` raises
        `TaskCancelled` there; ``invoke(None)`` goes on another time.

        Returns:
            The process that was asked; None if nothing runs on the thread.
        """
        return self._leases.ask_to_stop(Address(thread_name(thread_id), namespace))

    def kept_arguments(self, address: Address, task_id: str) -> arguments.KeptArguments | None:
        """Return what a call that failed was given, or None if that is not kept.

        Args:
            address: Its checkpoint's.
            task_id: The call's.

        Raises:
            ValueEncodingError: An argument cannot be read back.
        """
        data = self._reader.read(partial(self._reader.arguments, address=address, task_id=task_id))
        return None if data is None else arguments.decoded(data, self._store.codec)

    def source_of(self, code: str) -> str:
        return str(self._reader.read(partial(self._tables.source, code=code)))

    def keep_output(self, address: Address, part: CallOutput) -> None:
        self._output.add(address, part)

    def kept_output(self, address: Address) -> list[CallOutput]:
        return list(self._reader.read(partial(output.outputs, self._tables, address)))

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        data = self._store.codec.encode(value, f"signal {name!r}")
        thread = thread_name(thread_id)
        self._write(partial(signals.send, self._tables, thread_id=thread, name=name, data=data))

    def receive_signal(self, thread_id: str, name: str, receiver: str) -> tuple[Any] | None:
        asked = {"thread_id": thread_id, "name": name, "receiver": receiver}
        # A look costs no transaction that writes.
        if self._reader.read(partial(signals.unreceived, self._tables, **asked)) is None:
            return None
        data = self._write(partial(signals.receive, self._tables, **asked))
        return None if data is None else (self._store.codec.decode(data, f"signal {name!r}"),)

    # -------------------------------------------------------- what is forgotten and copied

    def redo(self, address: Address, calls: Collection[str]) -> None:
        """Take results of calls back, so that the thread's next run makes them again.

        What was made of them goes too: how the tasks ended that made the calls, and all later
        checkpoints. The other calls of these stay recorded.

        Args:
            address: The checkpoint that the calls left something on.
            calls: Their ids.

        Raises:
            ThreadBusyError: A run has the thread.
            ConfigurationError: There is no such checkpoint.
        """
        with self.lease(address.thread_id, address.namespace):
            self._make_room(
                partial(
                    take_back, self._tables, codec=self._store.codec, address=address, calls=calls
                )
            )

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
                self._make_room(
                    partial(forget_checkpoints, self._tables, address=address, gone=gone)
                )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = thread_name(source_thread_id), thread_name(target_thread_id)
        self._write(partial(copy_thread, self._tables, source=source, target=target))

    def prune(self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest") -> None:
        check_strategy(strategy)
        for thread_id in map(thread_name, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for address in [*self.namespaces(thread_id)]:
                self._make_room(partial(forget_checkpoints, self._tables, address=address))

    def pin(self, address: Address, *, pinned: bool = True) -> None:
        """Keep the checkpoint at *address* from being dropped by a `Retention`, or let go."""
        self._write(partial(self._tables.pin, address=address, pinned=pinned))

    # -------------------------------------------------------- looking after it

    def threads(self) -> Iterator[ThreadInfo]:
        """Return what is known of each thread, in no particular order."""
        return self._infos(None)

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return what is known of one thread, or None if there is no such thread."""
        return next(self._infos(thread_id), None)

    def size(self) -> int:
        """Return the bytes that the store takes up on disk."""
        return int(self._store.environment.sizes()[0])

    def stats(self) -> Stats:
        """Return how much is kept, and for what; reads everything once."""
        used, map_size = self._store.environment.sizes()
        stats, read = Stats(bytes=used, map_size=map_size), self._read
        maintenance.count(self._tables, read, self._tables.used(read, None), stats)
        return stats

    def sweep(self, retention: Retention, thread_ids: Sequence[str] | None = None) -> int:
        """Drop at once the history that *retention* does not keep; return how many checkpoints.

        Args:
            retention: What to keep.
            thread_ids: Whose; None is every thread's.
        """
        sweeper = Sweeper(self._tables, retention)
        return sum(
            self._make_room(partial(sweeper.sweep, address=address))
            for thread_id in ((None,) if thread_ids is None else thread_ids)
            for address in [*self.namespaces(thread_id)]
        )

    def verify(self) -> Verification:
        """Read everything, and return what is damaged.

        Checks every record's checksum, and whether every checkpoint's parts are there. Nothing
        is decoded.
        """
        used = self._tables.used(self._read, None)
        records, problems = maintenance.verify(self._tables, self._reader, used)
        return Verification(records=records, problems=tuple(problems))

    def close(self) -> None:
        self._output.flush()
        self._store.close()

    # -------------------------------------------------------- inner

    def _make_room(self, work: Callable[[Any], Any]) -> Any:
        """Do *work*, which drops something."""
        return self._write(work)

    def _infos(self, thread_id: str | None) -> Iterator[ThreadInfo]:
        for each in self._tables.used(self._read, thread_id):
            address = Address(each.thread_id, each.namespace)
            if not each.namespace and (newest := self.load(address)) is not None:
                running = self._leases.owner(address) is not None
                yield maintenance.info_of(each, newest, running=running)

    def _fence(self, address: Address, fence: int) -> int:
        """Return the fence the store knows of *address*, putting one there if given."""
        tables, place = self._tables, (address.thread_id, address.namespace)
        if fence:
            self._write(lambda t: tables.fence_off(t, *place, fence))
            return fence
        found = self._read(lambda t: tables.namespace(t, *place))
        return 0 if found is None else found.fence
