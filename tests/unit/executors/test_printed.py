"""How what a task prints is cut into frames, and what is sent of a log record."""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any

import pytest

from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.protocol import TASK_FIELDS
from flowpregel.executors.processes.worker.output import LogSender, StdoutForwarder


class Link:
    """The end of a link that keeps what is sent."""

    def __init__(self) -> None:
        self.task = 7
        self.job = None
        self.sent: list[tuple[int, int, bytes, int]] = []

    def send(self, kind: int, number: int, body: bytes, flags: int = 0) -> None:
        """Keep a frame."""
        self.sent.append((kind, number, body, flags))

    def bodies(self) -> list[bytes]:
        """Return the bodies of what was sent."""
        return [body for _, _, body, _ in self.sent]


def printed(link: Any, fd: int = 1) -> StdoutForwarder:
    """Return a stream that sends to *link*."""
    return StdoutForwarder(link, fd)


@pytest.mark.parametrize(("fd", "flags"), [(1, 0), (2, protocol.STDERR)])
def test_whole_lines_are_sent_and_the_rest_when_it_is_flushed(
    fd: int, flags: int
) -> None:
    """Once."""
    link = Link()
    stream = printed(link, fd)

    assert 7 == stream.write(b"a\nb\nres")
    stream.write(b"t")
    assert [(protocol.PRINTED, 7, b"a\nb\n", flags)] == link.sent
    stream.flush()
    stream.flush()

    assert [b"a\nb\n", b"rest"] == link.bodies()
    assert fd == stream.fileno()
    assert stream.writable()


def test_a_line_that_does_not_end_is_sent_when_it_is_long() -> None:
    """Memory is bounded."""
    link = Link()
    stream = printed(link)

    stream.write(bytes(1 << 16))
    assert [] == link.sent
    stream.write(b"x")

    assert [bytes(1 << 16) + b"x"] == link.bodies()
    assert b"" == stream.line


def test_much_is_cut_behind_lines() -> None:
    """Each frame has whole lines, and together they are all."""
    link = Link()
    line = b"x" * 999 + b"\n"

    printed(link).write(line * 3_000)

    bodies = link.bodies()
    assert line * 3_000 == b"".join(bodies)
    assert all(body.endswith(b"\n") for body in bodies)
    assert [1_048_000, 1_048_000, 904_000] == [len(body) for body in bodies]


@pytest.mark.parametrize("start", ["", "x", "xx", "xxx"])
@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_long_line_is_not_cut_within_a_character(start: str, character: str) -> None:
    """Each frame is text of its own."""
    link = Link()
    text = start + character * 600_000

    printed(link).write(text.encode() + b"\n")

    assert text + "\n" == "".join(body.decode() for body in link.bodies())
    assert (1 << 20) - 4 < len(link.bodies()[0]) <= 1 << 20


def test_a_long_line_that_is_no_text_is_cut_anywhere() -> None:
    """No character begins in it; frames are as large as they may be."""
    link = Link()

    printed(link).write(b"\x80" * (5 << 19))

    assert [1 << 20, 1 << 20, 1 << 19] == [len(body) for body in link.bodies()]


def test_much_that_is_no_text_is_cut_behind_lines() -> None:
    """Though a line begins with a byte that could continue a character."""
    data = b"\n" + b"\x80" * (1 << 20) + b"\n"

    class LinkWithoutEmptyFrames(Link):
        def send(self, kind: int, number: int, body: bytes, flags: int = 0) -> None:
            assert body, "nothing is cut off"
            super().send(kind, number, body, flags)

    link = LinkWithoutEmptyFrames()
    printed(link).write(data)

    assert data == b"".join(link.bodies())
    assert [1, 1 << 20, 1] == [len(body) for body in link.bodies()]


def test_a_record_that_is_logged_between_tasks_is_of_none() -> None:
    """A thread that a task has started may log then."""
    link: Any = Link()

    LogSender(link).emit(logging.makeLogRecord({"msg": "late"}))

    ((kind, _, body, _),) = link.sent
    record = pickle.loads(body)
    assert (protocol.LOGGED, "late") == (kind, record["msg"])
    assert [None] * len(TASK_FIELDS) == [record[name] for name in TASK_FIELDS]
    assert (os.getpid(), None) == (record["worker_pid"], record["task_id"])
