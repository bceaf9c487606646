"""Transactions on a store's records, and a cache of records (by scope) that saves round
trips.

Each record that can change belongs to a *scope*: a thread, the items of a long-term
store, or the results of a cache. A record in ``meta`` is a scope of its own, if the
transaction reads it before it changes it. A scope has a *revision*: random bytes that
each transaction replaces if it changes a record in the scope. So the records that a
process has read or written in a scope stay valid as long as the revision of the scope
is the same::

    the scope is known                          it is not
    ------------------                          ---------
    work(transaction) sends nothing             BEGIN, lock the scope's revision
    one statement: replace the revision         work(transaction) reads
      if it is the one known, put records       the same statement
    (another revision: forget, repeat)          COMMIT

The left side is the usual case, in which a run commits one superstep after another: one
statement, which is one round trip and one transaction. A run must also know that a task
or a checkpoint has *no* record yet. So the process remembers ranges of keys that were
empty, and the keys that it has put into these ranges since.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from flowpregel.plugins.postgres.once import LandingSlot
from flowpregel.plugins.postgres.prefetched import PrefetchedRanges, Row

Range: TypeAlias = tuple[bytes, bytes]
"""The keys from the first key (included) to the second (excluded)."""

Question: TypeAlias = tuple[str, tuple[Any, ...]]
"""An SQL statement and its parameters."""

META, THREADS, DELTAS, STORE, CACHE = b"m", b"t", b"d", b"s", b"e"
"""The first bytes of the keys of these kinds of records."""
SCOPE_SIZE = 17
"""The number of bytes with which all keys of a thread's namespaces begin."""
_MOST_SCOPES = 1_000
"""The maximum number of scopes (such as threads) that a process remembers."""
_MOST_BYTES = 1 << 20
"""The maximum size, in bytes, of the records that are remembered for a scope. The
remembered keys have the same limit, with 16 bytes for each key.
"""
_LARGEST = 1 << 16
"""The greatest size, in bytes, of a record that is remembered."""
_AHEAD = 64
"""The number of deltas to read when a single one is requested, because the reader of a
delta channel will also need those before it.
"""
_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# If a process is stopped (SIGSTOP) in a transaction, the timeout for an idle
# transaction releases its locks, so that it cannot block other processes.
_WRITING = (
    "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL idle_in_transaction_session_timeout "
    "= '5s'"
)
_LOCK = (
    "INSERT INTO flowpregel.scopes AS known VALUES (%s, '') "
    "ON CONFLICT (scope) DO UPDATE SET revision = known.revision RETURNING revision"
)
_GET = "SELECT key, record FROM flowpregel.records WHERE key = ANY(%b::bytea[])"
_PAGE = (
    "SELECT {} FROM flowpregel.records WHERE key >= %s AND key < %s ORDER BY key {} "
    "LIMIT {}"
)
_DROP = "DELETE FROM flowpregel.records WHERE key >= %s AND key < %s"
_CHANGE = f"SELECT flowpregel.change(%b, %b, %b::bigint{6 * ', %b::bytea[]'})"


class ConflictError(Exception):
    """The error that a scope, such as a thread, has changed since it was read, so that
    the transaction must be repeated.
    """


@dataclass(slots=True)
class KnownScope:
    """The records and keys that this process remembers of a scope, such as a thread.
    They are valid while the scope has *revision*, which each change replaces.
    """

    revision: bytes
    records: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    empty: dict[bytes, list[Range]] = field(default_factory=dict)
    """The ranges of keys that were empty, by the label that was passed to
    `WriteTransaction.expect_empty`.
    """
    since: set[bytes] = field(default_factory=set)
    """The keys that were put into the ranges in `empty` after the ranges were found to
    be empty.
    """

    def is_absent(self, key: bytes) -> bool:
        """Return True if there is certainly no record at *key*."""
        return key not in self.since and self._is_covered(key)

    def learn(
        self, records: dict[bytes, bytes | None], empty: dict[bytes, list[Range]]
    ) -> None:
        """Remember records and empty ranges.

        Args:
            records: The records by key, with the newest last. The value is None for a
                deleted record.
            empty: The empty ranges, by label.
        """
        self.empty.update(empty)
        self.since = {key for key in self.since if self._is_covered(key)}
        for key, record in records.items():
            self.size -= len(self.records.pop(key, b""))
            if record is None:
                continue
            if self._is_covered(key):
                self.since.add(key)
            if len(record) <= _LARGEST:
                self.records[key] = record
                self.size += len(record)
        while self.size > _MOST_BYTES:
            self.size -= len(self.records.pop(next(iter(self.records))))
        if len(self.since) > _MOST_BYTES // 16:
            self.empty.clear()

    def _is_covered(self, key: bytes) -> bool:
        return any(
            low <= key < high for many in self.empty.values() for low, high in many
        )


