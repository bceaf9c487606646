"""A server that is starting refuses connections for a while: it is awaited, also by a
program that opens its store just then.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from flowpregel.errors import StoreError

pytest.importorskip("psycopg")

from flowpregel.plugins.postgres import PostgresSaver

STARTING = "57P03", "the database system is starting up"
NO_DATABASE = "3D000", 'database "runs" does not exist'


def refusal(code: str, text: str) -> bytes:
    """Return the message with which a server refuses a connection."""
    fields = f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()
    return b"E" + (4 + len(fields)).to_bytes(4, "big") + fields


@contextmanager
def server(refusals: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the URL of a server that refuses connections: the first ones as *refusals*
    say, and the others as the last of these.
    """
    left = list(refusals)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as requests:
                size = int.from_bytes(requests.read(4), "big")
                requests.read(size - 4)
                answer = left.pop(0) if len(left) > 1 else left[0]
                connection.sendall(refusal(*answer))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        options = "sslmode=disable&gssencmode=disable"
        try:
            yield f"postgresql://user@127.0.0.1:{port}/runs?{options}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_server_that_is_starting_is_awaited_at_the_first_use() -> None:
    """It refuses the first two connections."""
    with server([STARTING, STARTING, NO_DATABASE]) as url:
        saver = PostgresSaver(url)
        with pytest.raises(StoreError, match="does not exist"):
            list(saver.threads())
        saver.close()


def test_a_wrong_url_is_an_error_at_once() -> None:
    """The server is not asked again and again for a database that it has not."""
    refusals = [NO_DATABASE, NO_DATABASE, ("28000", "a third connection")]
    with server(refusals) as url:
        saver = PostgresSaver(url)
        with pytest.raises(StoreError, match="does not exist"):
            list(saver.threads())
        saver.close()
