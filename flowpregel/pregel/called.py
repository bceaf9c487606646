"""What a node calls: which graphs, and how to call it by itself, outside of a run."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from flowpregel._core.commands import callee_of, unwrapped
from flowpregel._core.effects import StepContext
from flowpregel._core.records import Kind, Node, Outcome, Raised, Returned, Task
from flowpregel.context import Job, RunClient, RunInfo
from flowpregel.errors import GraphInterrupt
from flowpregel.executors.attempt import aperform, perform


def is_graph(target: Any) -> bool:
    """Return whether *target* is a compiled graph, which runs nested."""
    return hasattr(type(target), "nested_run")


def graphs_named_by(target: Any) -> Iterator[Any]:
    """Yield the compiled graphs that the code of *target* names, in this order.

    It names what it closes over, what its module has, and what the modules have that it names.

    Args:
        target: A function, perhaps wrapped; anything else names none.
    """
    function = inspect.unwrap(unwrapped(target))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        known = dict(function.__globals__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a name that has no value yet
                known[name] = cell.cell_contents
        yield from _graphs_in(code, known)


def _graphs_in(code: CodeType, known: Mapping[str, Any]) -> Iterator[Any]:
    value: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = known.get(name)
        elif isinstance(value, ModuleType) and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            value = vars(value).get(name)
        else:
            value = None
        if is_graph(value):
            yield value
        elif isinstance(name, CodeType):
            yield from _graphs_in(name, known)


# ---------------------------------------------------------------- calls by themselves


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
