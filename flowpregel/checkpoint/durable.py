"""The common part of the savers on disk, for any engine that keeps the tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint import arguments, maintenance, output
from flowpregel.checkpoint.base import Leases
from flowpregel.checkpoint.layout import Tables, thread_name
from flowpregel.checkpoint.leases import LeaseFiles
from flowpregel.checkpoint.maintenance import Stats, ThreadInfo, Verification
from flowpregel.checkpoint.output import CallOutput
from flowpregel.checkpoint.reader import Glance
from flowpregel.checkpoint.records import RecordSaver
from flowpregel.checkpoint.retention import Retention, Sweeper, pin, take_back
from flowpregel.checkpoint.work import status_of
from flowpregel.errors import ConfigurationError
from flowpregel.storage.codec import Codec
from flowpregel.storage.locks import LockHolder
from flowpregel.storage.options import StoreOptions
from flowpregel.storage.renames import RENAMED, names_in, with_rename
from flowpregel.storage.stores import DurableStore

__all__ = [
    "DurableSaver",
    "LeaseFiles",
    "LeaseRegistry",
    "Retention",
    "Stats",
    "Tables",
    "ThreadInfo",
    "Verification",
]


class LeaseRegistry(Leases, Protocol):
    """The leases in a store that other processes use too."""

    def owner(self, address: Address) -> LockHolder | None:
        """Return who holds the lease at *address*; None: nobody does."""

    def ask_to_stop(self, address: Address) -> LockHolder | None:
        """Ask the run that holds the lease at *address* to stop; return whose it is."""

    def watch(self, address: Address) -> tuple[LockHolder, dict[str, Any]] | None:
        """Return whose run holds the lease at *address*, and what it shows; None:
        nothing yet.
        """


class DurableSaver(RecordSaver):
    """A saver whose records are on disk, here or elsewhere, for many processes at
    once.
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
        kept = options.kept_arguments, options.kept_output
        super().__init__(tables, leases, retention, kept)
        self._store = store
        self.path: str = store.path
        """The store, as messages name it."""
        self.location = self.path
        """What it is opened by: the path of a folder, or a URL."""
        self.options = options
        """How the store was opened."""

    @abstractmethod
    def opened_to_look(self, codec: Codec) -> tuple[DurableStore, LeaseRegistry]:
        """Open the store once more, to be read with *codec*; return that and who holds
        leases.
        """

    def load_channels(self, address: Address) -> Saved | None:
        """Return what `load` does, without what tasks have left on the checkpoint."""
        copied = self._read(partial(self._reader.find, address=address, tasks=False))
        return None if copied is None else self._reader.decoded(copied)

    def glance(self, thread_id: str) -> Glance | None:
        """Return what is known of a thread's newest checkpoint without the user's
        classes.

        It is for who has to import the program first; None: there is no such thread.
        """
        return self._reader.glance(Address(thread_name(thread_id)))

    # -------------------------------------------------------- runs

    def owner(self, thread_id: str, namespace: str = "") -> LockHolder | None:
        """Return the process whose run holds a thread, or None if nothing runs on
        it.
        """
        return self._leases.owner(Address(thread_name(thread_id), namespace))

    def cancel(self, thread_id: str, namespace: str = "") -> LockHolder | None:
        """Ask the run that holds a thread to stop, in whatever process it is.

        It looks for such requests five times a second. Tasks in worker processes
        are stopped, what had finished is kept, and ``invoke`` raises
        `TaskCancelled` there; ``invoke(None)`` goes on another time.

        Returns:
            The process that was asked; None if nothing runs on the thread.
        """
        return self._leases.ask_to_stop(Address(thread_name(thread_id), namespace))

    def kept_arguments(
        self, address: Address, task_id: str
    ) -> arguments.KeptArguments | None:
        """Return what a call that failed was given, or None if that is not kept.

        Args:
            address: Its checkpoint's.
            task_id: The call's.

        Raises:
            ValueEncodingError: An argument cannot be read back.
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
        """Take results of calls back, so that the thread's next run makes them again.

        What was made of them goes too: how the tasks ended that made the calls, and all
        later checkpoints. The other calls of these stay recorded.

        Args:
            address: The checkpoint that the calls left something on.
            calls: Their ids.

        Raises:
            ThreadBusyError: A run has the thread.
            ConfigurationError: There is no such checkpoint.
        """
        with self.lease(address.thread_id, address.namespace):
            self._make_room(lambda t: take_back(self._tables, t, address, calls))

    def rename(self, old: str, new: str) -> None:
        """Let values name *new* what they know as *old*: a class, a function or a
        module.

        No value is written anew: the store keeps the name, in one record. Runs that
        have the store open see it when they open it again.

        Args:
            old: The full name that recorded values have, such as ``mypkg.old.C``.
            new: The full name now.

        Raises:
            ConfigurationError: A name is empty, or both are the same.
        """
        if not old or not new or old == new:
            raise ConfigurationError(f"rename {old!r} to {new!r}: use two full names")
        meta = self._tables.meta

        def work(transaction: Any) -> None:
            names = names_in(meta.get(transaction, RENAMED))
            meta.put(transaction, RENAMED, with_rename(names, old, new))

        self._write(work)
        self._tables.codec.renames.forget()

    def pin(self, address: Address, *, pinned: bool = True) -> None:
        """Keep the checkpoint at *address* from being dropped by a `Retention`, or let
        go.
        """
        self._write(partial(pin, self._tables, address=address, pinned=pinned))

    # -------------------------------------------------------- looking after it

    def threads(self) -> Iterator[ThreadInfo]:
        """Return what is known of each thread, in no particular order."""
        return self._infos(None)

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return what is known of one thread, or None if there is no such thread."""
        return next(self._infos(thread_id), None)

    def size(self) -> int:
        """Return the bytes that the store takes up on disk."""
        return int(self._store.sizes()[0])

    def stats(self) -> Stats:
        """Return how much is kept, and for what; reads everything once."""
        return maintenance.count(self._tables, *self._store.sizes())

    def sweep(
        self, retention: Retention, thread_ids: Sequence[str] | None = None
    ) -> int:
        """Drop at once the history that *retention* does not keep; return how many
        checkpoints.

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

    def abandoned(self) -> list[Address]:
        """Return the addresses at which runs have died, by leases that have expired.

        Raises:
            ConfigurationError: The leases of this kind of store do not expire.
        """
        raise ConfigurationError(
            "recover is for a store whose leases expire, such as one in PostgreSQL; "
            "`flowpregel wake` resumes the runs of this one"
        )

    def backup(self, path: str) -> None:
        """Copy the store, as it is at one moment, to *path*.

        Raises:
            ConfigurationError: This kind of store is copied with tools of its own.
        """
        raise self._unsupported("backup")

    def compact(self) -> None:
        """Return free room to the disk.

        Raises:
            ConfigurationError: This kind of store does so by itself.
        """
        raise self._unsupported("compact")

    def change_keys(self, *, encryption_key: bytes | None) -> None:
        """Write every record again under another key.

        Raises:
            ConfigurationError: This kind of store keeps its keys.
        """
        raise self._unsupported("change_keys")

    def _unsupported(self, method: str) -> ConfigurationError:
        """Return the error for a method that this kind of store does not have."""
        kind = type(self).__name__
        return ConfigurationError(f"{kind} has no {method}; the store is {self.path}")

    def verify(self) -> Verification:
        """Read everything, and return what is damaged.

        Checks every record's checksum, and whether every checkpoint's parts are there.
        Nothing is decoded.
        """
        return maintenance.verify_records(self._tables, self._reader)

    def close(self) -> None:
        self._output.flush()
        self._store.close()

    def _infos(self, thread_id: str | None) -> Iterator[ThreadInfo]:
        for each in self._tables.used(thread_id):
            address = Address(each.thread_id, each.namespace)
            if not each.namespace and (newest := self.load(address)) is not None:
                running = self._leases.owner(address) is not None
                yield ThreadInfo(
                    thread_id=each.thread_id,
                    created=each.created,
                    updated=newest.checkpoint.at,
                    step=newest.checkpoint.step,
                    status=status_of(newest, running=running),
                    metadata=newest.checkpoint.metadata,
                )
