"""The worker's end of the link: the outlet that sends, the inbox that receives."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final, cast

from flowpregel.executors.processes.brief import Result, pack_results
from flowpregel.executors.processes.frames import (
    ANSWER,
    DOWN,
    RESULTS,
    STORED,
    Frame,
    Parser,
    pack,
)
from flowpregel.executors.processes.patience import Patience

_CHUNK = 1 << 18


class Outlet:
    """Sends whole frames, from any OS thread of the worker.

    A signal handler that raises must not cut a frame in two: while the main
    thread sends, it asks for its exception to be raised afterwards (`defer`).
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket: socket.socket | None = connection
        self._mark = mark
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._held: deque[bytes | Result] = deque()
        self.hold_result: Final[Callable[[Result], None]] = self._held.append
        """Sends how a task has ended with the next frame, or at the next `flush`.

        Those that follow each other share a frame."""
        self._main = threading.main_thread().ident
        self._deferred: BaseException | None = None

    def send(self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> None:
        """Send a frame, after those held back; it is on the link when this returns.

        When the coordinator is gone, nothing happens.
        """
        self.hold(kind, number, body, flags)
        self.flush()

    def hold(self, kind: int, number: int, body: bytes, flags: int = 0) -> None:
        """Send a frame with the next that is sent, or at the next `flush`."""
        self._held.append(pack(self._mark, kind, number, body, flags))

    def flush(self) -> None:
        """Send what is held back."""
        me = threading.get_ident()
        if self._holder == me:
            # A finalizer or signal handler of user code prints while we send: we go on.
            return
        with self._lock:
            self._holder = me
            try:
                while self._held:
                    held = [self._held.popleft() for _ in range(len(self._held))]
                    self._write(b"".join(self._frames_of(held)))
            finally:
                self._holder = None
        if me == self._main and self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error

    def _frames_of(self, held: list[bytes | Result]) -> Iterator[bytes]:
        for kind, parts in groupby(held, type):
            if kind is bytes:
                yield from cast("Iterator[bytes]", parts)
            else:
                yield pack(self._mark, RESULTS, 0, pack_results([*cast(Any, parts)]))

    def flush_from_handler(self) -> None:
        """Send what is held back, unless somebody is just doing it."""
        if self._held and self._lock.acquire(blocking=False):
            self._lock.release()
            self.flush()

    def _write(self, frame: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(frame)
        except OSError:
            self._socket = None

    def defer(self, error: BaseException) -> bool:
        """Return whether *error* will be raised after the frame that is being sent."""
        if self._holder == self._main:
            self._deferred = error
            return True
        return False

    def forget(self) -> None:
        """Send nothing any more: this process is a fork of the worker."""
        self._socket = None
        self._held.clear()
        self._lock = threading.Lock()
        self._holder = None


class Inbox:
    """Receives frames: in the main thread, until answers are waited for inside a task.

    Args:
        connection: The link.
        mark: What every frame on it begins with.
        answered: Given each frame that answers something a task asked.
    """

    def __init__(
        self, connection: socket.socket, mark: int, answered: Callable[[Frame], None]
    ) -> None:
        self._socket = connection
        self._parser = Parser(mark, DOWN)
        self._buffer = memoryview(bytearray(_CHUNK))
        self._answered = answered
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._reading = threading.Lock()
        self._ears: threading.Thread | None = None
        self._patience = Patience()
        self.may_look = False
        """Whether there is a CPU to spare for looking before going to sleep."""

    def next(self) -> Frame | None:
        """Wait for the next frame that is an order; None: the coordinator is gone."""
        orders = self._orders
        while self._ears is None and orders.empty():
            with self._reading:
                if orders.empty():
                    self._receive(look=self.may_look)
        return orders.get()

    def listen(self) -> None:
        """See that answers are received while the main thread runs a task."""
        if self._ears is None:
            self._ears = threading.Thread(target=self._hear, name="flowpregel-ears", daemon=True)
            self._ears.start()

    def _hear(self) -> None:
        open_ = True
        while open_:
            with self._reading:
                open_ = self._receive()

    def _wait(self, look: bool) -> int:
        """Wait for bytes to arrive; return how many have."""
        began = time.monotonic_ns()
        size = self._patience.look(self._look) if look else None
        if size is None:
            size = self._socket.recv_into(self._buffer)
        self._patience.waited(time.monotonic_ns() - began)
        return size

    def _look(self) -> int | None:
        try:
            return self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def _receive(self, *, look: bool = False) -> bool:
        try:
            size = self._wait(look)
        except OSError:
            size = 0
        if not size:
            self._orders.put(None)
            return False
        for frame in self._parser.feed(bytes(self._buffer[:size])):
            if frame.kind in (ANSWER, STORED):
                self._answered(frame)
            else:
                self._orders.put(frame)
        return True
