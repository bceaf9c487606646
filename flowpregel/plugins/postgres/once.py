"""Writes that take effect ("land") exactly once, even if a commit's answer is lost.

If a connection dies after COMMIT was sent, the client does not know whether the commit
has landed. The database has a record of that::

    flowpregel.landed    slot ► number, is_void, result

Each write of a process uses a *slot* of its own until it ends, and each try of a write
uses the next *number* of the slot. The transaction first stores its number in the row
of the slot. It is refused if the number there is not smaller. So a client that is in
doubt can *settle* the number::

    the row of the slot has     then the try
    -----------------------     ------------
    this number                 has landed: its result is returned, nothing is repeated
    this number, void           has not, and never will: it is repeated
    a smaller one, or none      is made void, as above: if the statement of the dead
                                connection still arrives, it is refused
    a greater one               was settled before: the client has gone on, and this
                                is a repeated question that arrives late

A transaction that has not ended keeps the row locked, so settling waits for it. Commits
of other writes do not change the row.

There is one row for each slot. A process has as many slots as it had concurrent writes.
Rows that have not been used for `KEPT_FOR` are removed. A client that has been in doubt
for half of that time, because its process was stopped, no longer settles the number,
but raises `CommitUnknownError`.
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
"""A clock that also runs while the machine sleeps, if the system has one."""


class TryOutcome(NamedTuple):
    """The outcome of a try whose answer was lost."""

    has_landed: bool
    result: str | None
    """The rows that the statement returned, as a JSON string, if `once` made the
    statement.
    """


@dataclass(slots=True)
class LandingSlot:
    """A slot, which one write uses at a time."""

    id: bytes = field(default_factory=lambda: os.urandom(16))
    number: int = 0
    """The number of the newest try."""
    has_landed: bool = False
    """True if a try of this slot is known to have landed, so that its row exists."""
    sent: float | None = None
    """The time at which the newest try was sent, or None once the outcome of that try
    is known.
    """

    @property
    def is_in_doubt(self) -> bool:
        """True while the outcome of the newest try is unknown."""
        return self.sent is not None

    def send(self) -> int:
        """Return the number of a new try, which is sent now.

        The slot is in doubt until `landed` or `refused` is called.
        """
        self.number += 1
        self.sent = time.clock_gettime(_CLOCK)
        return self.number

    def landed(self) -> None:
        """Record that the newest try has landed."""
        self.has_landed = True
        self.sent = None

    def refused(self) -> None:
        """Record that the newest try has not landed, and never will."""
        self.sent = None

    def settle(self, connection: Any) -> TryOutcome | None:
        """Make the outcome of the newest try final, and return it.

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
            # A new row means that the row of the slot was removed too early, because
            # the server's clock has jumped. So the outcome stays unknown.
            return None
        if is_void:
            self.refused()
        else:
            self.landed()
        return TryOutcome(not is_void, result)


def once(statement: str) -> str:
    """Return a statement that has the effect of *statement* exactly once.

    The result takes a slot's id and a number after the values of *statement*, which
    needs a RETURNING, and returns the rows as a JSON string.
    """
    return _ONCE.format(statement)
