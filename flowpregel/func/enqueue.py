"""Runs that are recorded now and begin later, in a process of ``flowpregel work``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from flowpregel import _clock
from flowpregel._interrupts import defer_interrupts
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.base import QUEUE
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.errors import ConfigurationError, GraphDrained, ThreadBusyError
from flowpregel.pregel.runner import GraphRun

POSITION_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {"priority": 0, "not_before": None}
)
"""The options of `Flow.enqueue` that `Flow.run` does not have, with their defaults."""


def position_from(priority: Any, not_before: Any) -> QueuePosition:
    """Return the position in the queue that the options of `Flow.enqueue` describe.

    Raises:
        ConfigurationError: The value of an option is not allowed.
    """
    if not isinstance(priority, int):
        raise ConfigurationError(
            f"priority={priority!r}: use a whole number; a greater one begins first"
        )
    match not_before:
        case None:
            moment = 0.0
        case datetime():
            moment = not_before.timestamp()
        case timedelta():
            moment = _clock.wall() + not_before.total_seconds()
        case _:
            raise ConfigurationError(
                f"not_before={not_before!r}: use a datetime, or a timedelta from now"
            )
    return QueuePosition(priority, moment)


def store_enqueued(run: GraphRun, position: QueuePosition) -> None:
    """Store the input of *run* with its *position* in the queue, and do not begin the
    run.

    If the thread already has a run with the same input, nothing is stored.

    Raises:
        ConfigurationError: The user's metadata has the key under which the position is
            stored.
    """
    if QUEUE in run.config.metadata:
        raise ConfigurationError(
            f"the metadata has {QUEUE!r}, the name of the position of an enqueued run: "
            "use another name"
        )
    # The run drains (stops) at its first barrier. That barrier comes after the commit
    # of the input, and before any node runs.
    run.options = replace(run.options, drain=lambda: "it was enqueued")
    # Callback handlers are not called here, but when the run begins in a process of
    # ``flowpregel work``.
    metadata = {**run.config.metadata, QUEUE: tuple(position)}
    run.config = replace(run.config, callbacks=(), metadata=metadata)
    # If a process already executes a run of this thread, `ThreadBusyError` is
    # suppressed, and nothing is enqueued.
    with UsersFrames(), suppress(GraphDrained, ThreadBusyError), defer_interrupts():
        for _ in run.items():
            pass
