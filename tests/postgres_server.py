"""A PostgreSQL server of the tests' own: in a temporary folder, on a Unix socket, with
fsync on.

It is a child of this process, and the kernel ends it when this process dies, however
that does. Where there is no server or no psycopg, a test that asks for one is skipped
and says why.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_PATIENCE = 60
_PR_SET_PDEATHSIG = 1
_OPTIONS = (
    "listen_addresses=",
    "fsync=on",
    "shared_buffers=32MB",
    "max_connections=200",
)


def why_not() -> str | None:
    """Return why no server can be started here; None: one can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    return None if _programs() else "there is no PostgreSQL server (Debian: postgresql)"


def _programs() -> Path | None:
    """Return the folder of the server's programs."""
    on_path = shutil.which("initdb")
    found = (
        [os.path.realpath(on_path)]
        if on_path
        else glob("/usr/lib/postgresql/*/bin/initdb")
    )
    return Path(max(found)).parent if found else None


class Server:
    """A server that `serving` started.

    Args:
        folder: Where its data and its socket are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        programs = _programs()
        assert programs is not None
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        # The kernel ends it when the OS thread ends that has started it.
        self._starter = ThreadPoolExecutor(1)
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses
            names = [entry.pw_name for entry in pwd.getpwall()]
            account = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._account = {
                "user": account.pw_uid,
                "group": account.pw_gid,
                "extra_groups": [],
            }
        words = "-D data -U postgres -A trust -E UTF8 --locale C --no-sync"
        self.run("initdb", *words.split()).wait()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import psycopg

        options = [each for option in _OPTIONS for each in ("-c", option)]
        words = ("postgres", "-D", "data", "-k", str(self.folder), *options)
        self._process = self._starter.submit(self.run, *words).result()
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                log = (self.folder / "log").read_text()
                assert self._process.poll() is None, log
                assert time.monotonic() < until, log
                time.sleep(0.05)
            else:
                return

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it: all connections are cut (SIGINT), or as if the power failed
        (SIGQUIT).
        """
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_PATIENCE)
            self._process = None

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of one SQL statement."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of PostgreSQL's, or one with a path, as the server's own
        user.
        """
        libc = ctypes.CDLL(None)
        dies_with_us = partial(libc.prctl, _PR_SET_PDEATHSIG, signal.SIGQUIT)
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LC_ALL": "C", "HOME": str(self.folder)},
                preexec_fn=dies_with_us if sys.platform == "linux" else None,
                **self._account,
            )


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server while the context is open."""
    with tempfile.TemporaryDirectory(
        prefix="flowpregel-pg-", ignore_cleanup_errors=True
    ) as name:
        server = Server(Path(name))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """The server of this test process, started when the first test asks for it."""
    if reason := why_not():
        pytest.skip(reason)
    with serving() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """The URL of a database in which there is no store yet."""
    postgres_server.execute("DROP SCHEMA IF EXISTS flowpregel CASCADE")
    return postgres_server.url


@pytest.fixture
def langgraph_url(postgres_server: Server) -> str:
    """The URL of a database with the tables of LangGraph's savers, empty."""
    savers = pytest.importorskip("langgraph.checkpoint.postgres")
    postgres_server.execute("DROP SCHEMA public CASCADE")
    postgres_server.execute("CREATE SCHEMA public")
    with savers.PostgresSaver.from_conn_string(postgres_server.url) as saver:
        saver.setup()
    return postgres_server.url


@pytest.fixture
def langgraph_postgres(langgraph_url: str) -> Iterator[Any]:
    """LangGraph's saver on that database."""
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(langgraph_url) as saver:
        yield saver
