"""Ranges that a snapshot in PostgreSQL reads ahead answer as the records themselves, or
not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("psycopg")

from flowpregel.plugins.postgres.prefetched import MOST_ROWS, PrefetchedRanges, Row


class Server:
    """Records, and the statement that reads the first rows of ranges of them.

    Args:
        records: The records by key.
        room: The bytes of records that are returned of each range.
    """

    def __init__(self, records: Mapping[bytes, bytes], room: int = 1 << 20) -> None:
        self.records, self.room = records, room
        self.statements: int = 0

    def fetch(self, statement: str, *values: Any) -> list[tuple[int, *Row]]:
        """Return what the statement returns."""
        self.statements += 1
        rows: list[tuple[int, *Row]] = []
        for is_backwards in (False, True):
            _, *ranges = values[4 * is_backwards :][:4]
            for number, low, high in zip(*ranges, strict=True):
                keys = self.keys(low, high)
                size = 0
                for key in (keys[::-1] if is_backwards else keys)[: MOST_ROWS + 1]:
                    record = self.records[key]
                    size += len(record)
                    rows.append((number, key, record if size <= self.room else None))
        return rows

    def keys(self, low: bytes, high: bytes) -> list[bytes]:
        """Return the keys from *low* on, below *high*."""
        return sorted(key for key in self.records if low <= key < high)


keys = st.binary(min_size=1, max_size=2)
ranges = st.lists(st.tuples(keys, keys, st.booleans()), max_size=8)
limits = st.none() | st.integers(1, 5)


@given(
    st.dictionaries(keys, st.binary(min_size=1, max_size=9), max_size=40),
    st.lists(ranges, max_size=3),
    st.lists(st.tuples(keys, keys, limits), min_size=1, max_size=9),
    st.integers(0, 20),
)
def test_what_is_known_is_what_is_stored(records, groups, reads, room):
    server = Server(records, room)
    prefetched = PrefetchedRanges(server.fetch)
    for group in groups:
        prefetched.expect(group)
    for low, high, limit in reads:
        row = prefetched.row(low)
        assert row in (None, (low, records.get(low)))
        stored = server.keys(low, high)
        rows = prefetched.rows(low, high, limit)
        if rows is not None:
            assert [key for key, _ in rows] == stored[:limit]
            assert all(record in (None, records[key]) for key, record in rows)
        rows = prefetched.rows_backwards(low, high, limit)
        if rows is not None:
            assert [key for key, _ in rows] == stored[::-1][:limit]
            assert all(record in (None, records[key]) for key, record in rows)

    assert server.statements <= len(groups)


def test_a_group_is_read_at_once_and_only_if_it_is_needed():
    server = Server({b"a1": b"x", b"c1": b"y"})
    prefetched = PrefetchedRanges(server.fetch)
    prefetched.expect([(b"a", b"b", False), (b"c", b"d", True)])
    prefetched.expect([(b"e", b"f", False)])

    assert None is prefetched.row(b"b1")
    assert 0 == server.statements
    assert (b"a1", b"x") == prefetched.row(b"a1")
    assert [(b"c1", b"y")] == prefetched.rows(b"c", b"d", None)
    assert 1 == server.statements


def test_an_empty_range_is_known_to_be_empty():
    server = Server({b"b": b"x"})
    prefetched = PrefetchedRanges(server.fetch)
    prefetched.expect([(b"a", b"b", False)])

    assert [] == prefetched.rows(b"a", b"b", None)
    assert [] == prefetched.rows_backwards(b"a", b"b", 16)
    assert (b"a7", None) == prefetched.row(b"a7")
    assert None is prefetched.row(b"b")
    assert None is prefetched.rows(b"a", b"b\0", None)


@pytest.mark.parametrize("is_backwards", [False, True])
def test_what_is_beyond_the_limit_is_unknown(is_backwards):
    stored = [b"a%03d" % number for number in range(MOST_ROWS + 5)]
    server = Server(dict.fromkeys(stored, b"x"))
    prefetched = PrefetchedRanges(server.fetch)
    prefetched.expect([(b"a", b"b", is_backwards)])
    read = prefetched.rows_backwards if is_backwards else prefetched.rows
    order = stored[::-1] if is_backwards else stored

    rows = read(b"a", b"b", MOST_ROWS)

    assert rows is not None
    assert order[:MOST_ROWS] == [key for key, _ in rows]
    assert None is read(b"a", b"b", MOST_ROWS + 1)
    assert None is read(b"a", b"b", None)
    assert None is prefetched.row(order[MOST_ROWS])


def test_a_large_record_is_known_to_be_there_and_is_not_read_ahead():
    server = Server({b"a1": b"x", b"a2": b"y" * 100}, room=10)
    prefetched = PrefetchedRanges(server.fetch)
    prefetched.expect([(b"a", b"b", False)])

    assert [(b"a1", b"x"), (b"a2", None)] == prefetched.rows(b"a", b"b", None)
    assert None is prefetched.row(b"a2")


def test_neighbouring_ranges_answer_together():
    server = Server({b"a1": b"x", b"b1": b"y"})
    prefetched = PrefetchedRanges(server.fetch)
    prefetched.expect([(b"b", b"c", False), (b"a", b"b", True)])

    assert [(b"a1", b"x"), (b"b1", b"y")] == prefetched.rows(b"a", b"c", None)
    assert [(b"b1", b"y"), (b"a1", b"x")] == prefetched.rows_backwards(b"a", b"c", None)
