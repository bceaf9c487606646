"""Calls a node by itself, outside of a run: what a test of a single node does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowpregel._core.callee import callee_of
from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Outcome, Raised, Returned, Task
from flowpregel.context import Job, RunClient, RunInfo
from flowpregel.errors import GraphInterrupt
from flowpregel.executors.attempt import aperform, perform
from flowpregel.pregel.called import is_graph


def call_alone(steps: Sequence[Any], given: Any, config: Mapping[str, Any] | None) -> Any:
    """Return what *steps* make of *given*, each called with the output of the one before.

    Raises:
        Exception: What one of them raised.
    """
    if steps and is_graph(steps[0]):
        return steps[0].invoke(given, config)
    return _result_of(perform(_job(steps, given, config), RunClient()))


async def acall_alone(steps: Sequence[Any], given: Any, config: Mapping[str, Any] | None) -> Any:
    """`call_alone`, with the async forms of the steps."""
    if steps and is_graph(steps[0]):
        return await steps[0].ainvoke(given, config)
    return _result_of(await aperform(_job(steps, given, config), RunClient()))


def _job(steps: Sequence[Any], given: Any, config: Mapping[str, Any] | None) -> Job:
    node = Node(name="node", steps=tuple(map(callee_of, steps)))
    place = StepContext("", "", step=0, stop=1)
    return Job(Task("", node, Kind.CALL, given, ""), place, RunInfo(config=config or {}))


def _result_of(outcome: Outcome) -> Any:
    if isinstance(outcome, Returned):
        return outcome.writes[0][1]
    raise outcome.error if isinstance(outcome, Raised) else GraphInterrupt
