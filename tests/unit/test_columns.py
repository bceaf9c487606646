"""Columns as bytes: they come back as they were, and other bytes are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._inspection.columns import (
    Blob,
    Columns,
    PackedCells,
    pack_cells,
    pack_texts,
    pack_values,
    unpack_texts,
    unpack_values,
)

TEXTS = st.text(st.characters(codec=None), max_size=5)
"""Texts with zeros and halves of surrogate pairs, too."""
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS
)


def read_all(blob: Blob) -> list[Any]:
    values = unpack_values(blob)
    return [values[number] for number in range(len(values))]


@given(st.lists(TEXTS) | st.lists(st.sampled_from(["", "a", "\0", "\ud800"])))
def test_texts_come_back_as_they_were(texts: list[str]) -> None:
    packed = unpack_texts(pack_texts(texts))

    assert texts == packed.unpacked() == [packed[n] for n in range(len(packed))]
    assert len(texts) == len(packed)
    assert pack_texts(packed) == pack_texts(texts)


def test_repeated_texts_are_stored_and_made_once() -> None:
    texts = [f"task {number % 3}" for number in range(1_000)]
    blob = pack_texts(texts)
    read = unpack_texts(blob).unpacked()

    assert texts == read
    assert len(blob) < 5 * len(texts)
    assert 3 == len({id(text) for text in read})


@given(
    st.one_of(
        st.lists(VALUES),
        st.lists(st.floats(allow_nan=False)),
        st.lists(st.integers()),
        st.lists(st.booleans()),
    )
)
def test_values_come_back_as_they_were(values: list[Any]) -> None:
    read = read_all(pack_values(values))

    assert values == read
    assert [type(value) for value in values] == [type(value) for value in read]


@given(st.dictionaries(st.integers(0, 20), VALUES))
def test_cells_are_read_one_by_one(cells: dict[int, Any]) -> None:
    """A row without a value has none, wherever it lies."""
    packed = PackedCells(*pack_cells(cells))

    assert cells == dict(packed) == packed.unpacked()
    assert [cells.get(row) for row in range(22)] == [
        packed.get(row) for row in range(22)
    ]
    assert pack_cells(packed) == pack_cells(cells)


def test_a_number_that_is_none_comes_back() -> None:
    (read,) = read_all(pack_values([math.nan]))

    assert math.isnan(read)


def test_columns_of_another_version_or_size_are_refused() -> None:
    columns = Columns({"a": [1, "b"]}, {"one": b"123", "two": b""})
    data = columns.to_bytes("1")

    assert columns == Columns.from_bytes(data, "1")
    for wrong in (data + b"x", data[:-1], b"", b"\xff" * 20):
        with pytest.raises(ValueError):  # noqa: PT011 - of JSON, or of this module
            Columns.from_bytes(wrong, "1")
    with pytest.raises(ValueError, match="version"):
        Columns.from_bytes(data, "2")
    assert json.dumps(columns.head).encode() in data
