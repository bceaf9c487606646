"""A store in PostgreSQL: its header and connections, and its transactions, which are
repeated if the connection is lost.

::

    Database (one for each open store; its tables are described in `tables`)
     ├── read(work)     one snapshot
     ├── write(work)    one transaction; see `transactions`
     └── execute(sql)   one statement that may be repeated: leases, sizes

No session state is used (no prepared statements, session locks, LISTEN), so that a
pooler such as PgBouncer may give every transaction another session.

The database records which commits have succeeded (see `once`). So a commit whose
connection was lost is made exactly once, or raises `CommitUnknownError`.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from flowpregel.errors import (
    CommitUnknownError,
    ConfigurationError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from flowpregel.plugins.postgres.once import FORGET, LandingSlot, once
from flowpregel.plugins.postgres.tables import KINDS, MAKE, PostgresTable
from flowpregel.plugins.postgres.transactions import (
    ConflictError,
    KnownScope,
    Transaction,
    WriteTransaction,
)
from flowpregel.storage import (
    HEADER,
    Codec,
    Header,
    KeyRange,
    Seal,
    StoreOptions,
    Table,
    ValueCodec,
    defer_interrupts,
    fault,
    raise_pending_interrupts,
    seal_for,
)

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as _error:
    raise ConfigurationError(
        f"PostgreSQL needs the package psycopg ({_error}); install flowpregel[postgres]"
    ) from _error

ENGINES = ("postgresql", "0.9")
"""The name of this storage engine in a store's header, and its earlier name."""
Result = TypeVar("Result")
Attempt: TypeAlias = Callable[[psycopg.Connection[Any], LandingSlot], Any]
"""A function that makes one attempt at a write. Its arguments are a connection, and a
slot: the row of a table in which the server records the outcome (see `once`).
"""

_HEADER = KINDS[b"meta"] + HEADER
_MOST_IDLE = 4
"""The maximum number of connections that are kept open while they are not in use."""
_LONGEST_PAUSE = 0.5
"""The longest pause, in seconds, between attempts while the server is unavailable."""
_STARTING = "the database system is "
"""The words by which the refusal of a server that is starting, recovering or stopping
is recognized, if it speaks English. The error of a failed connection has no code.
"""
_PING_TIMEOUT = 2
"""Seconds after which `PQping` gives up: the least that libpq supports. The server has
just answered, so it is not expected to take long.
"""
_NO_ROOM = ("53100", "53200", "54000")
_NO_RIGHTS = ("25006", "42501")
_REPEATED = ("40001", "40P01")
"""The codes of the errors after which a transaction is tried again: a serialization
failure and a deadlock.
"""
_CUT = ("08", "57P", "25P03", "25P02", "53300")
"""The prefixes of the error codes with which a server refuses or cuts a connection,
because it is shutting down, is starting, or has no free connection.
"""
_LEASES = (
    "SELECT place, owner, expires >= clock_timestamp() FROM flowpregel.leases "
    "WHERE place = ANY(%b::bytea[])"
)
_MARK = (
    "SELECT 2 * pg_snapshot_xmax(now)::text::bigint - (SELECT count(*) FROM "
    "pg_snapshot_xip(now)) FROM pg_current_snapshot() AS now"
)
_KEEPALIVES = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class _SharedSnapshot(threading.local):
    """The shared snapshot of an OS thread, if it has entered `Database.snapshot`."""

    current: Transaction | None = None


