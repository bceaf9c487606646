"""A server that is starting refuses connections for a while: it is awaited, also by a
program that opens its store just then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from flowpregel.errors import StoreError

pytest.importorskip("psycopg")

from flowpregel.plugins.postgres import PostgresSaver

STARTING = "57P03", "the database system is starting up"
NO_DATABASE = "3D000", 'database "runs" does not exist'


SERVER = """
import json, socket, sys
left = json.loads(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as requests:
        size = int.from_bytes(requests.read(4), "big")
        requests.read(size - 4)
        code, text = left.pop(0) if len(left) > 1 else left[0]
        fields = f"SFATAL\\0VFATAL\\0C{code}\\0M{text}\\0\\0".encode()
        connection.sendall(b"E" + (4 + len(fields)).to_bytes(4, "big") + fields)
"""


@contextmanager
def server(refusals: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the URL of a server that refuses connections: the first ones as *refusals*
    say, and the others as the last of these.

    It is another process, because libpq may hold the GIL while it waits for it.
    """
    command = [sys.executable, "-IS", "-c", SERVER, json.dumps(refusals)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        options = "sslmode=disable&gssencmode=disable"
        try:
            yield f"postgresql://user@127.0.0.1:{port}/runs?{options}"
        finally:
            process.kill()


def test_a_starting_server_that_speaks_another_language_is_awaited() -> None:
    """Each refusal is asked for twice, because libpq reports its code to `PQping`
    alone.
    """
    starting = "57P03", "das Datenbanksystem startet gerade"
    missing = "3D000", "Datenbank »runs« existiert nicht"
    with server([*[starting] * 4, missing]) as url:
        saver = PostgresSaver(url)
        with pytest.raises(StoreError, match="existiert nicht"):
            list(saver.threads())
        saver.close()


def test_the_message_of_a_server_that_is_away_has_no_tabs() -> None:
    with server([NO_DATABASE]) as url:
        pass  # It listens no more.
    saver = PostgresSaver(url)
    with pytest.raises(StoreError, match="refused") as caught:
        list(saver.threads())
    saver.close()

    assert "\t" not in str(caught.value)


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


def test_a_forked_process_never_waits_for_an_opening_of_its_parent() -> None:
    """Such as one that waits for the server, on another OS thread."""
    program = """
import os, signal, threading
from flowpregel._core.records import Address
from flowpregel.errors import StoreReadOnlyError
from flowpregel.plugins.postgres import PostgresSaver
saver = PostgresSaver("postgresql://user@127.0.0.1/runs")
inside, done = threading.Event(), threading.Event()

def hold():
    with saver._store._opens:
        inside.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
pid = os.fork()
if not pid:
    signal.alarm(20)
    try:
        saver.load(Address("t"))
    except StoreReadOnlyError as error:
        print("refused", "fork" in str(error), flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
done.set()
thread.join()
print(status)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "refused True\n0\n" == ended.stdout
