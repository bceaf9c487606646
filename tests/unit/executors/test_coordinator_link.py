"""The coordinator's end of a link: the test has the worker's end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flowpregel.executors.processes.coordinator.worker_link import CoordinatorLink
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.wire.protocol import Frame


class Watching:
    """An I/O loop that never turns."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], object]] = {}
        """What is called when a descriptor is readable."""

    def watch(self, fd: int, read: Any = None, write: Any = None) -> None:
        """Watch *fd*, or no longer."""
        self.watched.pop(fd, None)
        if read is not None:
            self.watched[fd] = read


class Ends:
    """The worker's ends of a link, and what the coordinator has read of it."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self._stdout, self.stdout = os.pipe()
        self._stderr, self.stderr = os.pipe()
        self.loop: Any = Watching()
        self.printed: list[Frame] = []
        connections: Any = SimpleNamespace(
            link=self.near,
            stdout=self._stdout,
            stderr=self._stderr,
            magic=1,
            running_number=lambda: 7,
        )
        worker = SimpleNamespace(on_link_failed=lambda problem: None)
        handlers = {protocol.PRINTED: lambda _, frame: self.printed.append(frame)}
        self.link = CoordinatorLink(worker, self.loop, connections, handlers)
        self.link.watch_pipes()

    def read_stdout(self) -> None:
        """Read the pipe, as the loop does when it is readable."""
        self.loop.watched[self._stdout]()

    def close_far(self) -> None:
        """Close the worker's ends."""
        self.far.close()
        os.close(self.stdout)
        os.close(self.stderr)

    def close_near(self) -> None:
        """Close the coordinator's ends."""
        self.near.close()
        os.close(self._stdout)
        os.close(self._stderr)


def test_a_worker_that_has_ended_is_not_read_again_when_its_output_is_written() -> None:
    """Its descriptors are closed by then, and other files may have their numbers."""
    ends = Ends()
    ends.link.pause_for_output()
    os.write(ends.stdout, b"last words")
    ends.close_far()

    ends.link.read_rest()
    ends.close_near()
    ends.link.resume_output()

    assert [b"last words"] == [frame.body for frame in ends.printed]
    assert {} == ends.loop.watched


def test_a_character_that_arrives_in_two_parts_is_printed_as_one() -> None:
    """A program prints as many bytes at once as its pipe has room for."""
    ends = Ends()
    data = "naïve → 😀".encode()

    for byte in data:
        os.write(ends.stdout, bytes([byte]))
        ends.read_stdout()
    ends.close_far()
    ends.link.read_rest()

    assert data == b"".join(frame.body for frame in ends.printed)
    assert "naïve → 😀" == "".join(frame.body.decode() for frame in ends.printed)
    ends.close_near()


def test_the_beginning_of_a_character_at_the_end_of_all_output_is_not_lost() -> None:
    """It is replaced, as any byte that is no text."""
    ends = Ends()
    os.write(ends.stdout, b"x\xe2\x82")
    ends.read_stdout()
    ends.close_far()

    ends.read_stdout()

    assert ["x", "\ufffd"] == [frame.body.decode() for frame in ends.printed]
    ends.link.read_rest()
    ends.close_near()


def test_the_beginning_of_a_character_of_a_worker_that_has_ended_is_not_lost() -> None:
    """Also if a program that the worker has started has the pipe, too."""
    ends = Ends()
    inherited = os.dup(ends.stdout)
    os.write(ends.stdout, b"x\xe2\x82")
    os.write(ends.stderr, b"\xe2")
    ends.close_far()

    ends.link.read_rest()

    printed = [(frame.flags, frame.body.decode()) for frame in ends.printed]
    of_stdout = [(0, "x"), (0, "\ufffd")]
    assert [*of_stdout, (protocol.STDERR, "\ufffd")] == printed
    os.close(inherited)
    ends.close_near()