class Database:
    """A store in PostgreSQL, which is opened at its first use.

    Args:
        url: The URL of the database, as psycopg takes it.
        readonly: True to open an existing store for reading only.
        codec: The codec of values, or None for `PythonCodec`.
        options: The options of the store.

    Raises:
        ConfigurationError: The URL is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self.url = url
        self.path: str = without_password(url)
        """The URL of the database without its password, for messages."""
        self.readonly = readonly
        self._options = options or StoreOptions()
        self.codec: ValueCodec = ValueCodec(
            codec, self._options.compression, self._options.renamed
        )
        self._seal = Seal.__new__(Seal)
        """The seal of the store (the keys with which records are signed and encrypted).
        The keys are set when the store is opened.
        """
        self._is_open = False
        self._is_opening = False
        self._pid = os.getpid()
        self._opens = threading.RLock()
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        """The connections that are not in use."""
        self._close = weakref.finalize(self, _close_idle, self._idle, self._pid)
        self._known: dict[bytes, KnownScope] = {}
        self._slots: list[LandingSlot] = []
        """The slots (rows for the outcomes of writes) that no write uses now. The
        outcome of the last write of each is known.
        """
        self._shared = _SharedSnapshot()
        self.unknown_outcomes: int = 0
        """The number of writes that have ended without a known outcome. The server may
        still execute them.
        """

    def table(self, name: bytes) -> Table:
        """Return the table that has *name*."""
        return PostgresTable(name, self.path, self._seal)

    # ------------------------------------------------------------ transactions

    @defer_interrupts()
    def read(self, work: Callable[[Any], Result]) -> Result:
        """Return ``work(snapshot)``. If the connection is lost, *work* may be called
        again.
        """

        def attempt(connection: psycopg.Connection[Any]) -> Result:
            with Transaction(connection) as snapshot:
                return work(snapshot)

        return self._shared_or_repeated(work, attempt)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads of this OS thread share one transaction while the context is
        open, so that they see the store at one moment. Nothing can be written in this
        transaction.
        """
        if self._shared.current is not None:
            yield
            return
        # This call waits until the server is available, and leaves an idle connection
        # in the pool, which the snapshot uses.
        self._repeated(lambda connection: None)
        with self._connection() as connection, Transaction(connection) as snapshot:
            self._shared.current = snapshot
            try:
                yield
            finally:
                self._shared.current = None

    def prefetch(self, ranges: Sequence[KeyRange]) -> None:
        """Announce ranges of keys that will be read in the shared snapshot of this OS
        thread. At the first read in one of them, the first records of all are read in
        one round trip. Without such a snapshot, nothing is read ahead.

        Up to `flowpregel.plugins.postgres.prefetched.MOST_ROWS` records of each range
        are read ahead, and 16 MB in all.

        Args:
            ranges: The ranges of keys. One that overlaps an earlier one is left out.
        """
        snapshot = self._shared.current
        if snapshot is None:
            return
        expected: list[tuple[bytes, bytes, bool]] = []
        for table, first, end, is_backwards in ranges:
            kind = KINDS[table]
            expected.append((kind + first, kind + end, is_backwards))
        snapshot.prefetch(expected)

    def leases(self, keys: Sequence[bytes]) -> dict[bytes, list[tuple[Any, ...]]]:
        """Return, by key, a list with the owner of the lease and whether the lease is
        alive (has not expired). The list is empty if there is no such lease.

        In a shared snapshot, each lease is read once.

        Args:
            keys: The keys of the leases.
        """
        snapshot = self._shared.current
        leases = {} if snapshot is None else snapshot.leases
        unknown = [key for key in keys if key not in leases]
        if unknown:
            rows = self.execute(_LEASES, unknown)
            leases.update((key, []) for key in unknown)
            for key, owner, is_alive in rows:
                leases[key].append((owner, is_alive))
        return leases

    def _shared_or_repeated(
        self,
        work: Callable[[Transaction], Result],
        attempt: Callable[[psycopg.Connection[Any]], Result],
    ) -> Result:
        """Return ``work(snapshot)`` if this OS thread has a shared snapshot, or else
        what `_repeated` returns.
        """
        snapshot = self._shared.current
        if snapshot is not None:
            try:
                return work(snapshot)
            except psycopg.Error:
                # The connection is lost, or *work* has run a statement that changes
                # something, which the server refuses in a snapshot. After the error the
                # snapshot cannot be used any more, and *work* is repeated without it.
                self._shared.current = None
        return self._repeated(attempt)

    @defer_interrupts()
    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``, once the transaction is committed.

        Args:
            work: The function that makes the changes. It may be called more than once.

        Raises:
            StoreBusyError: Another transaction held a lock until the timeout.
            CommitUnknownError: The connection was lost, and the server did not report
                before the timeout whether the commit has succeeded.
            StoreError: The server did not answer before the timeout, or refused.
            Exception: Any error that *work* raises; nothing was stored.
        """
        if self.readonly:
            raise StoreReadOnlyError(f"{self.path} was opened read-only")
        results: list[Any] = []
        timeout = self._options.lock_timeout
        fault("store.commit.begin")

        def attempt(connection: psycopg.Connection[Any], slot: LandingSlot) -> Any:
            with WriteTransaction(
                connection, self._known, slot, timeout
            ) as transaction:
                results[:] = [work(transaction)]
                fault("store.commit.before")
                transaction.commit()

        self._once(attempt)
        fault("store.commit.after")
        return results[0]

    @defer_interrupts()
    def execute_once(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement that must take effect exactly once, and return the rows as
        dicts.

        Like `execute`, this may change leases even if the store is read only.

        Args:
            statement: A statement that changes rows, and that has a RETURNING clause
                with values that JSON can hold.
            values: The values of the parameters.

        Raises:
            CommitUnknownError: As for `write`.
        """

        def attempt(connection: psycopg.Connection[Any], slot: LandingSlot) -> str:
            cursor = connection.execute(
                once(statement), (*values, slot.id, slot.send())
            )
            (text, _), *_ = cursor.fetchall()
            slot.landed()
            return str(text)

        rows: list[dict[str, Any]] = json.loads(self._once(attempt))
        return rows

    def _once(self, attempt: Attempt) -> Any:
        """Repeat *attempt*, one write, until it has taken effect exactly once, and
        return its result.

        If the server's answer was lost, the result is read from the row of the slot, in
        which the server has stored it.
        """
        self._open()
        slot = self._free_slot()
        try:
            return self._repeated(partial(self._settled, slot=slot, attempt=attempt))
        except CommitUnknownError:
            raise
        except StoreError as error:
            if slot.is_in_doubt:
                raise CommitUnknownError(self.path, str(error)) from error
            raise
        finally:
            if slot.is_in_doubt:
                self.unknown_outcomes += 1
            else:
                self._slots.append(slot)

    def _settled(
        self, connection: psycopg.Connection[Any], slot: LandingSlot, attempt: Attempt
    ) -> Any:
        """Attempt a write, unless an earlier attempt, whose answer was lost, has
        succeeded.

        Returns:
            The result of the attempt that has succeeded.
        """
        if slot.is_in_doubt:
            outcome = slot.settle(connection)
            if outcome is None:
                raise CommitUnknownError(
                    self.path, "the server no longer has a record of it"
                )
            if outcome.has_landed:
                return outcome.result
        try:
            return attempt(connection, slot)
        except psycopg.Error as error:
            if error.sqlstate is not None and not connection.broken:
                # The server itself has reported the error, over a connection that still
                # works. So the transaction was rolled back, and this attempt has had no
                # effect.
                slot.refused()
            raise

    def _free_slot(self) -> LandingSlot:
        """Return a slot, in which the server records a write's outcome, that no other
        write uses.
        """
        with suppress(IndexError):
            return self._slots.pop()
        self.execute(FORGET)
        return LandingSlot()

    @defer_interrupts()
    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run an idempotent statement, and return its rows.

        Without *values*, it may consist of several statements, which form one
        transaction. In this case, the rows are those of the first statement.
        """

        def attempt(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, values or None, binary=bool(values))
            return cursor.fetchall() if cursor.description else []

        def answer(snapshot: Transaction) -> list[tuple[Any, ...]]:
            return snapshot.answer(statement, *values)

        return self._shared_or_repeated(answer, attempt)

    def sizes(self) -> tuple[int, int]:
        """Return the size of the table of records with its index, in bytes, and 0 in
        place of the size of a memory map.
        """
        rows = self.execute("SELECT pg_total_relation_size('flowpregel.records')")
        return int(rows[0][0]), 0

    def change_counter(self) -> int:
        """Return a number that grows with each transaction that begins or ends."""
        return int(self.execute(_MARK)[0][0])

    # ------------------------------------------------------------ connections

    def close(self) -> None:
        """Close the connections. It is safe to call this more than once."""
        with self._lock:
            self._close()

    def _repeated(self, attempt: Callable[[psycopg.Connection[Any]], Result]) -> Result:
        """Call ``attempt(connection)`` and return its result. Repeat the call while the
        server is unavailable, or other transactions conflict with it.
        """
        self._open()
        until = time.monotonic() + self._options.lock_timeout
        pause = 0.01
        while True:
            try:
                with self._connection() as connection:
                    return attempt(connection)
            except ConflictError:
                pause = 0.001
            except psycopg.Error as error:
                is_over = time.monotonic() > until
                if is_over or not self._is_awaited(error):
                    raise self._named(error) from error
            raise_pending_interrupts()
            time.sleep(pause * random.random())
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _is_awaited(self, error: psycopg.Error) -> bool:
        """Return whether to repeat an attempt that has failed with *error*.

        While the store is being opened, attempts are repeated only for a server that is
        starting. Any other error may mean that the URL is wrong.
        """
        if self._is_open:
            return _is_temporary(error)
        return _is_refused_for_now(error, self.url)

    def _open(self) -> None:
        """Open the store at its first use.

        For the statements that are part of opening the store, this method does nothing.
        """
        # This is checked before the lock is acquired, because in a forked child, an OS
        # thread of the parent may still hold the lock.
        self._refuse_fork()
        with self._opens:
            if self._is_open or self._is_opening:
                return
            self._is_opening = True
            try:
                self._check_header()
                self._is_open = True
            finally:
                self._is_opening = False

    def _check_header(self) -> None:
        """Read the header and check it. If there is no store yet, create it.

        Raises:
            StoreForeignError: The store's checksums or its encryption use another
                secret key.
            StoreError: The server refused the statement, or there is no store and this
                process may not create one.
        """
        record = self._header()
        if record is None and self.readonly:
            raise StoreError(
                f"there is no store at {self.path}, and readonly=True does not create "
                "one"
            )
        if record is None:
            seal = seal_for(self._options)
            header = Header.new(seal, ENGINES[0]).to_bytes(seal)
            # If another process has created the tables in the meantime, this statement
            # changes nothing.
            self.execute(MAKE.format(_HEADER.hex(), header.hex()))
            record = self._header() or b""
        stored_header = Header.read(record, self.path, ENGINES)
        seal = seal_for(self._options, stored_header)
        stored_header.check(record, self.path, seal, readonly=self.readonly)
        vars(self._seal).update(vars(seal))

    def _header(self) -> bytes | None:
        try:
            rows = self.execute(
                "SELECT record FROM flowpregel.records WHERE key = %s", _HEADER
            )
        except StoreError as error:
            missing = psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName
            if isinstance(error.__cause__, missing):
                return None
            raise
        return rows[0][0] if rows else None

    def _refuse_fork(self) -> None:
        """Raise `StoreReadOnlyError` if the store was opened before a fork."""
        if self._pid != os.getpid():
            raise StoreReadOnlyError(
                f"{self.path} was opened before a fork (by process {self._pid}); "
                "a forked process cannot use it: start one that opens it itself"
            )

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Take a connection from the pool until the context ends. The pool keeps up to
        four connections.
        """
        self._refuse_fork()
        with self._lock:
            if not self._close.alive:
                raise StoreError(f"{self.path} is closed; open it again")
            connection = self._idle.pop() if self._idle else None
        connection = connection or connect_to_server(self.url)
        try:
            yield connection
        finally:
            with self._lock:
                # A connection that was lost, or is still in a transaction, is closed
                # and not reused.
                is_sound = (
                    connection.info.transaction_status
                    == psycopg.pq.TransactionStatus.IDLE
                )
                is_kept = (
                    is_sound and len(self._idle) < _MOST_IDLE and self._close.alive
                )
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()

    def _named(self, error: psycopg.Error) -> StoreError:
        """Return flowpregel's error for an error of PostgreSQL."""
        code = error.sqlstate or ""
        text = str(error).strip().expandtabs(2)
        if code == "55P03":
            return StoreBusyError(
                self.path, "another transaction", self._options.lock_timeout
            )
        if code in _NO_ROOM:
            return StoreFullError(
                f"{self.path}: {text}; nothing of this commit was stored"
            )
        if code in _NO_RIGHTS:
            return StoreReadOnlyError(
                f"{self.path} cannot be written: {text}; check its permissions"
            )
        return StoreError(f"{self.path} cannot be used: {text}")


