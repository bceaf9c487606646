"""The handlers of a run, which are called when the run starts and ends.

The handlers are those in ``config["callbacks"]``, which have the methods of LangChain's
handlers, and the hooks of a workflow (`EndHooks`), which are called once for each end
of a run. A handler may lack methods that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from flowpregel._engine.engine import RunPlan
from flowpregel._interrupts import is_from_handler
from flowpregel._loggers import run_log
from flowpregel.errors import RunDiedError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run: the argument of a workflow's hook."""

    flow: str
    """The name of the workflow."""
    id: str | None
    """The id of the run, or None if the run is not stored."""
    result: Any = None
    """The result of the workflow."""
    error: Exception | None = None
    """The error of the run; `RunDiedError` if its process died."""


Hook: TypeAlias = Callable[[RunEnd], object]


@dataclass(frozen=True, slots=True)
class EndHooks:
    """The handler for the ``on_end=`` and ``on_failure=`` of a workflow."""

    on_run_end: Hook | None
    """The function that is called when a run has succeeded."""
    on_run_failure: Hook | None
    """The function that is called when a run has failed, or is found to have died."""


@contextmanager
def run_hooks(
    run: Any,
    plan: RunPlan,
) -> Iterator[None]:
    """Call the handlers of a run before it starts and when it has ended.

    The handlers are called in the coordinator, and only for the outermost run. An error
    of a handler is logged. The run keeps its thread's lease until the handlers have
    returned: if the program dies before, the next run calls the handlers.

    Args:
        run: The `GraphRun`.
        plan: The plan of the run.
    """
    config = run.config
    handlers = _Handlers(config.callbacks)
    lease = plan.lease
    has_died = lease is not None and lease.is_inherited
    is_finished = plan.run_context.is_finished
    flow = str(config.run_name)
    run_id = config.thread_id
    identity = {
        "run_id": plan.run_context.run_id,
        "parent_run_id": None,
        "tags": config.run_config["tags"],
    }
    with plan.resources.pop_all():
        if has_died and not is_finished:
            error = RunDiedError(str(run_id))
            handlers.call("on_run_failure", RunEnd(flow=flow, id=run_id, error=error))
        labels = {"metadata": config.metadata, "name": config.run_name}
        handlers.call("on_chain_start", None, run.input, **identity, **labels)
        try:
            yield
        except BaseException as failure:
            handlers.call("on_chain_error", failure, **identity)
            if isinstance(failure, Exception) and not is_from_handler(failure):
                end = RunEnd(flow=flow, id=run_id, error=failure)
                handlers.call("on_run_failure", end)
            raise
        handlers.call("on_chain_end", run.output(), **identity)
        result = run.engine.result
        is_first_end = has_died or not is_finished
        if result is not None and not result.paused and is_first_end:
            end = RunEnd(flow=flow, id=run_id, result=result.values)
            handlers.call("on_run_end", end)


@dataclass(frozen=True, slots=True)
class _Handlers:
    """The handlers of a run, whose errors are logged."""

    handlers: Sequence[Any]

    def call(
        self,
        method: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Call *method* of each handler that has it."""
        for handler in self.handlers:
            try:
                function = getattr(handler, method, None)
                if function is not None:
                    function(*args, **kwargs)
            except Exception:  # noqa: BLE001 - a run does not depend on its handlers
                run_log.exception("%s of a callback failed", method)
