"""Ids as records have them."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from flowpregel.checkpoint.lmdb import keys

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UUIDS = st.uuids().map(str)
EDITS = st.lists(st.tuples(st.integers(0, 35), st.sampled_from("-0aAfFg \n\u0660é")), max_size=3)


def edited(identifier: str, edits: list[tuple[int, str]]) -> str:
    """Return *identifier* with other characters at some places."""
    characters = [*identifier]
    for at, character in edits:
        characters[at] = character
    return "".join(characters)


@given(st.builds(edited, UUIDS, EDITS) | st.text(max_size=40))
@example("0195e0a0-1234-6abc-8000-00000000000A")
@example("-" * 36)
def test_an_id_is_packed_just_where_it_comes_back_the_same(identifier: str) -> None:
    """As a UUID in the form that is usual; all others are kept as they are."""
    packed = keys.short(identifier)

    assert isinstance(packed, bytes) == bool(UUID.fullmatch(identifier))
    assert identifier == keys.long(packed)
