"""Frames survive any cut, and garbage is refused before anything is decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.protocol import UP, Frame, GarbageError, Parser, pack

MARK = 0xC0FFEE11

some_frames = st.lists(
    st.tuples(st.sampled_from(sorted(UP)), st.integers(0, 2**32 - 1), st.binary(max_size=200))
)


@given(some_frames, st.integers(1, 64))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, int, bytes]], piece: int
) -> None:
    """A stream knows no borders."""
    data = b"".join(pack(MARK, kind, number, body) for kind, number, body in sent)
    parser = Parser(MARK, UP)

    got = [
        frame for at in range(0, len(data), piece) for frame in parser.feed(data[at : at + piece])
    ]

    assert [Frame(kind, 0, number, body) for kind, number, body in sent] == got


@given(st.binary(min_size=protocol.HEADER.size))
def test_bytes_without_the_mark_are_refused(data: bytes) -> None:
    """Also those that would unpickle."""
    if data.startswith(MARK.to_bytes(4, "little")):
        return
    with pytest.raises(GarbageError):
        list(Parser(MARK, UP).feed(data))


def test_a_frame_of_the_other_direction_is_refused() -> None:
    """A worker has no orders to give."""
    with pytest.raises(GarbageError):
        list(Parser(MARK, UP).feed(pack(MARK, protocol.TASKS, 1)))


def test_a_length_that_cannot_be_is_refused() -> None:
    """Before memory is asked for."""
    header = protocol.HEADER.pack(MARK, protocol.ENDED, 0, 0, 1, protocol.LONGEST + 1)

    with pytest.raises(GarbageError):
        list(Parser(MARK, UP).feed(header))
