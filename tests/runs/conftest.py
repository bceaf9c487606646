"""What every test of whole runs shares: each of them is a sync and an async test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowpregel.pregel import Pregel


class Drive:
    """Runs a graph, one way or the other.

    Args:
        is_async: Whether on an event loop.
    """

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def invoke(self, app: Pregel, given: Any, config: Any = None, **asked: Any) -> Any:
        """Return what ``invoke`` or ``ainvoke`` returns."""
        if not self.is_async:
            return app.invoke(given, config, **asked)
        return asyncio.run(app.ainvoke(given, config, **asked))

    def stream(self, app: Pregel, given: Any, config: Any = None, **asked: Any) -> list[Any]:
        """Return everything that ``stream`` or ``astream`` yields."""
        if not self.is_async:
            return list(app.stream(given, config, **asked))

        async def collect() -> list[Any]:
            return [item async for item in app.astream(given, config, **asked)]

        return asyncio.run(collect())


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Return the sync and then the async way to run a graph."""
    return Drive(request.param == "async")


@pytest.fixture(params=["inline", "threads"])
def executor(request: pytest.FixtureRequest) -> str:
    """Return where tasks run."""
    return str(request.param)


class Counted:
    """Notes what a task was called with, in order.

    Args:
        result: Makes the result from the argument.
    """

    def __init__(self, result: Callable[[Any], Any] = lambda value: value) -> None:
        self.seen: list[Any] = []
        self._result = result

    def __call__(self, value: Any) -> Any:
        self.seen.append(value)
        return self._result(value)


@pytest.fixture
def counted() -> type[Counted]:
    """Return the class of functions that note their calls."""
    return Counted
