"""Tells handlers that a run started, and how it ended.

They are those in ``config["callbacks"]``, with LangChain's methods, and the hooks of a workflow
(`EndHooks`), which are told of each end once. A handler needs no more methods than it wants.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias

from flowpregel._engine.engine import Engine, RunPlan
from flowpregel.errors import RunDiedError
from flowpregel.pregel.config import ParsedConfig

_log: Final = logging.getLogger("flowpregel")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run has ended: what a hook of its workflow is given."""

    flow: str
    """The name of the workflow."""
    id: str | None
    """The run's; None: nothing keeps it."""
    result: Any = None
    """What the workflow returned."""
    error: Exception | None = None
    """What it failed with; `RunDiedError` if its process died."""


Hook: TypeAlias = Callable[[RunEnd], object]


@dataclass(frozen=True, slots=True)
class EndHooks:
    """The handler for what a workflow was given as ``on_end=`` and ``on_failure=``."""

    on_run_end: Hook | None
    """Called when a run is done."""
    on_run_failure: Hook | None
    """Called when a run has failed, or is found dead."""


class _Run(Protocol):
    """A run, as far as its handlers are told of it."""

    config: ParsedConfig
    given: Any
    engine: Engine

    def output(self) -> Any:
        """Return what it came to."""


@contextmanager
def run_hooks(run: _Run, planned: RunPlan) -> Iterator[None]:
    """Call the methods of each handler of *run*, before it and when it has ended.

    They are called where the program is, for the outermost run alone; one that fails is logged.
    The run has its thread until they have returned: if the program dies meanwhile, the next run
    finds it dead, and calls them.
    """
    config, around, lease = run.config, planned.around, planned.lease
    known = {"run_id": around.run_id, "parent_run_id": None, "tags": config.shown["tags"]}
    was_left = lease is not None and lease.is_inherited

    def tell(method: str, *args: Any, **more: Any) -> None:
        for handler in config.callbacks:
            try:
                if (told := getattr(handler, method, None)) is not None:
                    told(*args, **more)
            except Exception:  # noqa: BLE001 - a run does not depend on who watches it
                _log.exception("%s of a callback failed", method)

    def tell_end(method: str, **how: Any) -> None:
        tell(method, RunEnd(flow=str(config.run_name), id=config.thread_id, **how))

    with planned.resources.pop_all():
        if was_left and not around.is_over:
            tell_end("on_run_failure", error=RunDiedError(str(config.thread_id)))
        labels = {"metadata": config.metadata, "name": config.run_name}
        tell("on_chain_start", None, run.given, **known, **labels)
        try:
            yield
        except BaseException as error:
            tell("on_chain_error", error, **known)
            if isinstance(error, Exception):
                tell_end("on_run_failure", error=error)
            raise
        tell("on_chain_end", run.output(), **known)
        result = run.engine.result
        if result is not None and not result.paused and (was_left or not around.is_over):
            tell_end("on_run_end", result=result.values)


def message_stream(metadata: Mapping[str, Any]) -> Any:
    """Return what makes the items of mode ``messages``.

    Args:
        metadata: The run's.

    Raises:
        ImportError: LangChain is not installed.
    """
    messages = import_module("flowpregel.integrations.langchain.messages")
    return messages.MessageStream(metadata)
