"""The durable saver: checkpoints and pending writes in one LMDB folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

from flowpregel._core.records import Address, Batch, Saved
from flowpregel._lmdb import folder
from flowpregel._lmdb.codec import Codec
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel._lmdb.owner import Owner
from flowpregel._lmdb.seal import Seal
from flowpregel._lmdb.store import OpenStore, open_store
from flowpregel.checkpoint.base import (
    BaseCheckpointSaver,
    Lease,
    OnConflict,
    Strategy,
    check_strategy,
    thread_name,
)
from flowpregel.checkpoint.lmdb import forget
from flowpregel.checkpoint.lmdb.book import Book
from flowpregel.checkpoint.lmdb.care import (
    Stats,
    ThreadInfo,
    Verification,
    count,
    info_of,
    verify_records,
    verify_states,
)
from flowpregel.checkpoint.lmdb.copying import copy_scopes
from flowpregel.checkpoint.lmdb.group import COUNTED, GroupCommit
from flowpregel.checkpoint.lmdb.leases import Leases
from flowpregel.checkpoint.lmdb.prepared import KnownMetadata, Prepared
from flowpregel.checkpoint.lmdb.reader import Reader
from flowpregel.checkpoint.lmdb.retention import Retention, Sweeper, pin
from flowpregel.checkpoint.lmdb.scopes import Scope
from flowpregel.checkpoint.lmdb.writer import Writer
from flowpregel.errors import StoreError, StoreFullError


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

    commits_at_once: ClassVar[bool] = False

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
        self._options = options or StoreOptions()
        self._store: OpenStore = open_store(
            path,
            map_size=map_size,
            readonly=readonly,
            lock=lock,
            codec=codec,
            options=self._options,
        )
        environment, seal = self._store.environment, self._store.seal
        self.path = environment.path
        """The folder, as the one path that all its names share."""
        self._book = Book(environment, seal)
        self._codec = self._store.codec
        self._reader = Reader(self._book, environment.read, self._codec)
        self._outlines = Reader(self._book, environment.read, self._codec, bare=True)
        # All savers of a folder in this process commit in one group.
        self._writer = environment.share(("writer", seal.kind), lambda: Writer(self._book))
        self._group = environment.share(
            ("group", seal.kind), lambda: GroupCommit(environment, self._writer)
        )
        self._metadata = KnownMetadata()
        self._sweeper = None if retention is None else Sweeper(self._book, retention)
        self._leases = environment.share(("leases",), lambda: Leases(environment.path))

    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        return self._reader.load(address, before, leaves_results=lazy_results)

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
        return self._outlines.history(address, None, None, None)

    def commit(self, batches: Sequence[Batch]) -> None:
        prepared, size = [], 0
        for batch in batches:
            each = Prepared(batch, self._codec, self._metadata)
            prepared.append(each)
            size += COUNTED + each.bytes
            if batch.fence is not None:
                self._leases.check(batch.address, batch.fence)
        put = self._writer.put

        def put_all(transaction: Any) -> None:
            for each in prepared:
                put(transaction, each)

        if prepared:
            self._group.commit(put_all, self._options.lock_timeout, size)
            if self._sweeper is not None:
                self._sweep(self._sweeper, batches)

    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        for scope in self._scopes(thread_id):
            yield Address(scope.thread_id, scope.namespace)

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

    # -------------------------------------------------------- what is forgotten and copied

    def delete_thread(self, thread_id: str) -> None:
        name = thread_name(thread_id)
        self._make_room(lambda t: forget.thread(self._book, t, name))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = frozenset(run_ids)
        for scope in self._scopes(None):
            address = Address(scope.thread_id, scope.namespace)
            gone = {
                saved.checkpoint.id
                for saved in self.history(address)
                if saved.checkpoint.metadata.get("run_id") in wanted
            }
            if gone:
                self._forget(address, gone)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = thread_name(source_thread_id), thread_name(target_thread_id)
        self._change(lambda t: copy_scopes(self._book, t, source, target))

    def prune(self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest") -> None:
        check_strategy(strategy)
        for thread_id in map(thread_name, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for scope in [*self._scopes(thread_id)]:
                self._keep_latest(scope)

    def pin(self, address: Address, *, pinned: bool = True) -> None:
        """Keep the checkpoint at *address* from being dropped by a `Retention`, or let go."""

        def work(transaction: Any) -> None:
            scope = self._book.scopes.get(transaction, address.thread_id, address.namespace)
            if scope is not None and address.checkpoint_id is not None:
                pin(self._book, transaction, scope, address.checkpoint_id, pinned=pinned)

        self._change(work)

    # -------------------------------------------------------- looking after it

    def threads(self) -> Iterator[ThreadInfo]:
        """Return what is known of each thread, in no particular order."""
        return self._infos(None)

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return what is known of one thread, or None if there is no such thread."""
        return next(self._infos(thread_id), None)

    def stats(self) -> Stats:
        """Return how much is kept, and for what; reads everything once."""
        environment = self._store.environment
        stats = Stats(bytes=environment.size(), map_size=environment.map_size())
        return count(self._book, environment.read, self._scopes(None), stats)

    def size(self) -> int:
        """Return the bytes that the store takes up in its file."""
        return self._store.environment.size()

    def verify(self) -> Verification:
        """Read everything, and return what is damaged.

        Checks every record's checksum, whether every checkpoint's parts are
        there, and the pages of the file. Nothing is decoded. Writers wait while
        the pages are looked at.
        """
        environment = self._store.environment
        records, problems = verify_records(environment, self._book.tables)
        problems += verify_states(
            self._book, environment.read, self._reader.touch, self._scopes(None)
        )
        if not environment.readonly:
            problems += environment.structure(self._options.lock_timeout)
        return Verification(records=records, problems=tuple(problems))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the store, as it is at one moment, into the new folder *path*.

        It may be used meanwhile. The copy is compacted, is a store of its own
        under the same key, and appears only when it is whole and on disk.

        Raises:
            StoreError: There is something at *path* already.
            StoreFullError: There is no room.
        """
        target = folder.real_path(path)
        copy = partial(
            self._store.environment.copy, compact=True, timeout=self._options.lock_timeout
        )
        if folder.exists(target) or not folder.create(target, copy):
            raise StoreError(f"there is a store at {target} already; give a new folder")
        folder.close_to_others(target)

    def sweep(self, retention: Retention, thread_ids: Sequence[str] | None = None) -> int:
        """Drop at once the history that *retention* does not keep; return how many checkpoints.

        Args:
            retention: What to keep.
            thread_ids: Whose; None is every thread's.
        """
        sweeper = Sweeper(self._book, retention)
        dropped: list[int] = []
        for thread_id in (None,) if thread_ids is None else thread_ids:
            for scope in [*self._scopes(thread_id)]:
                counted: list[int] = []  # of the transaction's last try

                def work(transaction: Any, scope: Scope = scope, into: Any = counted) -> None:
                    into[:] = [sweeper.sweep(transaction, scope.thread_id, scope.namespace)]

                self._make_room(work)
                dropped += counted
        return sum(dropped)

    def compact(self) -> None:
        """Write the file anew without the room that is free.

        Raises:
            StoreBusyError: Another process has the store open.
        """
        self._store.environment.replace(self._options.lock_timeout)

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
        StoreOptions(encryption_key=encryption_key, trust=False if key is None else key)
        same = self._store.seal.with_encryption(encryption_key)
        self._store.seal_anew(same if key is None else Seal(key, encryption_key))

    def close(self) -> None:
        self._store.close()

    # -------------------------------------------------------- inner

    def _sweep(self, sweeper: Sweeper, batches: Sequence[Batch]) -> None:
        """Drop history that is not to be kept, if enough was committed since the last time."""
        for batch in batches:
            place = batch.address.thread_id, batch.address.namespace
            if batch.checkpoint is not None and sweeper.is_due(*place):
                self._change(partial(sweeper.sweep, thread_id=place[0], namespace=place[1]))

    def _infos(self, thread_id: str | None) -> Iterator[ThreadInfo]:
        for scope in self._scopes(thread_id):
            address = Address(scope.thread_id, scope.namespace)
            if not scope.namespace and (newest := self.load(address)) is not None:
                yield info_of(scope, newest, running=self._leases.is_held(address))

    def _change(self, work: Any) -> None:
        def change(transaction: Any) -> None:
            self._writer.unsettle()
            work(transaction)

        self._group.commit(change, self._options.lock_timeout)

    def _make_room(self, work: Any) -> None:
        """Do *work*, which drops something; on a full disk, with the room of the ballast."""
        try:
            self._change(work)
        except StoreFullError:
            if not folder.drop_ballast(self.path):
                raise
            self._change(work)

    def _forget(self, address: Address, gone: set[str]) -> None:
        def work(transaction: Any) -> None:
            scope = self._book.scopes.get(transaction, address.thread_id, address.namespace)
            if scope is not None:
                forget.checkpoints(self._book, transaction, scope, gone)

        self._make_room(work)

    def _keep_latest(self, scope: Scope) -> None:
        def work(transaction: Any) -> None:
            found = self._book.scopes.get(transaction, scope.thread_id, scope.namespace)
            if found is not None:
                ids = [each for each, _ in self._book.newest_first(transaction, found)]
                forget.checkpoints(self._book, transaction, found, frozenset(ids[1:]))

        self._make_room(work)

    def _scopes(self, thread_id: str | None) -> Iterator[Scope]:
        return self._book.used_scopes(self._store.environment.read, thread_id)

    def _fence(self, address: Address, fence: int) -> int:
        """Return the fence the store knows of *address*, putting one there if given."""
        scopes = self._book.scopes
        if fence:
            self._change(lambda t: scopes.fence_off(t, address.thread_id, address.namespace, fence))
            return fence

        def work(transaction: Any) -> int:
            scope = scopes.get(transaction, address.thread_id, address.namespace)
            return 0 if scope is None else scope.fence

        return self._store.environment.read(work)
