"""A server that answers like LangGraph's, for one graph, which doubles a number."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

FAILS, ASKS = 13, 7
"""The numbers for which the graph fails, and asks a question."""


class GraphServer(BaseHTTPRequestHandler):
    """The answers of the server, which notes the requests that it gets."""

    requests: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        """Run the graph, and send the events of the run."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        configurable = body.get("config", {}).get("configurable", {})
        self.requests.append([self.path, body["input"], sorted(configurable)])
        number = body["input"]["number"]
        events: list[tuple[str, Any]]
        if number == FAILS:
            events = [("error", {"error": "ValueError", "message": "unlucky"})]
        elif number == ASKS:
            question = {"value": "Are you sure?", "id": "question"}
            events = [("updates", {"__interrupt__": [question]})]
        else:
            values = {"number": 2 * number, "log": ["server"]}
            events = [("updates", {"double": values}), ("values", values)]
        parts = [
            f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events
        ]
        self._send("".join(parts), "text/event-stream")

    def do_GET(self) -> None:
        """Send the drawing of the graph."""
        nodes = [{"id": "__start__", "type": "schema"}, {"id": "double"}]
        edges = [{"source": "__start__", "target": "double"}]
        self._send(json.dumps({"nodes": nodes, "edges": edges}), "application/json")

    def _send(self, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def running_server() -> Iterator[str]:
    """Run the server, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), GraphServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class RedisClient:
    """A client of a Redis server that is a dict."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def mget(self, keys: list[str]) -> list[bytes | None]:
        """Return the values of *keys*."""
        return [self.entries.get(key) for key in keys]

    def pipeline(self) -> RedisClient:
        """Return the client itself, which executes commands at once."""
        return self

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self.entries[key] = value

    def setex(self, key: str, ttl: int, value: bytes) -> None:
        """Store a value for a time, in whole seconds."""
        if type(ttl) is not int or ttl < 1:
            raise TypeError(ttl)
        self.entries[key] = value

    def execute(self) -> None:
        """Do nothing more."""

    def keys(self, pattern: str) -> list[str]:
        """Return the keys that begin as *pattern* does."""
        return [key for key in self.entries if key.startswith(pattern[:-1])]

    def delete(self, *keys: str) -> None:
        """Delete the values of *keys*."""
        for key in keys:
            del self.entries[key]
