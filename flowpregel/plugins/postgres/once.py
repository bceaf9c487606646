"""Writes that take effect ("land") exactly once, even if the server's answer to a
commit is lost.

If a connection dies after COMMIT was sent, the client does not know whether the commit
has landed. So each commit leaves a record of itself in a table::

    flowpregel.landed    slot ► number, is_void, result

Each write of a process has a *slot* until the write ends: one row of this table. Each
attempt at the write uses the next *number* of the slot. Its transaction first stores
this number in the row, and is refused if the row has the number or a greater one. So a
client that does not know the outcome of an attempt can find it out (*settle* it)::

    the row of the slot has     then the attempt
    -----------------------     ----------------
    its number                  has landed: its result is returned, nothing is repeated
    its number, void            has not, and never will: the write is attempted again
    a smaller one, or none      is made void, as above: if the statement of the dead
                                connection still arrives, it is refused
    a greater one               was settled before: the client already makes a later
                                attempt, and this is an old question that arrives late

If the transaction of the attempt has not ended, it has locked the row. So the statement
that settles the attempt waits for the end of that transaction. Other writes never
change the row.

A process has as many slots as it had writes at the same time. Rows that have not been
used for `KEPT_FOR` are removed. If half of that time has passed since an attempt,
because the client's process was stopped, the client no longer settles the attempt, but
raises `CommitUnknownError`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

KEPT_FOR: Final = 24 * 3600.0
"""Seconds for which the row of a slot is kept after its last use."""
FORGET: Final = f"""
    DELETE FROM flowpregel.landed WHERE slot IN (
        SELECT slot FROM flowpregel.landed
        WHERE at < clock_timestamp() - {KEPT_FOR} * interval '1 second'
        FOR UPDATE SKIP LOCKED
    )
"""
TABLE: Final = """
    CREATE TABLE IF NOT EXISTS flowpregel.landed (
        slot bytea PRIMARY KEY, number bigint NOT NULL, is_void bool NOT NULL,
        result text, at timestamptz NOT NULL
    ) WITH (fillfactor = 50);
    CREATE OR REPLACE FUNCTION flowpregel.land(
        slot bytea, number bigint, result text
    ) RETURNS void LANGUAGE plpgsql AS $$
    #variable_conflict use_variable
    BEGIN
        INSERT INTO flowpregel.landed AS known
            VALUES (slot, number, false, result, clock_timestamp())
            ON CONFLICT ON CONSTRAINT landed_pkey DO UPDATE SET
                number = excluded.number, is_void = false, result = excluded.result,
                at = excluded.at
            WHERE known.number < excluded.number;
        IF NOT FOUND THEN RAISE unique_violation; END IF;
    END $$;
"""
_SETTLE: Final = """
    INSERT INTO flowpregel.landed AS known
    VALUES (%s, %s, true, NULL, clock_timestamp())
    ON CONFLICT (slot) DO UPDATE SET
        number = excluded.number, at = excluded.at,
        is_void = known.is_void OR known.number < excluded.number,
        result = CASE WHEN known.number = excluded.number THEN known.result END
    WHERE known.number <= excluded.number
    RETURNING is_void, result, xmax::text = '0'
"""
_ONCE: Final = """
    WITH done AS ({}),
    answer AS (SELECT coalesce(json_agg(done), '[]')::text AS rows FROM done)
    SELECT rows, flowpregel.land(%s::bytea, %s::bigint, rows) FROM answer
"""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The id of a clock that also runs while the machine sleeps, if the system has one."""


class TryOutcome(NamedTuple):
    """The outcome of one attempt at a write, if the server's answer was lost."""

    has_landed: bool
    result: str | None
    """The rows that the statement has returned, as a JSON string. Only statements made
    by `once` store them.
    """


@dataclass(slots=True)
class LandingSlot:
    """A slot: the row in which the server records the outcome of the attempts at a
    write. One write uses it at a time.
    """

    id: bytes = field(default_factory=lambda: os.urandom(16))
    number: int = 0
    """The number of the newest attempt at the write."""
    has_landed: bool = False
    """True if an attempt with this slot is known to have taken effect, so that the row
    exists.
    """
    sent: float | None = None
    """The time at which the newest attempt was sent, or None once the outcome of that
    attempt is known.
    """

    @property
    def is_in_doubt(self) -> bool:
        """True while the outcome of the newest attempt is unknown."""
        return self.sent is not None

    def send(self) -> int:
        """Return the number of a new attempt at the write, which the caller then sends.

        The outcome of the attempt is unknown until `landed` or `refused` is called.
        """
        self.number += 1
        self.sent = time.clock_gettime(_CLOCK)
        return self.number

    def landed(self) -> None:
        """Record that the newest attempt has taken effect."""
        self.has_landed = True
        self.sent = None

    def refused(self) -> None:
        """Record that the newest attempt has had no effect, and never will."""
        self.sent = None

    def settle(self, connection: Any) -> TryOutcome | None:
        """Make the outcome of the newest attempt final, and return it.

        Return None if the outcome stays unknown.

        Args:
            connection: A connection outside a transaction.
        """
        assert self.sent is not None
        if time.clock_gettime(_CLOCK) - self.sent > KEPT_FOR / 2:
            return None
        cursor = connection.execute(_SETTLE, (self.id, self.number))
        row = cursor.fetchone()
        if row is None:
            return None
        is_void, result, is_new = row
        if is_new and self.has_landed:
            # This slot had a row, but the statement has made a new one. So the row was
            # removed too early, because the server's clock has jumped, and the outcome
            # stays unknown.
            return None
        if is_void:
            self.refused()
        else:
            self.landed()
        return TryOutcome(not is_void, result)


def once(statement: str) -> str:
    """Return a statement that has the effect of *statement* exactly once.

    *statement* must have a RETURNING clause. The new statement takes two more values at
    the end, the slot's id and the number, and returns the rows as a JSON string.
    """
    return _ONCE.format(statement)
