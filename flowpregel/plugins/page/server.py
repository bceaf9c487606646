"""The HTTP server of the page, which ends soon after Ctrl-C, whatever clients do."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import uvicorn

CLIENT_LIMIT: Final = 2.0
"""Seconds in which clients can receive the rest of their answers when the server
ends.
"""
_PERIOD: Final = 0.1
"""Seconds between two looks at the connections that are left."""


class PageServer(uvicorn.Server):
    """A server that does not wait for its clients without a limit when it ends.

    uvicorn waits until each client has received its answer and has closed its
    connection. A client that reads nothing would keep the server from ending, and so
    would a connection that a browser opens in advance while the server ends.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the requests that have begun be answered, and close all connections.

        Args:
            sockets: The sockets that the server listens on.
        """
        closing = asyncio.create_task(self._close_connections())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _close_connections(self) -> None:
        """Close the connections that are left after the time limit, and later ones."""
        await asyncio.sleep(CLIENT_LIMIT)
        while True:
            for connection in list(self.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(_PERIOD)
