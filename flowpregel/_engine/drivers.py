"""The two drivers, one sync and one async. They are the only code that is written
twice.

A driver performs the requests of an engine, and yields the items that the run emits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ParamSpec, TypeAlias, TypeVar

from flowpregel._engine.engine import Engine

Params = ParamSpec("Params")
Value = TypeVar("Value")

Item: TypeAlias = tuple[tuple[str, ...], str, Any]
"""The (namespace, mode, payload) of an item that a run emitted."""


def drive(engine: Engine) -> Iterator[Item]:
    """Run *engine* to the end on this OS thread, and yield the items that the run
    emits.
    """
    outbox = engine.outbox
    try:
        while True:
            request = engine.next_request()
            while outbox:
                yield outbox.popleft()
            if request is None:
                return
            engine.perform(request)
    except BaseException as error:
        finish(engine)
        while outbox and not isinstance(error, GeneratorExit):
            yield outbox.popleft()
        raise
    finally:
        engine.close()


async def adrive(engine: Engine) -> AsyncIterator[Item]:
    """Run *engine* to the end on the running event loop, and yield the items that the
    run emits.
    """
    outbox = engine.outbox
    try:
        while True:
            request = engine.next_request()
            while outbox:
                yield outbox.popleft()
            if request is None:
                return
            await engine.perform_on_loop(request)
    except BaseException as error:
        await afinish(engine)
        while outbox and not isinstance(error, GeneratorExit):
            yield outbox.popleft()
        raise
    finally:
        await engine.close_on_loop()


def finish(engine: Engine) -> None:
    """End a run that was left early: cancel its tasks, and store finished results."""
    try:
        request = engine.stop()
        while request is not None:
            engine.perform(request)
            request = engine.next_request()
    except BaseException as error:  # noqa: BLE001 - the run ends; its reason is known
        engine.fail(error)


async def afinish(engine: Engine) -> None:
    """Finish a run as `finish` does, on the event loop. A request that need not be
    awaited is performed directly, so that it cannot be cancelled.
    """
    try:
        request = engine.stop()
        while request is not None:
            if engine.is_awaited(request):
                await engine.perform_on_loop(request)
            else:
                engine.perform(request)
            request = engine.next_request()
    except BaseException as error:  # noqa: BLE001 - the run ends; its reason is known
        engine.fail(error)


# -------------------------------------------------------------------- event loops


async def elsewhere(
    work: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """Call *work* on another OS thread, and return the result."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    return await asyncio.to_thread(work, *args, **kwargs)
