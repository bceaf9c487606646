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


def test_a_worker_that_has_ended_is_not_read_again_when_its_output_is_written() -> None:
    """Its descriptors are closed by then, and other files may have their numbers."""
    near, far = socket.socketpair()
    near.setblocking(False)
    pipes = [os.pipe(), os.pipe()]
    (stdout, stdout_end), (stderr, stderr_end) = pipes
    loop: Any = Watching()
    connections: Any = SimpleNamespace(
        link=near, stdout=stdout, stderr=stderr, magic=1, running_number=lambda: 7
    )
    printed: list[Frame] = []
    worker = SimpleNamespace(on_link_failed=lambda problem: None)
    handlers = {protocol.PRINTED: lambda _, frame: printed.append(frame)}
    link = CoordinatorLink(worker, loop, connections, handlers)
    link.watch_pipes()
    link.pause_for_output()
    os.write(stdout_end, b"last words")
    far.close()
    os.close(stdout_end)
    os.close(stderr_end)

    link.read_rest()
    near.close()
    os.close(stdout)
    os.close(stderr)
    link.resume_output()

    assert [b"last words"] == [frame.body for frame in printed]
    assert {} == loop.watched