class Transaction:
    """A snapshot of the records at one moment.

    Args:
        connection: A connection outside a transaction.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun = False
        self._found: dict[bytes, bytes | None] = {}
        """The records that were read so far."""
        self._prefetched = PrefetchedRanges(self.ask)
        self._answers: dict[Question, list[Any]] = {}
        """The rows of the statements that `answer` has run, by the statement and its
        values.
        """
        self.leases: dict[bytes, list[Any]] = {}
        """The rows of leases that were read so far, by the keys of the leases."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._begun and not self._connection.closed:
            self._connection.rollback()

    def get(self, key: bytes) -> bytes | None:
        """Return the record at *key*, or None."""
        self.expect([key])
        return self._found[key]

    def expect(self, keys: Sequence[bytes]) -> None:
        """Read records that will be needed soon, in one round trip."""
        missing: list[bytes] = []
        for key in keys:
            if key in self._found:
                continue
            row = self._prefetched.row(key)
            if row is None:
                missing.append(key)
            else:
                self._found[key] = row[1]
        if not missing:
            return
        if len(missing) == 1 and missing[0][:1] == DELTAS:
            before = missing[0][:9], missing[0] + b"\0"
            rows = self.ask(_PAGE.format("key, record", "DESC", _AHEAD), *before)
        else:
            rows = self.ask(_GET, missing)
        self._found.update(dict.fromkeys(missing))
        self._found.update(rows)

    def prefetch(self, ranges: Sequence[tuple[bytes, bytes, bool]]) -> None:
        """Announce ranges of keys. When a row in one of them is requested, the first
        rows of all are read in one round trip.

        Args:
            ranges: The first key of each range, the key after the last one, and True to
                read the greatest keys first.
        """
        self._prefetched.expect(ranges)

    def page(
        self,
        low: bytes,
        high: bytes,
        limit: int | None,
        order: str,
        columns: str = "key, record",
    ) -> list[Any]:
        """Return the rows from the key *low* on, below *high*.

        Args:
            low: The first key.
            high: The key after the last one.
            limit: The greatest number of rows.
            order: ``ASC`` to return the smallest keys first, or ``DESC`` to return the
                greatest keys first.
            columns: The columns of the rows.
        """
        rows: list[Row] | None
        if order == "ASC":
            rows = self._prefetched.rows(low, high, limit)
        else:
            rows = self._prefetched.rows_backwards(low, high, limit)
        if rows is None:
            return self.ask(_PAGE.format(columns, order, limit or "ALL"), low, high)
        if columns == "key":
            return [(key,) for key, _ in rows]
        # A row without a record was too large to be read ahead, so it is read now.
        large = [key for key, record in rows if record is None]
        self.expect(large)
        return [
            (key, self._found[key] if record is None else record)
            for key, record in rows
        ]

    def answer(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a statement that reads. In a snapshot, these are the same
        each time, so the statement is run only once.
        """
        question = _question(statement, values)
        if question not in self._answers:
            self._begin()
            cursor = self._connection.execute(
                statement, values or None, binary=bool(values)
            )
            self._answers[question] = cursor.fetchall() if cursor.description else []
        return self._answers[question]

    def ask(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement inside the transaction, and return the rows."""
        self._begin()
        cursor = self._connection.execute(statement, values, binary=True)
        return cursor.fetchall() if cursor.description else []

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.execute(_READING)


def _question(statement: str, values: tuple[Any, ...]) -> Question:
    """Return a statement with its values, as a key of a dict."""
    parts = [tuple(value) if isinstance(value, list) else value for value in values]
    return statement, tuple(parts)


class WriteTransaction(Transaction):
    """A transaction that changes records.

    Args:
        connection: A connection outside a transaction.
        known: The scopes that this process remembers. The transaction removes its scope
            from the dict, and adds it again when it commits. Until then, other
            transactions on this scope read from the server.
        slot: The slot that records whether the commit has succeeded.
        timeout: Seconds to wait for the locks of other transactions.
    """

    def __init__(
        self,
        connection: Any,
        known: dict[bytes, KnownScope],
        slot: LandingSlot,
        timeout: float,
    ) -> None:
        super().__init__(connection)
        self._all_known = known
        self._slot = slot
        self._timeout = timeout
        self._revisions: dict[bytes, bytes] = {}
        """The revisions (random bytes that each change replaces) of the scopes that
        this transaction uses, by scope.
        """
        self._known: KnownScope | None = None
        """The records that the process remembers of this transaction's only scope. None
        once the transaction uses several scopes, since a record does not show to which
        one it belongs.
        """
        self._changed: dict[bytes, bytes | None] = {}
        """The changed records that were not sent yet, by key. None deletes the
        record.
        """
        self._sent: dict[bytes, bytes | None] = {}
        self._has_sent = False
        self._empty: dict[bytes, list[Range]] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the record at *key*, with this transaction's changes, or None."""
        self._meet(key)
        for changed in (self._changed, self._sent):
            if key in changed:
                return changed[key]
        if self._known is not None and key not in self._found:
            if key in self._known.records:
                return self._known.records[key]
            if self._known.is_absent(key):
                return None
        return super().get(key)

    def page(
        self,
        low: bytes,
        high: bytes,
        limit: int | None,
        order: str,
        columns: str = "key, record",
    ) -> list[Any]:
        """Return rows as `Transaction.page` does, with this transaction's changes."""
        self._meet(low)
        self._send()
        return super().page(low, high, limit, order, columns)

    def prefetch(self, ranges: Sequence[tuple[bytes, bytes, bool]]) -> None:
        """Read nothing ahead, because this transaction may change the records."""

    def put(self, key: bytes, record: bytes | None) -> None:
        """Put *record* at *key*, or delete the record there if *record* is None."""
        # Most records in `meta` are sources of tasks, and have a digest of the source
        # as key. So a record in `meta` is put without reading it first.
        if not key.startswith(META):
            self._meet(key)
        self._changed[key] = record

    def drop(self, low: bytes, high: bytes) -> None:
        """Delete the records from *low* (included) to *high* (excluded)."""
        self._meet(low)
        self._send()
        self.ask(_DROP, low, high)
        self._sent.clear()
        self._found.clear()
        self._has_sent = True
        self._known = None

    def expect_empty(self, label: bytes, ranges: list[Range]) -> None:
        """Make the commit check whether *ranges* were empty before this transaction,
        and remember those that were.

        Args:
            label: A name for the ranges. They replace earlier ranges with the same
                label.
            ranges: The ranges that the next transactions will read.
        """
        self._empty[label] = ranges

    def commit(self) -> None:
        """Commit the transaction. The changes are on disk when this method returns."""
        if self._changed or self._has_sent:
            self._commit_changes()
        if self._known is not None:
            self._all_known[next(iter(self._revisions))] = self._known
            if len(self._all_known) > _MOST_SCOPES:
                self._all_known.pop(next(iter(self._all_known)), None)

    def _commit_changes(self) -> None:
        """Commit the changes, and remember the records of the scope."""
        token = os.urandom(16)
        ranges: list[Range] = []
        for labeled in self._empty.values():
            ranges += labeled
        answers = self._change(token, self._slot.send(), self._revisions, ranges)
        if self._begun:
            self._connection.execute("COMMIT")
            self._begun = False
        self._slot.landed()
        if self._known is None:
            return
        were_empty = set[Range]()
        for key_range, was_empty in zip(ranges, answers, strict=True):
            if was_empty:
                were_empty.add(key_range)
        empty: dict[bytes, list[Range]] = {}
        for label, labeled in self._empty.items():
            empty[label] = [*were_empty.intersection(labeled)]
        self._known.revision = token
        self._known.learn({**self._found, **self._sent, **self._changed}, empty)

    def _change(
        self,
        token: bytes,
        number: int,
        revisions: dict[bytes, bytes],
        ranges: Sequence[Range],
    ) -> list[bool]:
        """Send the changes to the server, and return for each of *ranges* whether it
        was empty before.

        Args:
            token: The new revision of the scopes, as random bytes.
            number: The slot's number for this commit (see `once`), or 0 if the
                transaction continues after this statement.
            revisions: The revisions that the scopes must have, by scope.
            ranges: The ranges of keys to check.
        """
        values = (
            token,
            self._slot.id,
            number,
            [*revisions],
            [*revisions.values()],
            [*self._changed],
            [*self._changed.values()],
            [low for low, _ in ranges],
            [high for _, high in ranges],
        )
        cursor = self._connection.execute(_CHANGE, values, binary=True)
        were_empty: list[bool] = cursor.fetchone()[0]
        return were_empty

    def _send(self) -> None:
        """Send the changes made so far to the server, so that its next answers include
        them.
        """
        if self._changed:
            self._begin()
            self._change(b"", 0, {}, ())
            self._sent.update(self._changed)
            self._changed.clear()
            self._has_sent = True

    # ------------------------------------------------------------ scopes

    def _meet(self, key: bytes) -> None:
        """Prepare the first use of the scope of the record at *key*: use what this
        process remembers of it, or lock it on the server.

        Records without a scope in their key belong to a namespace of a thread, for
        which this method was called before.
        """
        scope = _scope_of(key)
        if scope is None or scope in self._revisions:
            return
        if not self._revisions:
            self._known = self._all_known.pop(scope, None)
            if self._known is not None:
                self._revisions[scope] = self._known.revision
                return
        self._known = None
        self._begin()
        self._lock(scope)
        if len(self._revisions) == 1:
            self._known = KnownScope(self._revisions[scope])

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.execute(_WRITING.format(int(self._timeout * 1000)))
            for scope in [*self._revisions]:
                self._lock(scope)

    def _lock(self, scope: bytes) -> None:
        """Lock a scope, such as a thread, until the transaction ends. Other
        transactions on it wait.
        """
        revision = self.ask(_LOCK, scope)[0][0]
        if self._revisions.setdefault(scope, revision) != revision:
            raise ConflictError


def _scope_of(key: bytes) -> bytes | None:
    """Return the scope, such as a thread, of the record at *key*. Return None if the
    scope is a thread that the key does not show, because the key only contains the
    number of a namespace.
    """
    kind = key[:1]
    if kind == META:
        return key
    if kind == THREADS:
        return key[:SCOPE_SIZE]
    return kind if kind in (STORE, CACHE) else None
