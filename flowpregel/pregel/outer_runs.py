"""The runs around the code that is running.

A run of the same thread inside one of them would wait for the lease that the outer run
holds, and so for its own end.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypeAlias

from flowpregel.context import current
from flowpregel.errors import ConfigurationError

RunKey: TypeAlias = tuple[Any, ...]
"""The store (its location, or the number of the object), thread and namespace of a
run.
"""
is_dry: ContextVar[bool] = ContextVar("flowpregel_is_dry", default=False)
"""True in the code of a dry replay, which starts no other run."""
_OUTER_RUNS: ContextVar[frozenset[RunKey]] = ContextVar(
    "flowpregel_outer_runs", default=frozenset()
)


def refuse_inside_itself(saver: Any, address: tuple[str, str]) -> None:
    """Refuse a run that code of the same run starts.

    Args:
        saver: The saver of the run.
        address: The thread and the namespace.

    Raises:
        ConfigurationError: One of the runs around the code has this address.
    """
    if _run_key(saver, address) in _runs_around():
        raise ConfigurationError(
            f"the run {address[0]!r} is asked for inside itself, and would wait for "
            "its own end: give the inner run another id, or none to make it a step of "
            "the outer one"
        )


def enter_run(saver: Any, address: tuple[str, str]) -> None:
    """Add a run to those around the code, in the current context."""
    _OUTER_RUNS.set(_runs_around() | {_run_key(saver, address)})


def outer_runs_of_tasks() -> tuple[RunKey, ...]:
    """Return the runs around the code whose stores another process can open."""
    return tuple(sorted(key for key in _runs_around() if isinstance(key[0], str)))


def _runs_around() -> frozenset[RunKey]:
    scope = current.get()
    if scope is None:
        return _OUTER_RUNS.get()
    # A worker process has not got the context variables of the coordinator.
    return _OUTER_RUNS.get().union(scope.job.run.outer_runs)


def _run_key(saver: Any, address: tuple[str, str]) -> RunKey:
    store = getattr(saver, "path", None) or id(saver)
    return (store, *address)
