"""Transactions on a store's records, and what is known of a scope without asking the
server.

Everything that changes belongs to a *scope*: a thread, the items of a store, the
results of a cache. A scope has a revision, a token that every transaction replaces
which changes anything in it. So what a process has read or written in a scope holds as
long as its revision does::

    the scope is known                          it is not
    ------------------                          ---------
    work(transaction) asks nobody               BEGIN, lock the scope's revision
    one statement: replace the revision         work(transaction) reads
      if it is the one known, put records       the same statement
    (another revision: forget, repeat)          COMMIT

The left side is what a run does that commits superstep after superstep: one statement,
which is one round trip and one transaction. That a task or a checkpoint has *no* record
yet is known where a range of keys was empty, and what was put there since is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from flowpregel.plugins.postgres.once import LandingSlot

Range: TypeAlias = tuple[bytes, bytes]
"""All keys from the first on, below the second."""

THREADS, DELTAS, STORE, CACHE = b"t", b"d", b"s", b"e"
"""What the keys of these kinds of records begin with."""
SCOPE_SIZE = 17
"""Bytes: what the keys of a thread's namespaces have in common."""
_MOST_SCOPES = 1_000
_MOST_BYTES = 1 << 20
"""Of records that are kept in mind for one scope; and as many keys at 16 bytes each."""
_LARGEST = 1 << 16
_AHEAD = 64
"""Deltas that are read with one that is asked for alone: who wants it wants those
before it.
"""
_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# A process that is stopped while it has a lock must not keep it.
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
    """What was known of a scope holds no more: the transaction is to be repeated."""


