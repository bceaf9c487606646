"""The HTTP server of the page, which ends soon after Ctrl-C, even if clients do not
close their connections.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

CLIENT_LIMIT: Final = 2.0
"""Seconds in which clients can receive the rest of their answers when the server
ends.
"""
_PERIOD: Final = 0.1
"""Seconds between two searches for open connections."""


def ending_quietly(app: ASGIApp) -> ASGIApp:
    """Return *app* with handlers that end without an error when they are cancelled, as
    `PageServer` does at its end.

    Args:
        app: An ASGI application.
    """

    async def quiet_app(scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to *app*, which answers it."""
        # The cancellation of a request ends here. Otherwise uvicorn would log it with a
        # traceback.
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return quiet_app


class PageServer(uvicorn.Server):
    """A server that waits for its clients only for a limited time when it ends.

    uvicorn waits until each connection is closed, which a client that reads nothing can
    prevent. So can an open page: if its connection is accepted while the server ends,
    the page asks for news over this connection, again and again.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that have begun, if this does not take too long, and
        close all connections.

        Args:
            sockets: The sockets that the server listens on.
        """
        closing = asyncio.create_task(self._close_connections())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _close_connections(self) -> None:
        """Close the connections that are still open after the time limit, and those
        that are accepted later. Cancel the handlers of their requests.
        """
        await asyncio.sleep(CLIENT_LIMIT)
        while True:
            for connection in list(self.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            # A request for a comparison of two runs may take minutes, so it is
            # cancelled. The OS thread of the comparison continues until the process
            # ends.
            for task in list(self.server_state.tasks):
                task.cancel()
            await asyncio.sleep(_PERIOD)
