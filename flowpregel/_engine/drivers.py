"""The two drivers: the only code that is written for sync and for async.

A driver performs what the pump asks for, and hands on what the run emits.
Everything else, `Host` does for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

from flowpregel._core.run_state import Result
from flowpregel._engine.host import Host
from flowpregel._engine.pump import Ask

Item: TypeAlias = tuple[tuple[str, ...], str, Any]
"""(namespace, mode, payload) of something a run emitted."""


def drive(host: Host) -> Iterator[Item]:
    """Run to the end on this OS thread, yielding what is emitted on the way."""
    try:
        request = host.begin()
        while request is not None:
            while host.outbox:
                yield host.outbox.popleft()
            request = host.perform(request)
        yield from drained(host.outbox)
    except GeneratorExit:
        host.finish()
        raise
    except BaseException:
        host.finish()
        yield from drained(host.outbox)
        raise
    finally:
        host.close()


async def adrive(host: Host) -> AsyncIterator[Item]:
    """Run to the end on the running event loop, yielding what is emitted on the way."""
    try:
        request = host.begin()
        while request is not None:
            while host.outbox:
                yield host.outbox.popleft()
            if isinstance(request, Ask):
                blocks = host.blocks(request)
                request = await host.perform_elsewhere(request) if blocks else host.perform(request)
            elif host.inline_work:
                request = host.perform(request)
            else:
                request = await host.await_events(request)
        for item in drained(host.outbox):
            yield item
    except GeneratorExit:
        await host.afinish()
        raise
    except BaseException:
        await host.afinish()
        for item in drained(host.outbox):
            yield item
        raise
    finally:
        host.close()


def drained(outbox: deque[Item]) -> Iterator[Item]:
    """Yield what is left in the outbox."""
    while outbox:
        yield outbox.popleft()


def result_of(host: Host) -> Result:
    """Return what a run that was driven to its end left."""
    assert host.result is not None
    return host.result
