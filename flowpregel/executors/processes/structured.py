"""structlog in a worker: its events go to the coordinator, whose structlog shows them.

A program that configures structlog in a module its tasks import has decided for
its workers too, and is left alone. Either way the run's fields are bound.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, Final

from flowpregel.context import TaskInfo
from flowpregel.executors.processes import frames
from flowpregel.executors.processes.wire import Outlet

_log: Final = logging.getLogger("flowpregel.worker")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class _Named:
    """What a structlog logger ends in here: only its name is asked for."""

    def __init__(self, *args: Any) -> None:
        self.args = tuple(arg for arg in args if isinstance(arg, str))

    def __getattr__(self, method: str) -> Callable[..., None]:
        if method.startswith("__"):
            raise AttributeError(method)
        return _ignore


def _ignore(*_: Any, **__: Any) -> None:
    """Log nothing: the event was sent, and there is nothing left of it."""


class Structured:
    """Looks after structlog in one worker.

    Args:
        outlet: Where events go.
        task: Returns the number of the task that runs.
    """

    def __init__(self, outlet: Outlet, task: Callable[[], int]) -> None:
        self._outlet = outlet
        self._task = task

    def begin(self, info: TaskInfo) -> None:
        """Bind the run's fields for the task that begins, in the current context."""
        structlog = sys.modules["structlog"]
        if not structlog.is_configured():
            self._configure(structlog)
        structlog.contextvars.bind_contextvars(
            thread_id=info.run.thread_id,
            run_id=info.run.run_id,
            step=info.step,
            task=info.name,
            attempt=info.attempt,
            pid=os.getpid(),
        )

    def _configure(self, structlog: Any) -> None:
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                self._send,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            logger_factory=_Named,
            cache_logger_on_first_use=False,
        )

    def _send(self, logger: Any, method: str, event: Any) -> str:
        """Send an event; the last of the processors."""
        fields = {
            str(name): value if isinstance(value, _PLAIN) else repr(value)
            for name, value in event.items()
        }
        body = pickle.dumps((logger.args, method, fields))
        self._outlet.send(frames.LOGGED, self._task(), body, frames.STRUCTURED)
        return ""


def pass_on_event(body: bytes) -> None:
    """Give a worker's structlog event to the program's structlog."""
    import structlog  # noqa: PLC0415 - 60 ms, and only for who uses it

    names, method, fields = pickle.loads(body)
    event = fields.pop("event", "")
    try:
        getattr(structlog.get_logger(*names), method)(event, **fields)
    except Exception:  # noqa: BLE001 - a user's processor; whoever reads the links goes on
        _log.exception("structlog could not take what a worker logged: %r", event)