def _close_idle(idle: list[psycopg.Connection[Any]], pid: int) -> None:
    while idle and pid == os.getpid():
        idle.pop().close()


def connect_to_server(url: str) -> psycopg.Connection[Any]:
    """Return a new connection, with settings by which it leaves no state in the
    server's session.
    """
    options: Any = {"connect_timeout": 10, **_KEEPALIVES, **conninfo_to_dict(url)}
    # Prepared statements are turned off, because a connection pooler may switch to a
    # session that does not have them.
    return psycopg.connect("", autocommit=True, prepare_threshold=None, **options)


def without_password(url: str) -> str:
    """Return *url* without its password, for messages.

    Raises:
        ConfigurationError: The URL is invalid.
    """
    try:
        parts: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(
            f"{error}; write postgresql://user@host/database"
        ) from error
    server = str(parts.get("host", ""))
    if parts.get("user"):
        server = f"{parts['user']}@{server}"
    if parts.get("port"):
        server += f":{parts['port']}"
    return f"postgresql://{server}/{parts.get('dbname', '')}"


def _is_refused_for_now(error: psycopg.Error, url: str) -> bool:
    """Return whether a server refuses connections because it starts, recovers or stops.

    Args:
        error: The error of a connection to the server.
        url: The URL of the server.
    """
    is_of_connection = isinstance(error, psycopg.OperationalError)
    is_timeout = isinstance(error, psycopg.errors.ConnectionTimeout)
    if error.sqlstate is not None or is_timeout or not is_of_connection:
        return False
    if _STARTING in str(error):
        return True
    # A failed connection reports no error code. So the server is asked again by
    # `PQping` of libpq, whose answer distinguishes a refusal.
    conninfo = make_conninfo(url, connect_timeout=_PING_TIMEOUT)
    answer = psycopg.pq.PGconn.ping(conninfo.encode())
    return bool(answer == psycopg.pq.Ping.REJECT)


def _is_temporary(error: psycopg.Error) -> bool:
    code = error.sqlstate
    # An error without a code means that the connection is gone, or was never made.
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code in _REPEATED or code.startswith(_CUT)
