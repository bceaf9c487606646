"""The outer runs around the running code.

They are tracked to prevent a deadlock: a run that starts another run on its own thread
(with the same thread id) would wait for a lease that it holds itself, and would never
end.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypeAlias

from flowpregel.context import current
from flowpregel.errors import ConfigurationError

RunKey: TypeAlias = tuple[Any, ...]
"""The store, the thread and the namespace of a run.

The store is identified by its path or, without a path, by the ``id()`` of the saver.
"""
is_dry: ContextVar[bool] = ContextVar("flowpregel_is_dry", default=False)
"""True in the code of a dry replay, which starts no other run."""
imported_module: ContextVar[str] = ContextVar("flowpregel_imported_module", default="")
"""The name of the module that a command imports for its flow, while the import executes
the module's code. Otherwise an empty string.
"""
_OUTER_RUNS: ContextVar[frozenset[RunKey]] = ContextVar(
    "flowpregel_outer_runs",
    default=frozenset(),
)


def refuse_while_imported() -> None:
    """Refuse a run that a module starts while a command imports it.

    The command would run a different workflow from the one that it was asked for, and
    the worker processes, which import the module too, would run it again.

    Raises:
        ConfigurationError: The module is being imported.
    """
    module = imported_module.get()
    if module:
        raise ConfigurationError(
            f"the module {module!r} runs a workflow while it is imported; put the call "
            "below `if __name__ == '__main__':`"
        )


def refuse_inside_itself(
    saver: Any,
    address: tuple[str, str],
) -> None:
    """Refuse to start a run from the code of the same run.

    Args:
        saver: The saver of the run.
        address: The thread and the namespace of the run.

    Raises:
        ConfigurationError: One of the outer runs has the same store and address.
    """
    key = _run_key(saver, address)
    if key in _outer_runs():
        raise ConfigurationError(
            f"the run {address[0]!r} was called inside itself, and would wait for "
            "itself: give the inner run another id, or none to make it a step of the "
            "outer one"
        )


def enter_run(
    saver: Any,
    address: tuple[str, str],
) -> None:
    """Add a run to the outer runs of the current context."""
    key = _run_key(saver, address)
    _OUTER_RUNS.set(_outer_runs() | {key})


def outer_runs_of_tasks() -> tuple[RunKey, ...]:
    """Return the keys of the outer runs whose stores another process can open."""
    keys = [key for key in _outer_runs() if isinstance(key[0], str)]
    return tuple(sorted(keys))


def _outer_runs() -> frozenset[RunKey]:
    """Return the keys of the outer runs around the running code."""
    scope = current.get()
    if scope is None:
        return _OUTER_RUNS.get()
    # The context variable of the coordinator is not set in a worker process. There, the
    # job (the message with the task) contains the keys of the outer runs.
    return _OUTER_RUNS.get().union(scope.job.run.outer_runs)


def _run_key(
    saver: Any,
    address: tuple[str, str],
) -> RunKey:
    store = getattr(saver, "path", None) or id(saver)
    return (store, *address)
