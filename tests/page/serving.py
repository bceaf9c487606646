"""The page's server on an OS thread, and a client that sends what it is told, however
odd.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowpregel import LMDBSaver
from flowpregel._core.records import Address
from flowpregel._inspection.inert import InertCodec
from flowpregel.plugins.page.actions import ACTION_PATHS, Actions
from flowpregel.plugins.page.app import server_of
from flowpregel.plugins.page.guard import RequestGuard
from flowpregel.plugins.page.pages import Pages
from flowpregel.plugins.page.stores import open_stores

FIRST_VISIT = (
    "/",
    "/static/icon.svg",
    "/static/page.js",
    "/static/style.css",
)
"""All files that a browser loads at its first visit."""


class Answer(NamedTuple):
    """What the server answered."""

    status: int
    headers: http.client.HTTPMessage
    body: str


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    port: int
    guard: RequestGuard
    store: str
    actions: Actions | None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.origin}/?token={self.guard.token}"

    @property
    def cookie(self) -> str:
        return f"{self.guard.cookie}={self.guard.token}"

    def ask(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str | None
    ) -> Answer:
        """Send a request as the page would, but for the headers that are given; None:
        without.
        """
        usual: Mapping[str, str | None] = {
            "host": f"127.0.0.1:{self.port}",
            "cookie": self.cookie,
        }
        if method == "POST":
            usual = {**usual, "origin": self.origin, "content-type": "application/json"}
        told = {
            **usual,
            **{key.replace("_", "-"): value for key, value in headers.items()},
        }
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        client.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in told.items():
            if value is not None:
                client.putheader(name, value)
        client.putheader("content-length", str(len(body)))
        client.endheaders(body)
        answer = client.getresponse()
        read = Answer(answer.status, answer.headers, answer.read().decode())
        client.close()
        return read


class Received(NamedTuple):
    """A response as it came over the wire."""

    head: str
    body: bytes

    @property
    def size(self) -> int:
        return len(self.head) + len(b"\r\n\r\n") + len(self.body)

    def header(self, name: str) -> str | None:
        for line in self.head.lower().split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key == name:
                return value
        return None


def receive(server: Served, path: str, encoding: str = "gzip", **more: str) -> Received:
    """Send a request as a browser does, and return all that comes back."""
    headers = {
        "host": f"127.0.0.1:{server.port}",
        "cookie": server.cookie,
        "accept-encoding": encoding,
        "connection": "close",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    lines = [
        f"GET {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    with closing(socket.create_connection(("127.0.0.1", server.port), 120)) as link:
        link.sendall("\r\n".join([*lines, "", ""]).encode())
        sent = b"".join(iter(lambda: link.recv(1 << 16), b""))
    head, _, body = sent.partition(b"\r\n\r\n")
    return Received(head.decode(), body)


@contextmanager
def served_together(*paths: str, actions: bool = False) -> Iterator[Served]:
    """Serve the pages of several stores, as `flowpregel ui` does."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with listener, ExitStack() as resources:
        first, *others = open_stores(paths, resources, actions=actions)
        writes = [path for store in (first, *others) for path in store.writes]
        guard = RequestGuard(writes=writes, cookie=f"flowpregel-{port}")
        server = server_of(first.pages, first.actions, guard, "flowpregel ui", others)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Served(port, guard, paths[0], first.actions)
        finally:
            for store in (first, *others):
                if store.actions is not None:
                    wait_for_commands(store.actions)
            server.should_exit = True
            thread.join()


@contextmanager
def served(
    store: str,
    *,
    actions: bool = False,
    flows: Sequence[str] = (),
    port: int = 0,
    **options: Any,
) -> Iterator[Served]:
    """Serve the page of a store, as `flowpregel ui` does, until the end of the
    block.
    """
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    guard = RequestGuard(
        writes=ACTION_PATHS if actions else (), cookie=f"flowpregel-{port}", **options
    )
    with (
        listener,
        LMDBSaver(store, readonly=True, codec=InertCodec()) as saver,
        closing(Pages(saver)) as pages,
    ):
        started = Actions(store, flows=flows) if actions else None
        server = server_of(pages, started, guard, f"flowpregel ui x --port {port}")
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Served(port, guard, store, started)
        finally:
            if started is not None:
                wait_for_commands(started)
            server.should_exit = True
            thread.join()


def wait_for_commands(actions: Actions, thread: str | None = None) -> None:
    """Wait until the commands that buttons have started, for all runs or one, have
    ended.

    One that has not is named by Python when its object is deleted, in a later test.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if all(command["code"] is not None for command in actions.commands(thread)):
            return
        time.sleep(0.01)


def result_of(server: Served, thread: str) -> Any:
    """Return the result of a run, once its commands have ended."""
    assert server.actions is not None
    wait_for_commands(server.actions, thread)
    with LMDBSaver(server.store, readonly=True) as saver:
        saved = saver.load(Address(thread))
    assert saved is not None
    return saved.checkpoint.values.get("__end__")
