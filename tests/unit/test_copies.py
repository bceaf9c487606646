"""Copies of values: what can be kept, and what an error says."""

import copyreg
import pickle
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._pickling.copies import ReplayedWrites, restore_value, snapshot_value
from flowpregel.errors import ValueEncodingError

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    LEAVES | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner)
    ),
)


@given(VALUES)
def test_what_is_kept_comes_back_equal_and_of_its_type(value):
    back = restore_value(snapshot_value(value, "it"), "it")

    assert back == value
    assert type(back) is type(value)


def test_a_value_that_can_change_comes_back_as_another():
    value = [[1]]
    kept = snapshot_value(value, "it")

    assert restore_value(kept, "it")[0] is not value[0]
    assert restore_value(kept, "it") is not restore_value(kept, "it")


def test_a_function_inside_a_function_can_be_kept():
    base = 40

    assert restore_value(snapshot_value(lambda n: n + base, "it"), "it")(2) == 42


class KeywordsOnly(Exception):
    """It is pickled and cannot be unpickled: a common mistake."""

    def __init__(self, *, code):
        super().__init__(code)


@pytest.mark.parametrize(
    "value", [threading.Lock(), (n for n in ()), KeywordsOnly(code=1)]
)
def test_what_cannot_be_kept_is_refused_with_its_name(value, monkeypatch):
    # A library that another test has loaded may have taught pickle about all
    # exceptions.
    monkeypatch.delitem(copyreg.dispatch_table, type(value), raising=False)

    with pytest.raises(ValueEncodingError, match=rf"my value .*{type(value).__name__}"):
        snapshot_value(value, "my value")


class Forgetful:
    """It can be written, and refuses to be read."""

    def __reduce__(self):
        return (_refuse, ())


def _refuse():
    raise RuntimeError("not again")


def test_what_cannot_be_read_back_is_named():
    kept = snapshot_value(Forgetful(), "my value")

    with pytest.raises(ValueEncodingError, match=r"my value .*not again"):
        restore_value(kept, "my value")


def test_the_writes_of_supersteps_are_a_sequence_of_tuples():
    """They compare, and are pickled, as the tuple that they stand for."""
    kept = [(1,), (2, 3), (4,)]
    every = ReplayedWrites(kept, 3, tuple)
    part = replace(every, start=1, stop=3)

    assert ((2, 3), (4,)) == part
    assert (2, "((2, 3), (4,))", (4,)) == (len(part), repr(part), part[1])
    assert [(2, 3), (4,)] != part
    assert every != part
    assert every.stored is part.stored
    assert tuple is type(pickle.loads(pickle.dumps(part)))
