"""Runs blocking work beside an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Params = ParamSpec("Params")
Value = TypeVar("Value")


async def elsewhere(
    work: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """Do *work* on another OS thread, and return what it returns."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    return await asyncio.to_thread(work, *args, **kwargs)


def run_to_end(coroutine: Any) -> Any:
    """Run *coroutine* on an event loop of its own; there must be none on this OS thread."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    return asyncio.run(coroutine)


def running_loop() -> Any:
    """Return the event loop that runs on this OS thread."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    return asyncio.get_running_loop()
