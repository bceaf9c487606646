"""Bytes that nobody of ours has written: an error, in bounded memory, and nothing is
run.
"""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowpregel.errors import StoreCorruptError, StoreError, ValueEncodingError
from flowpregel.executors.processes.wire import messages, serialization
from flowpregel.executors.processes.wire.protocol import (
    HEADER,
    UP,
    GarbageError,
    Parser,
)
from flowpregel.storage.codec import ValueCodec
from flowpregel.storage.lmdb.tables import LMDBTable
from flowpregel.storage.records import SIZE, Seal

MARK = 0xC0FFEE11
KEY = b"k" * 21
SEAL = Seal(b"the key of a test")
sprung: list[str] = []


def sing(song: str) -> None:
    """Leave a note."""
    sprung.append(song)


class Canary:
    """Sings when it is unpickled."""

    def __reduce__(self) -> Any:
        return sing, ("it was unpickled",)


class StepId:
    """A store for one table, in memory."""

    path = Path("the store")

    def __init__(self) -> None:
        self.databases = {b"log": b"log"}
        self.records: dict[bytes, bytes] = {}

    def get(self, key: bytes, db: bytes) -> bytes | None:
        """Return what is at *key*, as a transaction does."""
        return self.records.get(key)

    def put(self, key: bytes, value: bytes, db: bytes, append: bool = False) -> bool:
        """Keep *value* at *key*, as a transaction does."""
        self.records[key] = value
        return True

    def delete(self, key: bytes, db: bytes) -> bool:
        """Drop what is at *key*, as a transaction does."""
        return self.records.pop(key, None) is not None


def table_with(payload: bytes) -> tuple[LMDBTable, StepId]:
    """Return a table with one record, and where it lies."""
    place = StepId()
    table = LMDBTable(b"log", place.path, SEAL, place.databases)
    table.put(place, KEY, payload)
    return table, place


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Return *data* with something changed, cut off, put in, or taken from
    elsewhere.
    """
    at = draw(st.integers(0, len(data)))
    end = draw(st.integers(at, min(len(data), at + 40)))
    found = data[:at] + draw(st.binary(max_size=40)) + data[end:]
    assume(found != data)
    return found


# ---------------------------------------------------------------- records


@given(st.data(), st.binary(max_size=300))
def test_a_record_that_was_changed_is_refused(
    data: st.DataObject, payload: bytes
) -> None:
    """Whatever was done to it; its pickle is not looked at."""
    table, place = table_with(b"p" + pickle.dumps(Canary()) + payload)
    place.records[KEY] = data.draw(changed(place.records[KEY]))

    with pytest.raises(StoreCorruptError):
        table.get(place, KEY)
    assert [] == sprung


@given(st.binary(max_size=400))
def test_a_record_of_any_bytes_is_refused(record: bytes) -> None:
    """A checksum is not guessed."""
    table, place = table_with(b"n")
    place.records[KEY] = record

    with pytest.raises(StoreCorruptError):
        table.get(place, KEY)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_counts_of_chunks_that_are_not_there_are_refused_in_little_memory(
    count: int, size: int
) -> None:
    """Even under a checksum that holds."""
    assume(count or size)
    table, place = table_with(b"n")
    record = b"\1" + count.to_bytes(4, "big") + size.to_bytes(8, "big")
    place.records[KEY] = SEAL.of(b"log" + KEY, record) + record

    with pytest.raises(StoreCorruptError):
        table.get(place, KEY)


def test_with_its_checksum_made_anew_the_canary_sings() -> None:
    """What the checks above are worth: the codec itself runs what it is given."""
    payload = b"p" + pickle.dumps(Canary())
    table, place = table_with(payload)
    place.records[KEY] = SEAL.of(b"log" + KEY, b"\0" + payload) + b"\0" + payload
    assert SIZE == 16

    opened = table.get(place, KEY)
    assert opened is not None
    ValueCodec(None).decode(opened, "a value")

    assert ["it was unpickled"] == sprung
    sprung.clear()


# ---------------------------------------------------------------- values


@given(st.sampled_from([b"z", b"m", b"x", b"?", b""]), st.binary())
def test_a_value_that_is_no_pickle_is_refused(kind: bytes, rest: bytes) -> None:
    """By a named error."""
    data = kind + rest
    assume(data[:1] not in (b"i", b"t", b"p", b"c"))
    with pytest.raises((StoreError, ValueEncodingError)):
        ValueCodec(None).decode(data, "a value")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_buffers_that_are_not_there_cost_no_memory(
    count: int, size: int, rest: bytes
) -> None:
    """A count and sizes beyond the end of the record."""
    assume(count * 8 > len(rest) or size > len(rest))
    data = b"m\0\0" + count.to_bytes(4, "big") + size.to_bytes(8, "big") + rest
    tracemalloc.start()
    try:
        with pytest.raises((StoreError, ValueEncodingError)):
            ValueCodec(None).decode(data, "a value")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- the link


@st.composite
def nearly_frames(draw: st.DrawFn) -> bytes:
    """Return frames of which something was changed, in the header more often than
    not.
    """
    sent = draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(UP)), st.integers(0, 9), st.binary(max_size=60)
            ),
            min_size=1,
            max_size=6,
        )
    )
    data = b"".join(
        HEADER.pack(MARK, kind, 0, 0, number, len(body)) + body
        for kind, number, body in sent
    )
    if draw(st.booleans()):
        at = draw(st.integers(0, HEADER.size - 1))
        return data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
    return draw(changed(data))


@given(nearly_frames(), st.integers(1, 64))
def test_frames_that_were_changed_are_frames_or_garbage(
    data: bytes, piece: int
) -> None:
    """Nothing else is raised, and no more memory is used than arrived."""
    parser = Parser(MARK, UP)
    given_back = 0
    tracemalloc.start()
    try:
        for at in range(0, len(data), piece):
            for frame in parser.feed(data[at : at + piece]):
                assert frame.kind in UP
                given_back += len(frame.body) + HEADER.size
    except GarbageError:
        pass
    finally:
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert given_back <= len(data)
    assert used < 1 << 20


@given(st.binary(max_size=120).filter(lambda body: body[4:12] != bytes(8)))
def test_a_message_of_any_bytes_names_no_shared_memory_that_is_not_there(
    body: bytes,
) -> None:
    """At an end that has none: an error, before anything is unpickled."""
    with pytest.raises((ValueError, Exception)) as raised:
        serialization.unpack(body)
    assert not isinstance(raised.value, MemoryError)
    assert [] == sprung


@given(st.integers(6, 255), st.binary(max_size=40))
def test_an_outcome_of_no_known_kind_is_refused(tag: int, body: bytes) -> None:
    """Before what is in it is unpickled."""
    data = bytes((tag,)) + serialization.pack(Canary()).data + body

    with pytest.raises(ValueError, match="no outcome has the tag"):
        messages.unpack_outcome(data)
    assert [] == sprung
