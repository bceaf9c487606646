"""The coordinator's end of the link to one worker.

A worker sends messages (frames) on its socket. C code and programs in the worker print
bytes to the pipes that are its stdout and stderr, and this module turns these bytes
into frames. A frame to the worker is sent at once. If the socket is full, the rest
waits in the outbox until the socket is writable again. Frames from the worker are cut
from the bytes that arrive, and handled one by one on the I/O thread.

A link that is left unread fills up, and then the worker blocks when it sends. In this
way a run that reads its stream slowly, or a terminal that takes no output, slows down
the task that floods it. There are three reasons to leave a link unread, each recorded
in an attribute:

* `paused_for`: a run has too many unread chunks from its tasks. Reading is resumed when
  the run has handled them.
* `awaits_output`: too much of the worker's output is not written yet. Reading is
  resumed when enough of it is written.
* `stopped_reading`: the link has ended, or garbage arrived. This state is final.
"""

from __future__ import annotations

import os
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.crash_report import unreadable_message
from flowpregel.executors.processes.coordinator.io_loop import IOLoop
from flowpregel.executors.processes.coordinator.process_handle import WorkerConnections
from flowpregel.executors.processes.wire.protocol import (
    HEADER,
    PRINTED,
    READ_SIZE,
    STDERR,
    UP,
    Frame,
    GarbageError,
    Parser,
)

CLOSED_LINK: Final = "it closed its link"
_new_decoder: Final = getincrementaldecoder("utf-8")


