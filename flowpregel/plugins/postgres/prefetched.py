"""The ranges of keys whose records a snapshot reads ahead, to save round trips.

::

    Snapshot ── expect ──► a group of ranges, not read yet
        │ the first read of a key in one of them
        ├── one statement for the group ──► the first rows of each range
        └── row, rows ──► from memory, or unknown: the server is asked

Only the first rows of a range are read. After that, the range covers only the keys up
to the last of these rows. Any other key is unknown, and the server must be asked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TypeAlias

Row: TypeAlias = tuple[bytes, bytes | None]
"""A key with its record, or with None if the record was too large to be read ahead."""
MOST_ROWS = 64
"""The maximum number of rows of a range that are read ahead."""
_MOST_BYTES = 1 << 24
"""The maximum total size, in bytes, of the records that are read ahead at once. The
ranges of a group share it equally.
"""
_low = attrgetter("low")
_key = itemgetter(0)
_PART = """
    SELECT expected.number, row.key, CASE WHEN row.size <= %s THEN row.record END
    FROM unnest(%s::bigint[], %b::bytea[], %b::bytea[]) AS expected(number, low, high),
    LATERAL (
        SELECT
            key, record, sum(octet_length(record)) OVER (ORDER BY key {order}) AS size
        FROM (
            SELECT key, record FROM flowpregel.records
            WHERE key >= expected.low AND key < expected.high
            ORDER BY key {order} LIMIT {limit}
        ) AS first_rows
    ) AS row
"""
STATEMENT = (
    _PART.format(order="ASC", limit=MOST_ROWS + 1)
    + "UNION ALL"
    + _PART.format(order="DESC", limit=MOST_ROWS + 1)
)
"""The statement that reads the first rows of several ranges, each with the index of the
range.
"""


@dataclass(slots=True, eq=False)
class PrefetchedRange:
    """A range of keys: from *low* (included) to *high* (excluded).

    As long as `group` is set, its rows have not been read.
    """

    low: bytes
    high: bytes
    is_backwards: bool
    """True if the greatest keys are read first."""
    group: Group | None = None
    """The group of ranges that will be read together with this one, or None once they
    were read.
    """
    rows: list[Row] = field(default_factory=list)
    """The rows of the range, in key order."""

    def learn(self, rows: list[Row]) -> None:
        """Store the first rows of the range. If the range has more rows than were read,
        shorten it to those that were read.

        Args:
            rows: The rows in key order. If there are more than `MOST_ROWS`, the range
                has further rows.
        """
        self.group = None
        if len(rows) > MOST_ROWS:
            if self.is_backwards:
                rows = rows[1:]
                self.low = rows[0][0]
            else:
                rows = rows[:-1]
                self.high = rows[-1][0] + b"\0"
        self.rows = rows

    def row(self, key: bytes) -> Row | None:
        """Return the key and the record at *key*. In place of the record there is None
        if no such row exists. Return None if the record was too large to be read ahead.
        """
        index = bisect_left(self.rows, key, key=_key)
        if index == len(self.rows) or self.rows[index][0] != key:
            return key, None
        row = self.rows[index]
        return None if row[1] is None else row

    def between(self, low: bytes, high: bytes) -> list[Row]:
        """Return the rows from the key *low* on, below *high*."""
        begin = bisect_left(self.rows, low, key=_key)
        end = bisect_left(self.rows, high, key=_key)
        return self.rows[begin:end]


Group: TypeAlias = list[PrefetchedRange]
"""Ranges that are read together in one round trip."""


class PrefetchedRanges:
    """The ranges of keys that a snapshot has read ahead, or will read ahead at the
    first read in one of them.

    Args:
        fetch: A function that runs a statement with values, and returns the rows.
    """

    def __init__(self, fetch: Callable[..., list[tuple[int, *Row]]]) -> None:
        self._fetch = fetch
        self._ranges: list[PrefetchedRange] = []
        """The ranges, in key order. No two of them overlap."""

    def expect(self, ranges: Sequence[tuple[bytes, bytes, bool]]) -> None:
        """Announce ranges. At the first read of a key in one of them, all are read in
        one round trip.

        A range that overlaps an earlier one is left out.

        Args:
            ranges: The first key of each range, the key after the last one, and True to
                read the greatest keys first.
        """
        group: Group = []
        for low, high, is_backwards in ranges:
            index = bisect_left(self._ranges, high, key=_low)
            is_free = index == 0 or self._ranges[index - 1].high <= low
            if is_free and low < high:
                expected = PrefetchedRange(low, high, is_backwards, group)
                self._ranges.insert(index, expected)
                group.append(expected)

    def row(self, key: bytes) -> Row | None:
        """Return the row at *key*, as `PrefetchedRange.row` does, or None if no range
        covers the key.
        """
        expected = self._range_at(key)
        return None if expected is None else expected.row(key)

    def rows(self, low: bytes, high: bytes, limit: int | None) -> list[Row] | None:
        """Return the first rows from the key *low* on, below *high*, or None if not all
        of them were read ahead.

        A row has None in place of a record that was too large to be read ahead.
        """
        rows: list[Row] = []
        while low < high:
            expected = self._range_at(low)
            if expected is None:
                return None
            rows += expected.between(low, high)
            if limit is not None and len(rows) >= limit:
                return rows[:limit]
            low = expected.high
        return rows

    def rows_backwards(
        self, low: bytes, high: bytes, limit: int | None
    ) -> list[Row] | None:
        """Return the last rows below the key *high*, as `rows` does, the greatest key
        first.
        """
        rows: list[Row] = []
        while low < high:
            expected = self._range_below(high)
            if expected is None:
                return None
            rows += reversed(expected.between(low, high))
            if limit is not None and len(rows) >= limit:
                return rows[:limit]
            high = expected.low
        return rows

    def _range_at(self, key: bytes) -> PrefetchedRange | None:
        """Read the range that contains *key*, if necessary, and return it. Return None
        if no range covers the key.
        """
        index = bisect_right(self._ranges, key, key=_low) - 1
        if index < 0 or key >= self._ranges[index].high:
            return None
        expected = self._ranges[index]
        self._read(expected.group)
        return expected if expected.low <= key < expected.high else None

    def _range_below(self, key: bytes) -> PrefetchedRange | None:
        """Read the range that contains the keys just below *key*, if necessary, and
        return it. Return None if no range covers them.
        """
        index = bisect_left(self._ranges, key, key=_low) - 1
        if index < 0 or key > self._ranges[index].high:
            return None
        expected = self._ranges[index]
        self._read(expected.group)
        return expected if expected.low < key <= expected.high else None

    def _read(self, group: Group | None) -> None:
        """Read the first rows of the ranges in *group*. If *group* is None, they were
        read already, and nothing is done.
        """
        if group is None:
            return
        size = _MOST_BYTES // len(group)
        values: list[object] = []
        for is_backwards in (False, True):
            numbers = [
                number
                for number, expected in enumerate(group)
                if expected.is_backwards == is_backwards
            ]
            lows = [group[number].low for number in numbers]
            highs = [group[number].high for number in numbers]
            values += (size, numbers, lows, highs)
        rows_of: list[list[Row]] = [[] for _ in group]
        for number, key, record in self._fetch(STATEMENT, *values):
            rows_of[number].append((key, record))
        for expected, rows in zip(group, rows_of, strict=True):
            expected.learn(sorted(rows, key=_key))
