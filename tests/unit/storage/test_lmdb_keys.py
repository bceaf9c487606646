"""Keys of the store: in the order of the ids, and never one for two things."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowpregel.checkpoint import layout as keys
from flowpregel.errors import ConfigurationError

ONE = (1).to_bytes(8, "big")
IDS = st.text(max_size=40) | st.text("a\0\1\xff", max_size=4)
VERSIONS = st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)


@given(IDS)
def test_a_checkpoint_id_comes_back_from_its_key(identifier: str) -> None:
    """Whatever characters it has."""
    assert identifier == keys.id_in(keys.checkpoint_key(ONE, identifier))


@given(IDS, IDS)
@example("a", "a\0")
@example("a", "a\0\0\0\0\0")
def test_keys_are_in_the_order_of_the_ids_and_none_begins_another(
    one: str, other: str
) -> None:
    """A prefix reads one checkpoint's pending writes alone."""
    first, second = sorted(
        (one, other), key=lambda each: each.encode("utf-8", "surrogatepass")
    )
    if first != second:
        assert keys.checkpoint_key(ONE, first) < keys.checkpoint_key(ONE, second)
        assert not keys.checkpoint_key(ONE, second).startswith(
            keys.checkpoint_key(ONE, first)
        )


@pytest.mark.parametrize("character", ["a", "\0", "\u20ac"])
def test_an_id_whose_key_is_too_long_for_lmdb_is_refused(character: str) -> None:
    """The longest key is that of a part of a task's large record beside the writes."""
    longest = 0
    for length in range(1, 500):
        try:
            key = keys.checkpoint_key(ONE, character * length)
        except ConfigurationError:
            break
        longest = len(keys.sidecar_key(keys.MEDIA, key) + keys.digest("task")) + 4

    assert 400 < longest <= 511


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_whole_versions_are_in_their_order(one: int, other: int) -> None:
    """So that what a run adds is appended to the tree."""
    assert (one < other) == (
        keys.value_key(ONE, one, "c") < keys.value_key(ONE, other, "c")
    )


@given(VERSIONS, VERSIONS)
def test_different_versions_have_different_keys_of_one_length(
    one: object, other: object
) -> None:
    """1, 1.0 and "1" are three."""
    first, second = keys.value_key(ONE, one, "c"), keys.value_key(ONE, other, "c")  # type: ignore[arg-type]

    assert keys.VALUE_LENGTH == len(first) == len(second)
    assert (first == second) == (type(one) is type(other) and repr(one) == repr(other))
