"""Runs side by side, and work beside an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, Unpack

from flowpregel._engine.drivers import elsewhere
from flowpregel.pregel.config import Config
from flowpregel.pregel.request import RunKeywords

Params = ParamSpec("Params")
Value = TypeVar("Value")


def off_loop(method: Callable[Params, Value]) -> Callable[Params, Coroutine[Any, Any, Value]]:
    """Return the async form of *method*: the same, on another OS thread."""

    @wraps(method)
    async def awaited(*args: Params.args, **kwargs: Params.kwargs) -> Value:
        # By its name: a subclass may have a method of its own.
        bound = getattr(args[0], method.__name__)
        result: Value = await elsewhere(bound, *args[1:], **kwargs)
        return result

    awaited.__doc__ = f"`{method.__name__}`, without blocking the event loop."
    return awaited


def batch(
    graph: Any,
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None = None,
    *,
    return_exceptions: bool = False,
    **asked: Unpack[RunKeywords],
) -> list[Any]:
    """Run the graph on each of *inputs*, side by side, and return the outputs in order.

    Args:
        graph: The graph.
        inputs: What each run is given.
        config: One for all, or one for each.
        return_exceptions: Whether to return what a run raises in its place.
        asked: As `Pregel.invoke` takes it.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

    configs, limit = _configs(config, len(inputs))
    limit = limit or min(32, max(1, len(inputs)))
    with ThreadPoolExecutor(limit, thread_name_prefix="flowpregel-batch") as pool:
        invoke = partial(graph.invoke, **asked)
        futures = [pool.submit(invoke, *each) for each in zip(inputs, configs, strict=True)]
    if return_exceptions:
        return [future.exception() or future.result() for future in futures]
    return [future.result() for future in futures]


async def abatch(
    graph: Any,
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None = None,
    *,
    return_exceptions: bool = False,
    **asked: Unpack[RunKeywords],
) -> list[Any]:
    """`batch`, on the running event loop."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    configs, limit = _configs(config, len(inputs))
    slots = asyncio.Semaphore(limit or max(1, len(inputs)))

    async def one(given: Any, own: Config | None) -> Any:
        async with slots:
            return await graph.ainvoke(given, own, **asked)

    runs = [one(given, own) for given, own in zip(inputs, configs, strict=True)]
    return await asyncio.gather(*runs, return_exceptions=return_exceptions)


def _configs(
    config: Config | Sequence[Config] | None, count: int
) -> tuple[list[Config | None], int | None]:
    """Return a config for each run, and how many may run at once, if that is bounded."""
    is_one = config is None or isinstance(config, Mapping)
    configs: list[Any] = [config] * count if is_one else [*(config or ())]
    if len(configs) != count:
        raise ValueError(f"batch got {count} inputs and {len(configs)} configs; give one for each")
    first = configs[0] if configs else None
    return configs, (first or {}).get("max_concurrency")
