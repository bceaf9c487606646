"""Frames survive any cut, and garbage is refused before anything is decoded."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.ids import Cost, Span
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.wire.protocol import (
    HEADER,
    LONGEST,
    UP,
    Frame,
    GarbageError,
    Parser,
)
from flowpregel.executors.processes.worker.link import WorkerLink

MARK = 0xC0FFEE11

some_frames = st.lists(
    st.tuples(
        st.sampled_from(sorted(UP)), st.integers(0, 2**32 - 1), st.binary(max_size=200)
    )
)


def sent_by_a_worker(*frames: tuple[int, int, bytes]) -> bytes:
    """Return what arrives when a worker sends these: kind, number and body of each."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            link = WorkerLink(theirs, MARK)
            for frame in frames:
                link.send(*frame)
        arrived = b""
        while data := ours.recv(1 << 16):
            arrived += data
    return arrived


@given(some_frames, st.integers(1, 64))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, int, bytes]], piece: int
) -> None:
    """A stream knows no borders."""
    data = sent_by_a_worker(*sent)
    parser = Parser(MARK, UP)

    got = [
        frame
        for at in range(0, len(data), piece)
        for frame in parser.feed(data[at : at + piece])
    ]

    assert [Frame(kind, 0, number, body) for kind, number, body in sent] == got


@given(st.binary(min_size=HEADER.size))
def test_bytes_without_the_mark_are_refused(data: bytes) -> None:
    """Also those that would unpickle."""
    if data.startswith(MARK.to_bytes(4, "little")):
        return
    with pytest.raises(GarbageError):
        list(Parser(MARK, UP).feed(data))


def test_a_frame_of_the_other_direction_is_refused() -> None:
    """A worker has no orders to give."""
    with pytest.raises(GarbageError):
        list(Parser(MARK, UP).feed(sent_by_a_worker((protocol.TASKS, 1, b""))))


def test_a_length_that_cannot_be_is_refused() -> None:
    """Before memory is asked for."""
    header = HEADER.pack(MARK, protocol.ENDED, 0, 0, 1, LONGEST + 1)

    with pytest.raises(GarbageError):
        list(Parser(MARK, UP).feed(header))


def test_each_field_of_the_cost_of_an_attempt_arrives() -> None:
    cost = Cost(*range(1, len(Cost._fields) + 1))

    head = messages.unpack_head(messages.pack_head(Span(5, 2.0, "", cost=cost)))

    assert cost == head.span.cost
    assert list(map(type, Cost())) == list(map(type, head.span.cost))
