"""An event loop on an OS thread of its own, and LangGraph's async saver on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests.parity.stories import Note


class Loop:
    """Runs coroutines for a test that is sync itself, as a server's loop would."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._connections: list[Any] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what *coroutine* returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def read(
        self, app: Any, given: Any, config: Any, asked: dict[str, Any], note: Note
    ) -> None:
        """Run *app*, and *note* each item of its stream."""

        async def stream() -> None:
            async for event in app.astream(given, config, **asked):
                note(event)

        self.run(stream())

    def saver(self) -> AsyncSqliteSaver:
        """Return a saver that can be used from this loop alone."""

        async def opened() -> AsyncSqliteSaver:
            self._connections.append(await aiosqlite.connect(":memory:"))
            return AsyncSqliteSaver(self._connections[-1])

        return self.run(opened())

    def close(self) -> None:
        """Close its savers, and end it."""
        for connection in self._connections:
            self.run(connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def event_loop() -> Iterator[Loop]:
    """Start a loop, and end it."""
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()