@dataclass(slots=True)
class KnownScope:
    """What is known of a scope as long as it has *revision*."""

    revision: bytes
    records: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    empty: dict[bytes, list[Range]] = field(default_factory=dict)
    """Ranges in which nothing was, by what they were found for."""
    since: set[bytes] = field(default_factory=set)
    """What has been put there since."""

    def is_absent(self, key: bytes) -> bool:
        """Return whether it is known that nothing is at *key*."""
        return key not in self.since and self._is_covered(key)

    def learn(
        self, found: dict[bytes, bytes | None], empty: dict[bytes, list[Range]]
    ) -> None:
        """Take note of records, the newest last (None: it was deleted), and of empty
        ranges.
        """
        self.empty.update(empty)
        self.since = {key for key in self.since if self._is_covered(key)}
        for key, record in found.items():
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
    """Reads records, all as they were at one moment.

    Args:
        connection: In no transaction.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun = False
        self._found: dict[bytes, bytes | None] = {}
        """What was read in it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._begun and not self._connection.broken:
            self._connection.rollback()

    def get(self, key: bytes) -> bytes | None:
        """Return the record at *key*, or None."""
        self.expect([key])
        return self._found[key]

    def expect(self, keys: Sequence[bytes]) -> None:
        """Read records that will be asked for, in one round trip."""
        missing = [key for key in keys if key not in self._found]
        if not missing:
            return
        if len(missing) == 1 and missing[0][:1] == DELTAS:
            before = missing[0][:9], missing[0] + b"\0"
            rows = self.ask(_PAGE.format("key, record", "DESC", _AHEAD), *before)
        else:
            rows = self.ask(_GET, missing)
        self._found.update(dict.fromkeys(missing))
        self._found.update(rows)

    def page(
        self,
        low: bytes,
        high: bytes,
        limit: int | None,
        order: str,
        what: str = "key, record",
    ) -> list[Any]:
        """Return *what* there is from the key *low* on, below *high*.

        Args:
            low: The first key.
            high: The one behind the last.
            limit: At most this many.
            order: ``ASC``; with ``DESC`` they are the greatest.
            what: Columns.
        """
        return self.ask(_PAGE.format(what, order, limit or "ALL"), low, high)

    def ask(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a statement, inside the transaction."""
        self._begin()
        cursor = self._connection.execute(statement, values, binary=True)
        return cursor.fetchall() if cursor.description else []

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.execute(_READING)


class WriteTransaction(Transaction):
    """A transaction that changes records.

    Args:
        connection: In no transaction.
        known: What this process knows of scopes. One is taken out, and put back with
            the commit: another transaction that meets it meanwhile asks the server.
        slot: Notes that the transaction has landed.
        timeout: Seconds to wait for others' locks.
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
        """Of the scopes it has met."""
        self._known: KnownScope | None = None
        """Of its scope, if that is the only one: a record does not tell which it is
        of.
        """
        self._changed: dict[bytes, bytes | None] = {}
        """To be sent; None: to be deleted."""
        self._sent: dict[bytes, bytes | None] = {}
        self._has_sent = False
        self._empty: dict[bytes, list[Range]] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the record at *key* as this transaction leaves it, or None."""
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
        what: str = "key, record",
    ) -> list[Any]:
        """Return what `Transaction.page` does, with what this transaction has put."""
        self._meet(low)
        self._send()
        return super().page(low, high, limit, order, what)

    def put(self, key: bytes, record: bytes | None) -> None:
        """Put *record* at *key*; None: delete what is there."""
        self._meet(key)
        self._changed[key] = record

    def drop(self, low: bytes, high: bytes) -> None:
        """Delete everything from *low* on, below *high*."""
        self._meet(low)
        self._send()
        self.ask(_DROP, low, high)
        self._sent.clear()
        self._found.clear()
        self._has_sent, self._known = True, None

    def expect_empty(self, label: bytes, ranges: list[Range]) -> None:
        """Find out, with the commit, whether nothing was in *ranges* before this
        transaction.

        Args:
            label: Earlier ranges of this label are given up.
            ranges: What the next transactions will ask for.
        """
        self._empty[label] = ranges

    def commit(self) -> None:
        """Commit; what was changed is on disk when this returns."""
        known = self._known
        if self._changed or self._has_sent:
            token, slot = os.urandom(16), self._slot
            ranges = [each for many in self._empty.values() for each in many]
            were_empty = self._change(token, slot.send(), self._revisions, ranges)
            if self._begun:
                self._connection.execute("COMMIT")
                self._begun = False
            slot.landed()
            if known is not None:
                known.revision = token
                found = {**self._found, **self._sent, **self._changed}
                held = {
                    each for each, was in zip(ranges, were_empty, strict=True) if was
                }
                known.learn(
                    found,
                    {
                        label: [*held.intersection(many)]
                        for label, many in self._empty.items()
                    },
                )
        if known is not None:
            self._all_known[next(iter(self._revisions))] = known
            if len(self._all_known) > _MOST_SCOPES:
                self._all_known.pop(next(iter(self._all_known)), None)

    def _change(
        self,
        token: bytes,
        number: int,
        revisions: dict[bytes, bytes],
        ranges: Sequence[Range],
    ) -> list[bool]:
        """Send what was changed; return which of *ranges* were empty before.

        Args:
            token: The scopes' revision from now on.
            number: The slot's, with which the transaction lands; 0: more is sent before
                it does.
            revisions: Those that the scopes must have, by scope.
            ranges: Which ranges of keys to look at.
        """
        values = (
            token,
            self._slot.id,
            number,
            *([*many] for many in (revisions, revisions.values())),
            *([*many] for many in (self._changed, self._changed.values())),
            *([each[end] for each in ranges] for end in (0, 1)),
        )
        cursor = self._connection.execute(_CHANGE, values, binary=True)
        were_empty: list[bool] = cursor.fetchone()[0]
        return were_empty

    def _send(self) -> None:
        """Send what was changed so far, so that the server finds it."""
        if self._changed:
            self._begin()
            self._change(b"", 0, {}, ())
            self._sent.update(self._changed)
            self._changed.clear()
            self._has_sent = True

    # ------------------------------------------------------------ scopes

    def _meet(self, key: bytes) -> None:
        """Take the scope of a record under control, before anything of it is read.

        Other kinds are of a namespace, which was looked up among the threads.
        """
        kind = key[:1]
        if kind not in (THREADS, STORE, CACHE):
            return
        scope = key[:SCOPE_SIZE] if kind == THREADS else kind
        if scope in self._revisions:
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
        """Lock a scope until the transaction ends: others wait."""
        revision = self.ask(_LOCK, scope)[0][0]
        if self._revisions.setdefault(scope, revision) != revision:
            raise ConflictError
