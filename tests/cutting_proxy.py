"""A proxy before a PostgreSQL server that cuts connections at chosen instants.

It serves on a Unix socket of its own, so that a client is given another ``host=``, no
more::

    client ── proxy ── server
                │
                └── asks *decide* about each message that commits: pass or cut off
"""

from __future__ import annotations

import random
import selectors
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final, TypeAlias

from tests.postgres_server import Server

PORT_FILE: Final = ".s.PGSQL.5432"
_STATEMENTS: Final = (
    b"SELECT flowpregel.change",
    b"SELECT rows, flowpregel.land(",
    b"INSERT INTO flowpregel.landed AS known VALUES ($1",
)
"""Parts of the statements that commit something, unless a transaction has begun
before.
"""
_READY: Final = b"Z\0\0\0\5"
"""The end of an answer, but for a letter: I outside of a transaction, T in one, E in a
failed.
"""
_CHUNK: Final = 1 << 16


class Cut(Enum):
    """The instant at which a connection is cut."""

    BEFORE = auto()
    """The server never gets the message."""
    AFTER = auto()
    """The server has answered, and the answer is dropped."""
    DURING = auto()
    """Both ends are closed once the message has been forwarded."""
    LATE = auto()
    """The client's end is closed, and the server gets the message when the test calls
    `CuttingProxy.deliver`.
    """


Decide: TypeAlias = Callable[[], Cut | None]


class CuttingProxy:
    """Forwards connections to a server, and cuts some of them.

    Args:
        server: The server.
        folder: Where the proxy's socket is made.
        decide: Returns how the next commit of a client is cut off, or None: it is not.
            Called from OS threads.
        arrived: Called when a client connects, and before each message that it sends
            is passed on.
    """

    def __init__(
        self,
        server: Server,
        folder: Path,
        decide: Decide,
        arrived: Callable[[], object] = lambda: None,
    ) -> None:
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.is_open = True
        """Whether it takes connections and messages; else a connection is closed at
        once, and one that is open with the next message of its client.
        """
        self._target = str(server.folder / PORT_FILE)
        self._decide, self._arrived = decide, arrived
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / PORT_FILE))
        self._listener.listen(64)
        self._clients: list[socket.socket] = []
        self._late: list[tuple[socket.socket, bytes]] = []
        """The messages to deliver late, each with its connection to the server."""
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Close it and all connections, and wait for its OS threads."""
        self.is_open = False
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in [*self._clients]:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for server, _ in self._late:
            server.close()
        for thread in self._threads:
            thread.join()

    def deliver(self) -> bytes:
        """Let the server have the messages that were cut off with `Cut.LATE`, and
        return its answers.
        """
        answers = b""
        while self._late:
            server, message = self._late.pop(0)
            with server:
                server.sendall(message)
                answers += _answer(server)
        return answers

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_open:
                client.close()
                continue
            self._clients.append(client)
            self._threads.append(threading.Thread(target=self._forward, args=(client,)))
            self._threads[-1].start()

    def _forward(self, client: socket.socket) -> None:
        """Pass on what both ends send until one closes, or the connection is cut."""
        self._arrived()
        status = b"I"
        with (
            suppress(OSError),
            client,
            socket.socket(socket.AF_UNIX) as server,
            selectors.DefaultSelector() as ready,
        ):
            server.connect(self._target)
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    from_client = key.fileobj is client
                    data = (client if from_client else server).recv(_CHUNK)
                    if not data:
                        return
                    if not from_client:
                        status = data[-1:] if data[-6:-1] == _READY else status
                        client.sendall(data)
                        continue
                    # The client may go on with a connection that it has already.
                    self._arrived()
                    if not self.is_open:
                        return
                    cut = self._decide() if _commits(data, status) else None
                    if cut is Cut.LATE:
                        self._late.append((server.dup(), data))
                        return
                    if cut is not None:
                        _cut_off(server, data, cut)
                        return
                    server.sendall(data)


def _commits(message: bytes, status: bytes) -> bool:
    return b"COMMIT" in message or (
        status == b"I" and any(part in message for part in _STATEMENTS)
    )


def _cut_off(server: socket.socket, message: bytes, cut: Cut) -> None:
    if cut is Cut.BEFORE:
        return
    server.sendall(message)
    if cut is Cut.AFTER:
        _answer(server)


def _answer(server: socket.socket) -> bytes:
    """Return the server's answer to a message, or what there is of it."""
    answer = b""
    while answer[-6:-1] != _READY:
        part = server.recv(_CHUNK)
        if not part:
            break
        answer += part
    return answer


@contextmanager
def cutting(
    server: Server, decide: Decide, arrived: Callable[[], object] = lambda: None
) -> Iterator[CuttingProxy]:
    """Run a proxy while the context is open; the arguments are those of
    `CuttingProxy`.
    """
    with tempfile.TemporaryDirectory(prefix="flowpregel-proxy-") as folder:
        proxy = CuttingProxy(server, Path(folder), decide, arrived)
        try:
            yield proxy
        finally:
            proxy.close()


@contextmanager
def delivering(proxy: CuttingProxy, seed: int) -> Iterator[None]:
    """Deliver the messages that arrive late, at random instants within a second, while
    the context is open.
    """
    luck, is_over = random.Random(seed), threading.Event()

    def deliver() -> None:
        while not is_over.wait(luck.uniform(0.0, 1.0)):
            with suppress(OSError):
                proxy.deliver()

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
