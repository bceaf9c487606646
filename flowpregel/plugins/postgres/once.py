"""Writes that land exactly once, although the answer to a commit may be lost.

A connection that dies after COMMIT was sent leaves its client in doubt. The database
knows::

    flowpregel.landed    slot ► number, is_void, result

Each write of a process has a *slot* for itself as long as it lasts, and each try of it
the next *number* of that slot. The transaction that writes puts its number there, as
its first change, and is refused if the number there is not smaller. So a client in
doubt *settles* the number::

    the row of the slot has     then the try
    -----------------------     ------------
    this number                 has landed: its result is returned, nothing is repeated
    this number, void           has not, and never will: it is repeated
    a smaller one, or none      is made void, as above: if the statement of the dead
                                connection still arrives, it is refused

A transaction that is under way keeps the row locked, and settling waits until it has
ended. Commits of other writes change nothing in that row.

There is one row for each slot: as many as writes of one process were under way at once.
Rows of processes that are gone are removed after `KEPT_FOR`. A client that has been in
doubt for half of that time, because its process was stopped, no longer settles: it
raises `CommitUnknownError`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

KEPT_FOR: Final = 24 * 3600.0
"""Seconds after which the row of a slot is removed that is no longer used."""
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
    RETURNING is_void, result, xmax::text = '0'
"""
_ONCE: Final = """
    WITH done AS ({}),
    answer AS (SELECT coalesce(json_agg(done), '[]')::text AS rows FROM done)
    SELECT rows, flowpregel.land(%s::bytea, %s::bigint, rows) FROM answer
"""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that runs while the machine sleeps, where there is one."""


class TryOutcome(NamedTuple):
    """The end of a try whose answer was lost."""

    has_landed: bool
    result: str | None
    """The rows of the statement, as a JSON text, if it was made by `once`."""


@dataclass(slots=True)
class LandingSlot:
    """The slot of one write at a time."""

    id: bytes = field(default_factory=lambda: os.urandom(16))
    number: int = 0
    """The number of the newest try."""
    has_landed: bool = False
    """True if a try of this slot is known to have landed, so that there is a row."""
    sent: float | None = None
    """The time at which the newest try was sent; None once its end is known."""

    @property
    def is_in_doubt(self) -> bool:
        """True while the end of the newest try is unknown."""
        return self.sent is not None

    def send(self) -> int:
        """Return the number of a try that is sent now: in doubt until `landed` or
        `refused`.
        """
        self.number += 1
        self.sent = time.clock_gettime(_CLOCK)
        return self.number

    def landed(self) -> None:
        """Note that the newest try has landed."""
        self.has_landed = True
        self.sent = None

    def refused(self) -> None:
        """Note that the newest try has not landed, and never will."""
        self.sent = None

    def settle(self, connection: Any) -> TryOutcome | None:
        """Make the end of the newest try final, and return it; None: it is unknown.

        Args:
            connection: A connection outside a transaction.
        """
        assert self.sent is not None
        if time.clock_gettime(_CLOCK) - self.sent > KEPT_FOR / 2:
            return None
        cursor = connection.execute(_SETTLE, (self.id, self.number))
        is_void, result, is_new = cursor.fetchone()
        if is_new and self.has_landed:
            # The row was removed too early: the server's clock has jumped.
            return None
        if is_void:
            self.refused()
        else:
            self.landed()
        return TryOutcome(not is_void, result)


def once(statement: str) -> str:
    """Return a statement that has the effect of *statement* exactly once.

    The result takes a slot's id and a number after the values of *statement*, which
    needs a RETURNING, and returns the rows as a JSON text.
    """
    return _ONCE.format(statement)
