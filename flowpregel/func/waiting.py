"""Waiting that survives the end of the program: for a time, and for a signal from elsewhere.

Each is a call like others: recorded, waited for beside others, answered from its record. It
takes no worker: it waits on an event loop of the process that drives the run.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

from flowpregel._engine.nested import RunContext
from flowpregel.context import current_scope, interrupt
from flowpregel.errors import ConfigurationError
from flowpregel.executors.calls import CallFuture
from flowpregel.func.decorator import task
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL, pauses

_LONGEST: Final = 5.0
"""Seconds between two looks at the clock, which may be set meanwhile."""
_LOOK_EVERY: Final = 0.2
"""Seconds between two looks for a signal."""


def sleep(seconds: float | None = None, *, until: datetime | float | None = None) -> None:
    """Wait inside a run; when that is killed and run again, it waits for what is left.

    Args:
        seconds: How long. When that ends is recorded at once.
        until: When to end, in place of *seconds*: a time, local if it has no zone, or seconds
            since the epoch. It must be the same when the run is run again.

    Raises:
        RuntimeError: Called outside of a run, or on an event loop: there `asleep` waits.
        ConfigurationError: Neither or both were given, or no time.

    Example:
        >>> from flowpregel import entrypoint
        >>> @entrypoint
        ... def remind(seconds: float) -> str:
        ...     sleep(seconds)
        ...     return "now"
        >>> remind.run(0.01)
        'now'
    """
    _until(_due(seconds).result() if until is None else _time(until, seconds)).result()


async def asleep(seconds: float | None = None, *, until: datetime | float | None = None) -> None:
    """`sleep`, on the running event loop."""
    await _until(await _due(seconds) if until is None else _time(until, seconds))


def signal(name: str) -> CallFuture[Any]:
    """Start to wait for a value that somebody sends to the run; return its future at once.

    Values are sent by ``flow.signal(id, name, value)``, or ``flowpregel signal ID NAME
    VALUE``, from any process, before the run waits for them or while it does. Each is
    received once, in the order in which they were sent. Of several calls that wait at the same
    time any may be the first: where that matters, wait for one after the other.

    Args:
        name: Which values.

    Raises:
        RuntimeError: Called outside of a run.
        ConfigurationError: The run has no checkpointer that keeps signals (when its result
            is asked for).

    Example:
        >>> approved = signal("approved").result()  # in a run  # doctest: +SKIP
    """
    return _received(name)


def _time(until: datetime | float, seconds: float | None) -> float:
    if seconds is not None:
        raise ConfigurationError("sleep() takes seconds, or until, not both")
    return until.timestamp() if isinstance(until, datetime) else float(until)


@task(name="sleep", executor="inline", version="1")
def _due(seconds: float | None) -> float:
    """Return when a sleep ends, in seconds since the epoch; it is recorded."""
    if not isinstance(seconds, int | float):
        raise ConfigurationError(f"sleep({seconds!r}): use seconds, or until=")
    return time.time() + seconds


@task(name="sleep until", version="1")
async def _until(due: float) -> None:
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    while (left := due - time.time()) > 0:
        if pauses.get():
            interrupt({SLEEPS_UNTIL: datetime.fromtimestamp(due, UTC).isoformat()})
        await asyncio.sleep(min(left, _LONGEST))


@task(name="signal", version="1")
async def _received(name: str) -> Any:
    import asyncio  # noqa: PLC0415 - as above

    job = current_scope("signal()").job
    if not isinstance(job.run, RunContext) or job.run.committer is None:
        raise ConfigurationError(
            f"signal({name!r}): the run has no checkpointer to keep what is sent to it; write "
            "@entrypoint(checkpointer='runs.lmdb'), with the path of a folder"
        )
    saver, thread_id = job.run.committer.saver, str(job.run.thread_id)
    while True:
        found = await asyncio.to_thread(saver.receive_signal, thread_id, name, job.task.id)
        if found is not None:
            return found[0]
        if pauses.get():
            interrupt({AWAITS_SIGNAL: name})
        await asyncio.sleep(_LOOK_EVERY)
