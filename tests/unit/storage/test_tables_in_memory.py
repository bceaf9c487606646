"""Tables in this process: their keys are in order, and what fails leaves nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel.storage import in_memory
from flowpregel.storage.in_memory import MemoryStore

keys = st.binary(min_size=1, max_size=3)


@given(added=st.lists(keys, max_size=60), removed=st.sets(keys), bound=keys)
def test_keys_are_in_order_whatever_comes_and_goes(added, removed, bound):
    table = MemoryStore().table(b"store")
    for key in added:
        table.put([], key, key)
    gone = {key for key in removed if table.delete([], key)}
    left = sorted({*added} - removed)

    assert {*added} & removed == gone
    assert left == table.keys(None, b"")
    assert [key for key in left if key >= bound] == [
        key for key, _ in table.scan(None, b"", bound)
    ]
    assert [key for key in reversed(left) if key < bound] == [
        key for key, _ in table.scan(None, b"", bound, backwards=True)
    ]
    assert [key for key in left if key.startswith(bound[:1])] == table.keys(
        None, bound[:1]
    )


def test_many_keys_are_in_order(monkeypatch):
    monkeypatch.setattr(in_memory, "_LONGEST", 3)
    table = MemoryStore().table(b"store")
    for number in range(200):
        table.put([], (number * 37 % 200).to_bytes(2, "big"), b"")
    for number in range(0, 200, 3):
        table.delete([], number.to_bytes(2, "big"))
    found = table.keys(None, b"")

    assert 200 - 67 == len(found)
    assert all(one < other for one, other in pairwise(found))


def test_a_transaction_that_fails_leaves_everything_as_it_was():
    store = MemoryStore()
    table = store.table(b"store")
    store.write(lambda t: [table.put(t, b"a", b"1"), table.put(t, b"b", b"2")])

    def fails(transaction):
        table.put(transaction, b"a", b"changed")
        table.put(transaction, b"c", b"new")
        table.drop(transaction, b"b")
        table.put(transaction, b"b", b"again")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(fails)

    assert [(b"a", b"1"), (b"b", b"2")] == [
        *store.read(lambda t: [*table.scan(t, b"")])
    ]
