"""The base class of all savers that store records on disk, with any storage engine."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final

from flowpregel._core.ids import new_thread_name, thread_name
from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint import arguments, maintenance, output, run_files, signals
from flowpregel.checkpoint.base import Lease
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.checkpoint.consumers import (
    ConsumerEntry,
    ConsumerRegistration,
    QueueConsumer,
    QueueConsumers,
)
from flowpregel.checkpoint.layout import NamespaceRecord, digest
from flowpregel.checkpoint.leases import LeaseFiles, LeaseRegistry, LiveState
from flowpregel.checkpoint.maintenance import Stats, ThreadInfo, Verification
from flowpregel.checkpoint.paused import PAUSED, PausedRuns
from flowpregel.checkpoint.pool_request import (
    POOLS,
    PoolRequest,
    pool_requests,
    with_request,
)
from flowpregel.checkpoint.reader import Glance
from flowpregel.checkpoint.records import EncodedBatch, RecordSaver, encode_batch
from flowpregel.checkpoint.retention import (
    Retention,
    RetentionCollector,
    pin,
    undo_calls,
)
from flowpregel.checkpoint.run_prefetcher import RunPrefetcher
from flowpregel.checkpoint.scheduled import (
    SCHEDULES,
    ScheduledFlow,
    encoded_schedules,
    scheduled_flows,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.checkpoint.work import status_of
from flowpregel.errors import ConfigurationError, StoreFullError
from flowpregel.storage.codec import Codec
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.locks import LockHolder
from flowpregel.storage.options import StoreOptions
from flowpregel.storage.records import Seal
from flowpregel.storage.renames import RENAMED, names_in, with_rename
from flowpregel.storage.stores import DurableStore, in_snapshots, shared_snapshot

_THREADS_AT_ONCE: Final = 64
"""The number of threads whose newest checkpoints are read in one transaction."""
_RATE: Final = b"rate"
"""The prefix of the keys, in the table ``meta``, of the records of rate limits. The
digest of the limit's name follows it.
"""

__all__ = [
    "ConsumerEntry",
    "ConsumerRegistration",
    "DurableSaver",
    "EncodedBatch",
    "LeaseFiles",
    "LeaseRegistry",
    "LiveState",
    "NamespaceRecord",
    "PausedRuns",
    "PoolRequest",
    "QueueConsumer",
    "QueueConsumers",
    "Retention",
    "ScheduledFlow",
    "Stats",
    "Tables",
    "ThreadInfo",
    "Verification",
    "encode_batch",
]


class DurableSaver(RecordSaver):
    """A saver whose records are on disk, on this machine or another. Several processes
    may use the store at once.

    Args:
        store: The open store.
        tables: The tables of the store.
        leases: The leases in the store.
        options: The options with which the store was opened.
        retention: The history to keep, or None to keep all of it.
    """

    keeps_arguments: ClassVar[bool] = True
    _store: DurableStore
    _leases: LeaseRegistry

    def __init__(
        self,
        store: DurableStore,
        tables: Tables,
        leases: LeaseRegistry,
        options: StoreOptions,
        retention: Retention | None,
    ) -> None:
        limits = options.kept_arguments, options.kept_output, options.kept_previews
        super().__init__(tables, leases, retention, limits)
        self._store = store
        self.path: str = store.path
        """The name of the store in messages."""
        self.location: str = self.path
        """The path of a folder, or a URL, by which the store is opened."""
        self.locks_folder: str = ""
        """The folder of the store's lock files, or an empty string if it has none."""
        self.options = options
        """The options with which the store was opened."""
        self.consumers: QueueConsumers = QueueConsumers(tables, leases)
        """The processes of `flowpregel work` that take runs from the store."""

    @abstractmethod
    def opened_to_look(self, codec: Codec) -> tuple[DurableStore, LeaseRegistry]:
        """Open the store a second time, for reading values with *codec*, and return
        that store and its leases.
        """

    def load_channels(self, address: Address) -> Saved | None:
        """Return the checkpoint at *address* as `load` does, without task writes.

        Args:
            address: The thread, the namespace and, optionally, the checkpoint.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.base import Address
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     saver.load_channels(Address("1")).checkpoint.values["__end__"]
            8
            8
        """
        copied = self._read(partial(self._reader.find, address=address, tasks=False))
        return None if copied is None else self._reader.decoded(copied)

    def glance(self, thread_id: str) -> Glance | None:
        """Return the part of a thread's newest checkpoint that can be decoded without
        the user's classes, or None if there is no such thread.

        This helps to find the program that must be imported to decode the rest.

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
            ...     saver.glance("1").saved.checkpoint.metadata["flow"]
            8
            '...:double'
        """
        return self._reader.glance(Address(thread_name(thread_id)))

    # -------------------------------------------------------- runs

    def owner(self, thread_id: str, namespace: str = "") -> LockHolder | None:
        """Return the process whose run holds a thread (has its lease), or None if no
        run holds it.

        Args:
            thread_id: The id of the thread.
            namespace: The namespace of a nested run, or an empty string.

        Example:
            >>> from os import getpid
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     with saver.lease("1"):
            ...         saver.owner("1").pid == getpid()
            True
        """
        return self._leases.owner(Address(thread_name(thread_id), namespace))

    def cancel(self, thread_id: str, namespace: str = "") -> LockHolder | None:
        """Ask the run that holds a thread to stop. It may run in any process.

        The run checks for such requests five times a second. It stops its tasks in
        worker processes and keeps the results of finished tasks, and its ``invoke``
        raises `TaskCancelled`. A later ``invoke(None)`` resumes the run.

        Args:
            thread_id: The id of the thread.
            namespace: The namespace of a nested run, or an empty string.

        Returns:
            The process of the run, or None if no run holds the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.cancel("1") is None  # no run holds the thread
            True
        """
        return self._leases.ask_to_stop(Address(thread_name(thread_id), namespace))

    @contextmanager
    def lease_to_delete(self, thread_id: str, namespace: str = "") -> Iterator[Lease]:
        """Hold the lease of a thread while records of it are deleted.

        A lease may be a file. If the disk is full, the space that the store reserves
        for deletions is freed, and used for that file, too.

        Args:
            thread_id: The id of the thread.
            namespace: The namespace of a nested run, or an empty string.

        Raises:
            ThreadBusyError: A run holds the thread.
            StoreFullError: The disk is full, and no space was reserved.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     with saver.lease_to_delete("1"):
            ...         saver.delete_thread("1")
        """
        with ExitStack() as resources:
            try:
                lease = resources.enter_context(self.lease(thread_id, namespace))
            except StoreFullError:
                if not self.free_reserve():
                    raise
                lease = resources.enter_context(self.lease(thread_id, namespace))
            yield lease

    def kept_arguments(
        self, address: Address, task_id: str
    ) -> arguments.StoredArguments | None:
        """Return the arguments of a failed call, or None if they are not stored.

        Args:
            address: The checkpoint from which the call started.
            task_id: The id of the call.

        Raises:
            ValueEncodingError: An argument cannot be decoded.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint, task
            >>> from flowpregel.checkpoint.base import Address
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> @task(executor="inline")
            ... def invert(number: float) -> float:
            ...     return 1 / number
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def study(number: float) -> float:
            ...         return invert(number).result()
            ...     try:
            ...         study.run(0, id="1")
            ...     except ZeroDivisionError:
            ...         saved = saver.load(Address("1"))
            ...         for task_id, _, attempt in saved.ran:
            ...             if attempt.call == "invert(0)":
            ...                 print(saver.kept_arguments(saved.address, task_id).args)
            (0,)
        """
        data = self._read(
            partial(
                arguments.stored_arguments,
                self._tables,
                address=address,
                task_id=task_id,
            )
        )
        return None if data is None else arguments.decoded(data, self._tables.codec)

    def keep_output(self, address: Address, part: CallOutput) -> None:
        self._output.add(address, part)

    def kept_output(self, address: Address) -> list[CallOutput]:
        return list(self._read(partial(output.stored_outputs, self._tables, address)))

    def redo(self, address: Address, calls: Collection[str]) -> None:
        """Undo calls, so that the thread's next run makes them again.

        The results of the tasks that made the calls, and all later checkpoints, are
        deleted too. The other calls of these tasks stay recorded.

        Args:
            address: The checkpoint with which the writes of the calls are stored.
            calls: The ids of the calls.

        Raises:
            ThreadBusyError: A run holds the thread.
            ConfigurationError: There is no such checkpoint.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint, task
            >>> from flowpregel.checkpoint.base import Address
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> @task(executor="inline")
            ... def roll(sides: int) -> int:
            ...     print("rolling")
            ...     return sides
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def game(sides: int) -> int:
            ...         return roll(sides).result()
            ...     game.run(6, id="1")
            ...     first = [*saver.history(Address("1"))][-1]
            ...     tasks = {attempt.name: task_id for task_id, _, attempt in first.ran}
            ...     saver.redo(first.address, [tasks["roll"]])
            ...     game.run(6, id="1")
            rolling
            6
            rolling
            6
        """
        with self.lease_to_delete(address.thread_id, address.namespace):
            self._make_room(lambda t: undo_calls(self._tables, t, address, calls))

    def rename(self, old: str, new: str) -> None:
        """Record that the class, function or module *old* is now called *new*, so that
        recorded values refer to *new*.

        No value is rewritten, because the store keeps the new name in one record. Other
        processes that have the store open use the new name after they open the store
        again.

        Args:
            old: The full name in recorded values, such as ``mypkg.old.C``.
            new: The new full name.

        Raises:
            ConfigurationError: A name is empty, or both names are the same.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.rename("shop.orders.Order", "shop.models.Order")
        """
        if not old or not new or old == new:
            raise ConfigurationError(
                f"rename {old!r} to {new!r}: use full names, such as "
                "'package.module.Class', that differ"
            )
        meta = self._tables.meta

        def work(transaction: Any) -> None:
            names = names_in(meta.get(transaction, RENAMED))
            meta.put(transaction, RENAMED, with_rename(names, old, new))

        self._write(work)
        self._tables.codec.renames.forget()

    def pin(self, address: Address, *, pinned: bool = True) -> None:
        """Protect the checkpoint at *address* from `Retention`, or end its protection
        if not *pinned*.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.base import Address
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver, Retention
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     first = [*saver.history(Address("1"))][-1]
            ...     saver.pin(Address("1", "", first.checkpoint.id))
            ...     saver.sweep(Retention(keep_last=1))
            8
            0
        """
        self._write(partial(pin, self._tables, address=address, pinned=pinned))

    def has_signal(self, thread_id: str, name: str, receiver: str) -> bool:
        """Return whether `receive_signal` would return a value to *receiver*.

        Args:
            thread_id: The thread of the run.
            name: The name of the signal.
            receiver: The id of the call that waits for the signal.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.send_signal("1", "paid", 20)
            ...     saver.has_signal("1", "paid", "call-1")
            ...     saver.has_signal("1", "approved", "call-1")
            True
            False
        """
        signal = self._read(
            partial(
                signals.unreceived,
                self._tables,
                thread_id=thread_name(thread_id),
                name=name,
                receiver=receiver,
            )
        )
        return signal is not None

    # -------------------------------------------------------- pauses

    def paused(self) -> PausedRuns:
        """Return the runs that `flowpregel work` neither begins nor resumes.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.paused().everything
            False
        """
        data = self._read(partial(self._tables.meta.get, key=PAUSED))
        return PausedRuns.of(data)

    def pause(
        self,
        threads: Collection[str] = (),
        *,
        flows: Collection[str] = (),
        everything: bool = False,
    ) -> None:
        """Pause runs: `flowpregel work` takes none of them, and ends those that it
        runs when their running calls have ended.

        Args:
            threads: The threads of single runs.
            flows: The flows whose runs are paused, as ``MODULE:FLOW``.
            everything: Whether to pause all runs of the store.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.pause(["wing"])
            ...     sorted(saver.paused().threads)
            ['wing']
        """
        names = [thread_name(thread) for thread in threads]

        def change(paused: PausedRuns) -> PausedRuns:
            return paused.with_runs(names, flows, everything=everything)

        self._change_paused(change)

    def unpause(
        self,
        threads: Collection[str] = (),
        *,
        flows: Collection[str] = (),
        everything: bool = False,
    ) -> None:
        """End pauses, so that `flowpregel work` takes the runs again.

        Args:
            threads: The threads of single runs.
            flows: The flows whose runs were paused, as ``MODULE:FLOW``.
            everything: Whether to end all pauses, also those of flows and single runs.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.pause(["wing", "hull"])
            ...     saver.unpause(["wing"])
            ...     sorted(saver.paused().threads)
            ['hull']
        """
        names = [thread_name(thread) for thread in threads]

        def change(paused: PausedRuns) -> PausedRuns:
            return paused.without_runs(names, flows, everything=everything)

        self._change_paused(change)

    def _change_paused(self, change: Callable[[PausedRuns], PausedRuns]) -> None:
        """Replace the record of paused runs by the result of *change*, unless the two
        are equal.
        """
        meta = self._tables.meta
        before = self.paused()
        if change(before) == before:
            return

        def work(transaction: Any) -> None:
            paused = PausedRuns.of(meta.get(transaction, PAUSED))
            meta.put(transaction, PAUSED, change(paused).encoded())

        self._write(work)

    # -------------------------------------------------------- sizes of pools

    def pool_request(self, thread_id: str) -> PoolRequest | None:
        """Return the request to resize the pools of a thread's run, or None if there is
        no request.

        Args:
            thread_id: The id of the thread.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.durable import PoolRequest
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> from flowpregel.storage import LockHolder
            >>> request = PoolRequest(workers=4, owner=LockHolder.me())
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.request_pool("study-1", request)
            ...     saver.pool_request("study-1").workers
            4
        """
        data = self._read(partial(self._tables.meta.get, key=POOLS))
        return None if data is None else pool_requests(data).get(thread_id)

    def request_pool(self, thread_id: str, request: PoolRequest | None) -> None:
        """Request another size of the pools of a thread's run, which is under way.

        The process of the run reads the request only while another process watches the
        run. Running tasks continue: if the pool becomes smaller, its workers end after
        their tasks.

        Args:
            thread_id: The id of the thread.
            request: The new sizes, or None to withdraw the last request.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.request_pool("study-1", None)
            ...     saver.pool_request("study-1") is None
            True
        """
        meta, name = self._tables.meta, thread_name(thread_id)

        def work(transaction: Any) -> None:
            data = with_request(meta.get(transaction, POOLS), name, request)
            meta.put(transaction, POOLS, data)

        self._write(work)

    # -------------------------------------------------------- schedules

    def schedules(self) -> dict[str, ScheduledFlow]:
        """Return the workflows whose schedules `flowpregel work` follows, by
        ``MODULE:FLOW``.
        """
        data = self._read(partial(self._tables.meta.get, key=SCHEDULES))
        return scheduled_flows(data)

    def change_schedules(
        self, change: Callable[[dict[str, ScheduledFlow]], None]
    ) -> None:
        """Change the workflows whose schedules `flowpregel work` follows.

        Args:
            change: A function, called in a transaction, that changes the dict of
                scheduled workflows in place.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.durable import ScheduledFlow
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     nightly = {"jobs:nightly": ScheduledFlow(1_777_600_800.0)}
            ...     saver.change_schedules(lambda flows: flows.update(nightly))
            ...     list(saver.schedules())
            ['jobs:nightly']
        """
        meta = self._tables.meta

        def work(transaction: Any) -> None:
            flows = scheduled_flows(meta.get(transaction, SCHEDULES))
            change(flows)
            meta.put(transaction, SCHEDULES, encoded_schedules(flows))

        self._write(work)

    def change_rate(
        self, name: str, change: Callable[[bytes | None], tuple[bytes, Any]]
    ) -> Any:
        """Change the record of a rate limit, which all programs that use the store
        share.

        Args:
            name: The name of the rate limit.
            change: A function, called in a transaction. It takes the old record, or
                None if there is none, and returns the new record and a result for the
                caller.

        Returns:
            The result that *change* returned.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.change_rate("ask", lambda data: (b"1", data))
            ...     saver.change_rate("ask", lambda data: (b"2", data))
            b'1'
        """
        meta = self._tables.meta
        key = _RATE + digest(name)

        def work(transaction: Any) -> Any:
            record, result = change(meta.get(transaction, key))
            meta.put(transaction, key, record)
            return result

        return self._write(work)

    # -------------------------------------------------------- runs as files

    def export_thread(
        self,
        thread_id: str,
        path: str | os.PathLike[str],
        *,
        key: bytes | None = None,
    ) -> None:
        """Write a thread, with its history and nested runs, into the new file *path*.

        The file contains the state of the thread at one moment, even if a run is under
        way. It appears under its name only when it is complete and on disk, with mode
        0600. If the store is encrypted, the file is encrypted under the same key. Files
        on disk to which the run refers, and results in a cache, are not in it.

        Args:
            thread_id: The id of the thread.
            path: The path of the file.
            key: The secret key for the checksums of the file, or None for the key of
                the store.

        Raises:
            ConfigurationError: There is no such thread, or *key* is empty.
            StoreError: There is a file at *path*, or it cannot be written.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     saver.export_thread("1", folder + "/1.run")
            ...     saver.import_thread(folder + "/1.run", "2")
            ...     double.run(4, id="2")  # returns the recorded result
            8
            '2'
            8
        """
        name = thread_name(thread_id)
        file_path = os.path.abspath(path)
        self._output.flush()
        with run_files.new_file(file_path) as draft:

            def work(transaction: Any) -> None:
                seal = self._file_seal(key, self.options.encryption_key)
                with translate_os_errors(file_path), open(draft, "wb") as file:
                    writer = run_files.RunFileWriter(file, seal)
                    run_files.export_records(self._tables, transaction, name, writer)

            self._read(work)

    def import_thread(
        self,
        path: str | os.PathLike[str],
        thread_id: str | None = None,
        *,
        trust: bool = False,
        key: bytes | None = None,
        encryption_key: bytes | None = None,
    ) -> str:
        """Store the thread from a file that `export_thread` wrote.

        The file may come from another kind of store. The thread is stored whole or not
        at all. An unfinished run does not continue by itself, but can be resumed. No
        value is decoded.

        Args:
            path: The path of the file.
            thread_id: The id of the thread in this store, or None for its own id.
            trust: True to accept a file whose checksums were made with another key. The
                values in it can run code when they are read.
            key: The secret key with which the file's checksums were made, or None for
                the key of the store.
            encryption_key: The key with which the file is encrypted, or None for the
                key of the store.

        Returns:
            The id of the thread.

        Raises:
            ConfigurationError: The thread has checkpoints in this store, there is no
                file, or *key* is empty.
            StoreCorruptError: The file is damaged.
            StoreForeignError: The checksums or the encryption of the file were made
                with another key.
            StoreVersionError: A later release wrote the file.
            ThreadBusyError: A run holds the thread in this store.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.import_thread("missing.run")
            Traceback (most recent call last):
            flowpregel.errors.ConfigurationError: there is no file ...missing.run
        """
        # The store may be a database that is opened only at its first use, and its key
        # is known only then. So this read opens the store before the key is needed.
        self._read(partial(self._tables.meta.get, key=RENAMED))
        seal = self._file_seal(key, encryption_key or self.options.encryption_key)
        with run_files.RunFile.opened(os.path.abspath(path), seal, trust=trust) as file:
            name = file.thread_id if thread_id is None else new_thread_name(thread_id)
            with self.lease(name):
                self._write(partial(file.put, self._tables, thread_id=name))
        self._tables.codec.renames.forget()
        return name

    def _file_seal(self, key: bytes | None, encryption_key: bytes | None) -> Seal:
        """Return the keys of a run file: for its checksums *key* or else the store's
        own key, and for its encryption *encryption_key*.
        """
        store_seal = self._tables.meta.seal
        if key is not None and not key.strip():
            raise ConfigurationError("the key of the file is empty; give a secret key")
        return Seal(key or store_seal.key, encryption_key)

    def delete_thread(self, thread_id: str) -> None:
        super().delete_thread(thread_id)
        # If the pause remained, it would also pause a later run with the same id.
        self.unpause([thread_id])

    # -------------------------------------------------------- maintenance

    def threads(self) -> Iterator[ThreadInfo]:
        """Yield the facts about each thread, in no particular order."""
        return self._infos(None)

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return the facts about one thread, or None if there is no such thread.

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
            ...     saver.thread("1").step
            8
            0
        """
        return next(self._infos(thread_id), None)

    def in_snapshots(self, thread_ids: Iterable[str]) -> Iterator[str]:
        """Yield *thread_ids*, and have the reads inside the caller's loop use a shared
        snapshot of the store, renewed after every few threads. From a database on
        another machine, the newest checkpoints, signals and leases of these threads are
        read ahead, in a few round trips.

        The reads must be on this OS thread. They may not see records that the caller
        writes inside the loop.

        Args:
            thread_ids: The ids of the threads, in order.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     print([saver.thread(id) for id in saver.in_snapshots(["a", "b"])])
            [None, None]
        """
        prefetcher = RunPrefetcher(self._store, self._tables, self._leases)
        return in_snapshots(self._store, thread_ids, prefetcher.threads)

    def writes_contain(self, thread_id: str, parts: Sequence[bytes]) -> bool:
        """Return whether the record of a task or a call of a thread contains any of
        *parts*. Nothing is decoded, so this is much faster than reading all results.

        Args:
            thread_id: The id of the thread.
            parts: Parts of encoded values, such as the name of a class.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint, task
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> @task(executor="inline")
            ... def name_of(number: int) -> str:
            ...     return f"Number {number}"
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def flow(number: int) -> str:
            ...         return name_of(number).result()
            ...     flow.run(4, id="1")
            ...     saver.writes_contain("1", [b"Number 4"])
            ...     saver.writes_contain("1", [b"Number 5"])
            'Number 4'
            True
            False
        """

        def search(transaction: Any) -> bool:
            address = Address(thread_name(thread_id))
            namespace = self._tables.namespace(transaction, address)
            if namespace is None:
                return False
            for _, data in self._tables.writes.scan(transaction, namespace.prefix):
                payload = bytes(data)
                for part in parts:
                    if part in payload:
                        return True
            return False

        contains: bool = self._read(search)
        return contains

    def size(self) -> int:
        """Return the size of the store on disk, in bytes."""
        return int(self._store.sizes()[0])

    def stats(self) -> Stats:
        """Return the sizes and counts of the stored records. All records are read."""
        return maintenance.count(self._tables, *self._store.sizes())

    def sweep(
        self, retention: Retention, thread_ids: Sequence[str] | None = None
    ) -> int:
        """Delete the history that *retention* does not keep, and return the number of
        deleted checkpoints.

        Args:
            retention: The history to keep.
            thread_ids: The threads, or None for all threads.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel import entrypoint
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver, Retention
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     @entrypoint(checkpointer=saver)
            ...     def double(number: int) -> int:
            ...         return 2 * number
            ...     double.run(4, id="1")
            ...     saver.sweep(Retention(keep_last=1))
            8
            1
        """
        collector = RetentionCollector(self._tables, retention)
        addresses: list[Address] = []
        if thread_ids is None:
            addresses += self.namespaces()
        else:
            for thread_id in thread_ids:
                addresses += self.namespaces(thread_id)
        deleted = 0
        for address in addresses:
            deleted += self._make_room(partial(collector.sweep, address=address))
        return deleted

    def abandoned(self) -> list[Address]:
        """Return the addresses of runs whose process has died, because their leases
        have expired.

        Raises:
            ConfigurationError: The leases of this kind of store do not expire.
        """
        raise ConfigurationError(
            "recover is for a store whose leases expire, such as one in PostgreSQL; "
            "`flowpregel wake` resumes the runs of this one"
        )

    def backup(self, path: str) -> None:
        """Copy a snapshot of the store to *path*.

        Raises:
            ConfigurationError: This kind of store must be copied with the database's
                own tools.
        """
        raise self._unsupported("backup")

    def compact(self) -> None:
        """Return the unused space of the store to the disk.

        Raises:
            ConfigurationError: This kind of store returns unused space by itself.
        """
        raise self._unsupported("compact")

    def change_keys(
        self, *, encryption_key: bytes | None, key: bytes | None = None
    ) -> None:
        """Rewrite every record with other secret keys, and close the saver.

        Args:
            encryption_key: The key with which to encrypt all records, or None to store
                them without encryption.
            key: The key for the checksums of all records, or None to keep the present
                key.

        Raises:
            ConfigurationError: The keys of this kind of store cannot be changed.
        """
        raise self._unsupported("change_keys")

    def _unsupported(self, method: str) -> ConfigurationError:
        """Return the error for a method that this kind of store does not have."""
        kind = type(self).__name__
        return ConfigurationError(f"{kind} has no {method}; the store is {self.path}")

    def verify(self) -> Verification:
        """Read all records, and return the damage that was found.

        This checks the checksum of every record, and that every checkpoint is complete.
        No value is decoded.
        """
        return maintenance.verify_records(self._tables, self._reader)

    def close(self) -> None:
        self._output.flush()
        self._store.close()

    def _infos(self, thread_id: str | None) -> Iterator[ThreadInfo]:
        records = self._tables.used(thread_id)
        while page := [*islice(records, _THREADS_AT_ONCE)]:
            addresses = [
                Address(record.thread_id) for record in page if not record.namespace
            ]
            read = partial(maintenance.newest_checkpoints, self._reader)
            with shared_snapshot(self._store):
                copies = self._read(partial(read, addresses=addresses))
                owners = self._leases.owners(addresses)
            for copied in copies:
                newest = self._reader.decoded(copied)
                running = Address(newest.address.thread_id) in owners
                yield ThreadInfo(
                    thread_id=newest.address.thread_id,
                    created=copied.namespace.created,
                    updated=newest.checkpoint.at,
                    step=newest.checkpoint.step,
                    status=status_of(newest, running=running),
                    metadata=newest.checkpoint.metadata,
                )
