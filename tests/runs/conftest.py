"""The two ways to drive a run, so that every test of it is a sync and an async test;
stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors.processes import ProcessExecutor
from tests.runs.notes import Counted
from tests.runs.pooling import Run


class Drive:
    """Runs graphs, sync or async.

    Args:
        is_async: Which of the two.
    """

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def invoke(self, app: Any, given: Any, config: Any = None, **asked: Any) -> Any:
        """Run *app* to its end, and return its output."""
        if not self.is_async:
            return app.invoke(given, config, **asked)
        return self.wait_for(lambda: app.ainvoke(given, config, **asked))

    def stream(
        self, app: Any, given: Any, config: Any = None, **asked: Any
    ) -> list[Any]:
        """Run *app* to its end, and return everything it streams."""
        return self.stream_until(lambda _: False, app, given, config, **asked)

    def stream_until(
        self,
        enough: Callable[[Any], bool],
        app: Any,
        given: Any,
        config: Any = None,
        **asked: Any,
    ) -> list[Any]:
        """Return what *app* streams, up to an item that is *enough*; then close the
        stream.
        """
        if not self.is_async:
            stream = app.stream(given, config, **asked)
            found = []
            for item in stream:
                found.append(item)
                if enough(item):
                    break
            stream.close()
            return found

        async def read() -> list[Any]:
            stream = app.astream(given, config, **asked)
            found = []
            async for item in stream:
                found.append(item)
                if enough(item):
                    break
            await stream.aclose()
            return found

        return self.wait_for(read)

    def wait_for(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine on an event loop of its own."""
        return asyncio.run(make())


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Return what runs graphs, once sync and once async."""
    return Drive(request.param == "async")


@pytest.fixture(params=["inline", "threads"])
def executor(request: pytest.FixtureRequest) -> str:
    """Return the name of an executor in this process: each in turn."""
    return str(request.param)


@pytest.fixture
def counted() -> type[Counted]:
    """Return the class of functions that note their calls."""
    return Counted


@pytest.fixture(autouse=True)
def _store_key(store_key: None) -> None:
    """All tests here have the tests' own key."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a test keeps its store."""
    return tmp_path / "store.lmdb"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LMDBSaver]:
    """Return an open store."""
    with LMDBSaver(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(params=["memory", "lmdb"])
def saver(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[BaseCheckpointSaver]:
    """Return a saver of each kind in turn."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    with closing(LMDBSaver(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def run(pool: ProcessExecutor) -> Run:
    """Return a run on the module's own ``pool`` of workers."""
    return Run(pool)
