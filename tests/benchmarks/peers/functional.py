"""Functional workflows that read the same on ours and on LangGraph."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.model import Working

Decorators = tuple[Any, Any]
"""``entrypoint`` and ``task``."""


def double(n: int) -> int:
    """Do next to nothing."""
    return 2 * n


async def double_later(n: int) -> int:
    """Do next to nothing, on an event loop."""
    return 2 * n


def gatherer(decorators: Decorators, async_body: bool, **options: Any) -> Any:
    """Return a flow that calls as many tasks as its input says, at once."""
    entrypoint, task = decorators
    called = task(double_later if async_body else double)

    @entrypoint(**options)
    def flow(n: int) -> int:
        return sum(future.result() for future in [called(i) for i in range(n)])

    @entrypoint(**options)
    async def aflow(n: int) -> int:
        return sum(await asyncio.gather(*[called(i) for i in range(n)]))

    return aflow if async_body else flow


def once(flow: Any, count: int, async_body: bool, thread: str, **run: Any) -> float:
    """Run a gatherer on a new thread; return the seconds of a task."""
    config: Any = {"configurable": {"thread_id": thread}}
    begun = time.perf_counter()
    if async_body:
        asyncio.run(flow.ainvoke(count, config, **run))
    else:
        flow.invoke(count, config, **run)
    return (time.perf_counter() - begun) / count


@contextlib.contextmanager
def resumed(
    decorators: Decorators,
    saver: Any,
    count: int,
    new_thread: Callable[[], str],
    **options: Any,
) -> Working:
    """Yield a run with *count* finished tasks that is resumed; the time is that of
    one.
    """
    entrypoint, task = decorators
    called, crash = task(double), [True]

    @entrypoint(checkpointer=saver, **options)
    def flow(n: int) -> int:
        total = sum(future.result() for future in [called(i) for i in range(n)])
        if crash[0]:
            raise OSError("crash")
        return total

    def turn() -> float:
        config: Any = {"configurable": {"thread_id": new_thread()}}
        crash[0] = True
        with contextlib.suppress(OSError):
            flow.invoke(count, config)
        crash[0] = False
        begun = time.perf_counter()
        assert flow.invoke(None, config) == count * (count - 1)
        return (time.perf_counter() - begun) / count

    yield turn
