"""The end of the server at Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
import uvicorn

from flowpregel.plugins.page.server import PageServer, ending_quietly

pytestmark = pytest.mark.slow  # It waits for clients for two seconds.


def test_a_request_that_is_still_answered_does_not_keep_the_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a comparison of two large runs is, for minutes; no traceback is printed."""
    has_begun = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(ending_quietly(app), lifespan="off", log_level="warning")
    server = PageServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    with socket.create_connection(listener.getsockname()) as link:
        link.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        assert has_begun.wait(60)
        server.should_exit = True
        thread.join(60)
        has_ended = not thread.is_alive()
        server.force_exit = True
        thread.join()

    assert has_ended
    assert "" == capsys.readouterr().err
