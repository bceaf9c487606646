"""Transactions with something on top of LMDB's file are equal to one dict for each database."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowpregel._lmdb.journal import Change, packed
from flowpregel._lmdb.overlay import Draft, Layer, Overlaid, TooMuchError, getter

KEYS = st.binary(min_size=1, max_size=2).map(lambda key: bytes(byte % 3 + 97 for byte in key))
VALUES = st.binary(max_size=3)
CONTENTS = st.dictionaries(KEYS, VALUES, max_size=6)
LAYERS = st.dictionaries(KEYS, st.none() | VALUES, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, VALUES),
        st.tuples(st.just("add"), KEYS, VALUES),
        st.tuples(st.just("append"), KEYS, VALUES),
        st.tuples(st.just("delete"), KEYS, st.just(b"")),
    ),
    max_size=8,
)


class StepContext:
    """A file of LMDB's with one database, whose content is what a test says."""

    def __init__(self, folder: str) -> None:
        self.environment = lmdb.open(folder, max_dbs=1, lib_version=0)
        self.db = self.environment.open_db(b"records")
        self.numbers = {self.db: 0}

    def fill(self, content: dict[bytes, bytes]) -> None:
        with self.environment.begin(write=True) as transaction:
            transaction.drop(self.db, delete=False)
            for key, value in content.items():
                transaction.put(key, value, db=self.db)


@pytest.fixture(scope="module")
def setting() -> Iterator[StepContext]:
    """Return the file."""
    with tempfile.TemporaryDirectory() as folder:
        made = StepContext(folder)
        yield made
        made.environment.close()


def on_top(content: dict[bytes, bytes], layer: Layer) -> dict[bytes, bytes]:
    """Return *content* as it is with *layer* on top."""
    both = {**content, **layer}
    return {key: value for key, value in both.items() if value is not None}


def walked(cursor: Any, start: bytes) -> list[tuple[bytes, bytes]]:
    """Return what a cursor comes to from *start* on."""
    found = []
    there = cursor.set_range(start)
    while there:
        found.append(cursor.item())
        there = cursor.next()
    return found


def walked_back(cursor: Any, start: bytes | None) -> list[bytes]:
    """Return the keys that a cursor comes to, backwards, before *start*; None: from the last."""
    found = []
    there = cursor.last() if start is None else cursor.set_range(start) and cursor.prev()
    while there:
        found.append(cursor.key())
        there = cursor.prev()
    return found


def check(transaction: Any, db: Any, expected: dict[bytes, bytes]) -> None:
    """See that all ways to read give what is *expected*."""
    keys = sorted(expected)
    every = {bytes((a, b)) for a in b"abc" for b in b"abc"} | {b"a", b"b", b"c"}
    for key in every:
        assert expected.get(key) == transaction.get(key, db=db)
        assert expected.get(key) == getter(transaction, db)(key)
        after = bisect_left(keys, key)
        with transaction.cursor(db=db) as cursor:
            assert [(k, expected[k]) for k in keys[after:]] == walked(cursor, key)
            if after < len(keys):
                assert keys[:after][::-1] == walked_back(cursor, key)
    with transaction.cursor(db=db) as cursor:
        assert keys[::-1] == walked_back(cursor, None)
        if cursor.set_range(b"b"):
            found = [*cursor.iternext(keys=True, values=False)]
            assert keys[bisect_left(keys, b"b") :] == found


@settings(max_examples=150, deadline=None)
@given(content=CONTENTS, layer=LAYERS)
def test_reading_sees_the_layer_on_top(
    setting: StepContext, content: dict[bytes, bytes], layer: Layer
) -> None:
    """Keys of both, values of the upper one, and nothing where that says so."""
    setting.fill(content)
    with setting.environment.begin() as transaction:
        overlaid = Overlaid(transaction, setting.numbers, {0: layer})

        check(overlaid, setting.db, on_top(content, layer))


@settings(max_examples=150, deadline=None)
@given(content=CONTENTS, layer=LAYERS, steps=STEPS)
def test_a_draft_does_what_lmdb_would(
    setting: StepContext, content: dict[bytes, bytes], layer: Layer, steps: list[Any]
) -> None:
    """What is put, dropped and refused, and what is read meanwhile."""
    setting.fill(content)
    expected = on_top(content, layer)
    changes: list[Change] = []
    with setting.environment.begin() as transaction:
        draft = Draft(transaction, setting.numbers, {0: layer}, lasts={}, number=7, room=1 << 20)
        greatest = max(expected, default=b"")
        for what, key, value in steps:
            if what == "delete":
                assert (key in expected) == draft.delete(key, db=setting.db)
                if expected.pop(key, None) is not None:
                    changes.append((0, key, None))
                continue
            options = {"overwrite": what != "add", "append": what == "append"}
            done = draft.put(key, value, db=setting.db, **options)
            if what == "append":
                # A key that was dropped may still count as the last one.
                assert not done or key > max(expected, default=b"")
                assert done or key <= greatest
            else:
                assert done == (what == "put" or key not in expected)
            if done:
                expected[key] = value
                changes.append((0, key, value))
                greatest = max(greatest, key)

        check(draft, setting.db, expected)
        assert [packed(*each) for each in changes] == draft.changes
        assert {key: value for _, key, value in changes} == draft.own.get(0, {})
        assert 7 == draft.id()


@pytest.mark.parametrize(
    "do",
    [
        lambda draft, db: draft.put(b"k", bytes(101), db=db),
        lambda draft, db: draft.put(b"", b"v", db=db),
        lambda draft, db: draft.put(b"k" * 512, b"v", db=db),
        lambda draft, db: draft.cursor(db=db).delete(),
    ],
    ids=["too large", "no key", "a key that is too long", "dropped by a cursor"],
)
def test_what_a_draft_leaves_to_lmdb(setting: StepContext, do: Any) -> None:
    """It says so, and whoever made it begins a real transaction."""
    with setting.environment.begin() as transaction:
        draft = Draft(transaction, setting.numbers, {}, lasts={}, number=1, room=100)

        with pytest.raises(TooMuchError):
            do(draft, setting.db)