class CoordinatorLink:
    """The coordinator's end of a link. All methods are called on the I/O thread.

    Args:
        worker: The worker at the other end. If nothing more can be read, its
            `on_link_failed` is called with the reason.
        loop: The I/O loop.
        connections: The connections, with the socket and the pipes.
        handlers: The frame handlers by kind, which get the worker and a frame from it.
    """

    def __init__(
        self,
        worker: Any,
        loop: IOLoop,
        connections: WorkerConnections,
        handlers: Mapping[int, Callable[[Any, Frame], object]],
    ) -> None:
        self._worker = worker
        self._loop = loop
        self._connections = connections
        self._socket = connections.link
        self._parser = Parser(connections.magic, UP)
        self._handlers = handlers
        self._outbox: deque[memoryview] = deque()
        """The bytes to send for which the socket had no room yet."""
        self._is_full = False
        """True while the socket is full, and the loop waits until it is writable."""
        self._pipes = {connections.stdout: 0, connections.stderr: STDERR}
        """The open pipes (the worker's stdout and stderr), each with the flags for the
        frames that are made from its bytes.
        """
        self._decoders = {fd: _new_decoder("replace") for fd in self._pipes}
        """The decoders of the text on the pipes. A decoder keeps the beginning of a
        character whose other bytes have not arrived.
        """
        self.paused_for: Mailbox | None = None
        """The run for which the link is left unread, because the run has too many
        unread chunks; None if there is no such run.
        """
        self.awaits_output: bool = False
        """True while the link and the pipes are left unread until the worker's output
        is written.
        """
        self.read_since: float = 0.0
        """The time at which the last pause of reading ended, in monotonic seconds."""
        self.stopped_reading: bool = False
        """True if nothing more is read from the worker."""

    # ------------------------------------------------ watched descriptors

    def watch(self) -> None:
        """Make the loop watch the socket: for reading unless the link is paused, and
        for writing if bytes wait to be sent.
        """
        is_paused = self.stopped_reading or self.is_paused()
        self._loop.watch(
            self._socket.fileno(),
            None if is_paused else self.read,
            self._flush if self._outbox else None,
        )

    def watch_pipes(self) -> None:
        """Make the loop watch the pipes, unless too much output waits to be written."""
        for fd in self._pipes:
            read = None if self.awaits_output else partial(self._read_pipe, fd)
            self._loop.watch(fd, read)

    def is_paused(self) -> bool:
        """Return whether the link is left unread for now."""
        return self.paused_for is not None or self.awaits_output

    def pause_for(self, mailbox: Mailbox) -> None:
        """Leave the link unread until the run of *mailbox* has handled its events."""
        self.paused_for = mailbox
        self.watch()

    def resume(self) -> None:
        """Resume reading the link, if it was left unread because of a run's unread
        chunks.
        """
        if self.paused_for is not None:
            self.paused_for = None
            self.read_since = time.monotonic()
            self.watch()

    def pause_for_output(self) -> None:
        """Leave the link and the pipes unread until enough of the worker's output is
        written.
        """
        self.awaits_output = True
        self.watch()
        self.watch_pipes()

    def resume_output(self) -> None:
        """Resume reading the link and the pipes, if they were left unread because of
        unwritten output.
        """
        if self.awaits_output:
            self.awaits_output = False
            self.read_since = time.monotonic()
            self.watch()
            self.watch_pipes()

    def call_at(self, when: float, action: Callable[[], object]) -> None:
        """Call *action* at *when*, in monotonic seconds."""
        self._loop.call_at(when, action)

    # ------------------------------------------------ frames

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Send a frame now, or as soon as the socket has room for it."""
        head = HEADER.pack(self._connections.magic, kind, 0, 0, number, len(body))
        self._outbox.append(memoryview(head + body))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        """Send as many of the waiting bytes as the socket has room for."""
        try:
            while self._outbox:
                part = self._outbox[0]
                sent = self._socket.send(part)
                if sent < len(part):
                    self._outbox[0] = part[sent:]
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            # The worker has ended. The I/O thread notices its end separately, by the
            # pidfd of the process.
            self._outbox.clear()
        if self._is_full != bool(self._outbox):
            self._is_full = not self._is_full
            self.watch()

    def read(self) -> bool:
        """Handle the frames that have arrived, and return whether there may be more."""
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        problem = "" if data else CLOSED_LINK
        try:
            for frame in self._parser.feed(data):
                self._handlers[frame.kind](self._worker, frame)
        except GarbageError as error:
            problem = f"it sent garbage on its link ({error})"
        except BaseException as error:  # noqa: BLE001
            # Unpickling a message may raise any error. Only this worker is lost: the
            # error must not stop the I/O thread, on which other runs and tasks depend.
            problem = unreadable_message(error)
        if problem:
            self._worker.on_link_failed(problem)
            self._stop_reading()
        return not self.stopped_reading

    def read_rest(self) -> None:
        """Handle the last frames in the link of an ended process, and stop reading."""
        while not self.stopped_reading and self.read():
            pass
        self._outbox.clear()
        self._stop_reading()
        for fd in tuple(self._pipes):
            self._read_pipe(fd)
            if fd in self._pipes:
                # The end of the pipe was not read, but nothing more will be. So the
                # decoder must not keep the beginning of a character.
                self._handle_printed(fd, b"", is_last=True)
            self._loop.watch(fd)
        # The descriptors will be closed. If reading is resumed later, because output is
        # written by then, their numbers may belong to other files.
        self._pipes.clear()

    def _stop_reading(self) -> None:
        self.stopped_reading = True
        self.watch()

    def _read_pipe(self, fd: int) -> None:
        """Handle the bytes that have arrived on a pipe (stdout or stderr)."""
        try:
            data = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._handle_printed(fd, data, is_last=not data)
        if not data:
            self._loop.watch(fd)
            del self._pipes[fd]

    def _handle_printed(self, fd: int, data: bytes, *, is_last: bool) -> None:
        """Handle the text in *data*, the next bytes of a pipe, as if the running task
        had printed it. Unless *is_last* is True, the beginning of a character at the
        end of *data* is kept until its other bytes arrive.
        """
        text = self._decoders[fd].decode(data, is_last)
        if text:
            number = self._connections.running_number()
            printed = Frame(PRINTED, self._pipes[fd], number, text.encode())
            self._handlers[PRINTED](self._worker, printed)
