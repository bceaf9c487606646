"""The worker's end of the link: what it sends, what it receives, and what its tasks ask for."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from itertools import count
from typing import Any, Final

from flowpregel._core.records import Arguments, Node
from flowpregel.carried import carried_by
from flowpregel.context import RunClient
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.calls import CallFuture, OpenCalls
from flowpregel.executors.processes import messages, protocol, serialization
from flowpregel.executors.processes.culprit import find_culprit
from flowpregel.executors.processes.protocol import ANSWER, DOWN, REQUEST, STORED, Frame, Parser
from flowpregel.executors.shared import sent_by_key

_CHUNK: Final = 1 << 16
HOLD: Final = 0.005
"""Seconds for which results may be held back, to send many at once."""


class LinkWriter:
    """Sends whole frames, from any OS thread of the worker.

    A signal handler that raises must not cut a frame in two: while the main thread
    sends, it has its exception raised afterwards (`defer`).

    Args:
        connection: The link.
        mark: Begins every frame.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket: socket.socket | None = connection
        self._mark = mark
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._held: deque[bytes] = deque()
        self._is_awaited = threading.Event()
        self._flusher: threading.Thread | None = None
        self._main = threading.main_thread().ident
        self._deferred: BaseException | None = None
        self.task = 0
        """The number of the task that runs."""

    def send(self, kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> None:
        """Send a frame, after those held back; it is on the link when this returns.

        When the coordinator is gone, nothing happens.
        """
        self._held.append(protocol.pack(self._mark, kind, number, body, flags))
        self.flush()

    def hold(self, kind: int, number: int, body: bytes, flags: int = 0) -> None:
        """Send a frame with the next that is sent, or at the next `flush`."""
        self._held.append(protocol.pack(self._mark, kind, number, body, flags))

    def flush_soon(self) -> None:
        """Send what is held back in a moment, while the main thread is busy."""
        if not self._held or self._is_awaited.is_set():
            return
        if self._flusher is None:
            self._flusher = threading.Thread(
                target=self._flush_later, name="flowpregel-flusher", daemon=True
            )
            self._flusher.start()
        self._is_awaited.set()

    def _flush_later(self) -> None:
        while self._socket is not None:
            self._is_awaited.wait()
            time.sleep(HOLD)
            self._is_awaited.clear()
            self.flush()

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
                    self._write(b"".join([self._held.popleft() for _ in range(len(self._held))]))
            finally:
                self._holder = None
        if me == self._main and self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error

    def _write(self, data: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(data)
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


class Answer(CallFuture[Any]):
    """The result of a call that a task in a worker has made."""

    def _look(self, how: str) -> None:
        # An OS thread of its own reads the link: a caller that waits here stops nobody else.
        self.looked_at = True


class LinkReader:
    """Receives frames: in the main thread, until a task makes a request and may wait for it.

    Args:
        connection: The link.
        mark: Begins every frame.
    """

    def __init__(self, connection: socket.socket, mark: int) -> None:
        self._socket = connection
        self._parser = Parser(mark, DOWN)
        self._orders: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._requests = count(1)
        self._open: dict[int, Answer] = {}

    def next(self) -> Frame | None:
        """Wait for the next frame that is no answer; None: the coordinator is gone."""
        orders = self._orders
        while self._reader is None and orders.empty():
            with self._reading:
                if orders.empty():
                    self._receive()
        return orders.get()

    def expect(self, answer: Answer) -> int:
        """Return the number of a request that *answer* is to be the result of.

        From now on an OS thread of its own receives: the main thread may wait in a task.
        """
        request = next(self._requests) & 0xFFFFFFFF
        self._open[request] = answer
        if self._reader is None:
            self._reader = threading.Thread(target=self._run, name="flowpregel-reader", daemon=True)
            self._reader.start()
        return request

    def forget(self) -> None:
        """Forget the requests of a task that has ended: no answer will come."""
        self._open.clear()

    def _run(self) -> None:
        with self._reading:
            while self._receive():
                pass

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._orders.put(None)
            return False
        for frame in self._parser.feed(data):
            if frame.kind not in (ANSWER, STORED):
                self._orders.put(frame)
            elif (answer := self._open.pop(frame.number, None)) is not None:
                try:
                    answer.settle(messages.unpack_outcome(frame.body, "in a called task", None))
                except BaseException as error:  # noqa: BLE001 - the caller is told
                    answer.set_exception(error)
        return True


class WorkerRunClient(RunClient):
    """Connects one task in a worker with its run.

    Args:
        writer: Sends frames.
        reader: Receives the answers.
        number: The task's.
    """

    __slots__ = ("_number", "_reader", "_writer", "made")

    def __init__(self, writer: LinkWriter, reader: LinkReader, number: int) -> None:
        self._writer = writer
        self._reader = reader
        self._number = number
        self.made = OpenCalls()

    def emit(self, chunk: Any) -> None:
        """Give the run's stream a custom chunk, or a `Report`."""
        try:
            body, _ = serialization.pack(chunk)
        except Exception as error:
            path, cause = find_culprit(chunk, "chunk")
            raise TaskSerializationError("this", "a stream chunk", path, cause) from error
        self._writer.send(protocol.EMITTED, self._number, body)

    def beat(self) -> None:
        """Show that the task is alive."""
        self._writer.send(protocol.BEAT, self._number)

    def call(self, node: Node, arguments: Arguments, fingerprint: str | None, describe: str) -> Any:
        """Make a call; return its future."""
        code = messages.pack_node(node, called=True)
        try:
            carried = carried_by(copy_context(), {})
            with sent_by_key():
                body, _ = serialization.pack((code, arguments, fingerprint, describe, carried))
        except Exception as error:
            path, cause = find_culprit(arguments, "arguments")
            raise TaskSerializationError(node.name, "the input", path, cause) from error
        answer = Answer(None, self.made)
        return self._request(protocol.CALLED, body, answer)

    def ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the run's store; return its result."""
        body, _ = serialization.pack((method, args, kwargs))
        return self._request(protocol.ASKED, body, Answer()).result()

    def _request(self, kind: int, body: bytes, answer: Answer) -> Answer:
        """Send a request; return *answer*, which will have its result."""
        request = self._reader.expect(answer)
        self._writer.send(kind, self._number, REQUEST.pack(request) + body)
        return answer


class StoreProxy:
    """The run's long-term store, as a task in a worker reaches it: over the link.

    It has the methods of the coordinator's store; each call is answered there.
    """

    def __init__(self, ask: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        ask = self._ask

        def method(*args: Any, **kwargs: Any) -> Any:
            return ask(name, args, kwargs)

        return method
