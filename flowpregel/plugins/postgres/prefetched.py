"""The ranges of keys that a snapshot reads ahead.

::

    Snapshot ── expect ──► a group of ranges, not read yet
        │ the first read of a key in one of them
        ├── one statement for the group ──► the first rows of each range
        └── row, rows ──► from memory, or unknown: the server is asked

After a group was read, each range in it covers only the keys whose rows have all been
read. A key outside these ranges is unknown, even if keys beside it are known.
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
"""The number of rows of a range that are read ahead."""
_MOST_BYTES = 1 << 24
"""The limit on the size, in bytes, of the records that are read ahead at once. Each of
the ranges may use an equal part of it.
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
"""The statement that reads the first rows of ranges, with the number of the range."""


@dataclass(slots=True, eq=False)
class PrefetchedRange:
    """The keys from *low* (included) to *high* (excluded).

    It has no rows as long as `group` is set.
    """

    low: bytes
    high: bytes
    is_backwards: bool
    """True if the greatest keys are read first."""
    group: Group | None = None
    """The ranges that will be read at once with this one, or None after that."""
    rows: list[Row] = field(default_factory=list)
    """The rows of the range, in key order."""

    def learn(self, rows: list[Row]) -> None:
        """Store the first rows of the range, and leave out the keys behind them.

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
        """Return the row at *key*, with None in place of the record if there is no row;
        or None if the record was not read ahead.
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
"""Ranges that are read at once."""


class PrefetchedRanges:
    """The ranges of keys that a snapshot has read ahead, or will read ahead.

    Args:
        fetch: A function that runs a statement with values, and returns the rows.
    """

    def __init__(self, fetch: Callable[..., list[tuple[int, *Row]]]) -> None:
        self._fetch = fetch
        self._ranges: list[PrefetchedRange] = []
        """The ranges, in key order. No two of them overlap."""

    def expect(self, ranges: Sequence[tuple[bytes, bytes, bool]]) -> None:
        """Read ranges ahead, in one round trip, when a key in one of them is requested.

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

        The records of some of them may be missing.
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
        """Return the range that covers *key*, after it was read, or None."""
        index = bisect_right(self._ranges, key, key=_low) - 1
        if index < 0 or key >= self._ranges[index].high:
            return None
        expected = self._ranges[index]
        self._read(expected.group)
        return expected if expected.low <= key < expected.high else None

    def _range_below(self, key: bytes) -> PrefetchedRange | None:
        """Return the range that covers the keys just below *key*, after it was read, or
        None.
        """
        index = bisect_left(self._ranges, key, key=_low) - 1
        if index < 0 or key > self._ranges[index].high:
            return None
        expected = self._ranges[index]
        self._read(expected.group)
        return expected if expected.low < key <= expected.high else None

    def _read(self, group: Group | None) -> None:
        """Read the first rows of a group of ranges, unless this has been done."""
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
