"""The durable saver: checkpoints and pending writes in one LMDB folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

from flowpregel._core.records import Address, Batch, Saved
from flowpregel._lmdb import ballast, files
from flowpregel._lmdb.codec import Codec
from flowpregel._lmdb.locks import Owner
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel._lmdb.records import Seal
from flowpregel._lmdb.store import open_store
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
from flowpregel.checkpoint.lmdb.leases import LeaseFiles
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
from flowpregel.errors import LeaseLostError, StoreError, StoreFullError


class LMDBSaver(BaseCheckpointSaver):
    """Keeps checkpoints, pending writes and deltas in a folder on disk.

    A superstep is one transaction: once `commit` returns, it is on disk, and
    after a crash it is there as a whole or not at all. The folder may be used by
    several processes at once; in one process all savers of a folder share it.

    Args:
        path: The folder; made if it is not there (mode 0700).
        map_size: The bytes of address space to begin with; it grows by itself.
        readonly: Only read; nothing is made or changed.
        lock: Register as a reader. False, with *readonly*, reads from a folder
            that cannot be written; nobody else may write it meanwhile.
        codec: Turns values into bytes; by default any Python value, exactly.
        retention: How much history is kept; by default all of it.
        options: The rarely needed.

    Raises:
        StoreError: It cannot be opened; the classes below it say why.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder + "/runs.lmdb") as saver:
        ...     [*saver.threads()]
        []
    """

    keeps_arguments: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - a public face: each is a choice of its own
        self,
        path: str | os.PathLike[str],
        *,
        map_size: int = DEFAULT_MAP_SIZE,
        readonly: bool = False,
        lock: bool = True,
        codec: Codec | None = None,
        retention: Retention | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self.options = options or StoreOptions()
        """How the store was opened."""
        self._store = open_store(
            path,
            map_size=map_size,
            readonly=readonly,
            lock=lock,
            codec=codec,
            options=self.options,
        )
        self._environment = environment = self._store.environment
        self.path = environment.path
        """The folder, as the one path that all its names share."""
        self._write = partial(environment.write, timeout=self.options.lock_timeout)
        self._tables = Tables(self._store)
        self._reader = Reader(self._tables, environment.read, self._store.codec)
        self._sources: set[str] = set()
        """The digests of the code whose source is kept for certain."""
        self._output = output.OutputBuffer(self._tables, self._write, self.options.kept_output)
        self._sweeper = None if retention is None else Sweeper(self._tables, retention)
        leases = LeaseFiles(self.path, self._store.table(b"live"))
        self._leases: LeaseFiles = environment.shared.setdefault("leases", leases)

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
        work = partial(put, self._tables, batches=prepared)
        self._write(self._output.beside(work) if self._output.pending else work)
        self._sources.update(*(batch.sources for batch in prepared))
        if (sweeper := self._sweeper) is None:
            return
        for batch in prepared:
            if batch.checkpoint is not None and sweeper.is_due(batch.address):
                self._write(partial(sweeper.sweep, address=batch.address))

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        for each in self._tables.used(self._environment.read, thread_id):
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

    def stats(self) -> Stats:
        """Return how much is kept, and for what; reads everything once."""
        used, map_size = self._environment.sizes()
        stats, read = Stats(bytes=used, map_size=map_size), self._environment.read
        maintenance.count(self._tables, read, self._tables.used(read, None), stats)
        return stats

    def size(self) -> int:
        """Return the bytes that the store takes up in its file."""
        return self._environment.sizes()[0]

    def verify(self) -> Verification:
        """Read everything, and return what is damaged.

        Checks every record's checksum, whether every checkpoint's parts are
        there, and the pages of the file. Nothing is decoded. Writers wait while
        the pages are looked at.
        """
        environment = self._environment
        used = self._tables.used(environment.read, None)
        records, problems = maintenance.verify(self._tables, self._reader, used)
        if not environment.readonly:
            problems += environment.structure(self.options.lock_timeout)
        return Verification(records=records, problems=tuple(problems))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the store, as it is at one moment, into the new folder *path*.

        It may be used meanwhile. The copy is compacted, is a store of its own
        under the same key, and appears only when it is whole and on disk.

        Raises:
            StoreError: There is something at *path* already.
            StoreFullError: There is no room.
        """
        target = files.real_path(path)
        if files.exists(target) or not files.create(target, self._environment.copy):
            raise StoreError(f"there is a store at {target} already; give a new folder")
        files.close_to_others(target)

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

    def compact(self) -> None:
        """Write the file anew without the room that is free.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        self._environment.replace(self.options.lock_timeout)

    def change_keys(self, *, encryption_key: bytes | None, key: bytes | None = None) -> None:
        """Write every record anew under other keys, into a new file, and close the saver.

        All that is in the folder is meant: threads, items of an `LMDBStore`,
        results of an `LMDBCache`. Whatever happens on the way, a crash or a full
        disk, the store is as it was, or is the new one. Open it with the new keys
        then: with the old ones it is refused.

        Args:
            encryption_key: 16, 24 or 32 bytes that everything is encrypted under
                from now on; None: nothing is.
            key: What records are sealed under, to be given as
                ``FLOWPREGEL_STORE_KEY`` then; None: what they are sealed under now.

        Raises:
            StoreBusyError: Something else has the store open.
            StoreForeignError: There is a record that this saver has no key for.
            StoreFullError: There is no room for a second file.

        Example:
            >>> import os
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     LMDBSaver(folder + "/runs.lmdb").change_keys(encryption_key=os.urandom(32))
        """
        # Made for its checks of both keys: while nothing is closed yet.
        StoreOptions(encryption_key=encryption_key, trust=key)
        same = self._store.seal
        if key is None:
            new = Seal(same.key, encryption_key, is_kept=same.is_kept)
        else:
            new = Seal(key, encryption_key)
        self._store.seal_anew(new)

    def close(self) -> None:
        self._output.flush()
        self._store.close()

    # -------------------------------------------------------- inner

    def _infos(self, thread_id: str | None) -> Iterator[ThreadInfo]:
        for each in self._tables.used(self._environment.read, thread_id):
            address = Address(each.thread_id, each.namespace)
            if not each.namespace and (newest := self.load(address)) is not None:
                running = self._leases.owner(address) is not None
                yield maintenance.info_of(each, newest, running=running)

    def _make_room(self, work: Callable[[Any], Any]) -> Any:
        """Do *work*, which drops something; on a full disk, with the room of the ballast."""
        try:
            return self._write(work)
        except StoreFullError:
            if not ballast.drop(self.path):
                raise
            return self._write(work)

    def _fence(self, address: Address, fence: int) -> int:
        """Return the fence the store knows of *address*, putting one there if given."""
        tables, place = self._tables, (address.thread_id, address.namespace)
        if fence:
            self._write(lambda t: tables.fence_off(t, *place, fence))
            return fence
        found = self._environment.read(lambda t: tables.namespace(t, *place))
        return 0 if found is None else found.fence
