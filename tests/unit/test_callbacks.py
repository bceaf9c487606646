"""The calls of handlers for runs that are fed by hand, and end in ways that are rare
in whole runs.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from flowpregel._core.commands import Command
from flowpregel._core.effects import Ended, StepContext, Steps, Submit, Wait, Wakeup
from flowpregel._core.records import Escaped, Kind, Task, Withdrawn
from flowpregel._core.run import Result
from flowpregel._engine.callbacks import GraphCallbacks, GraphLabels, Handlers
from flowpregel.errors import ParentCommand
from tests.unit.core.programs import node


class Noting:
    """A handler that notes the names of starts, and the kinds of ends."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.seen: list[str] = []

    def on_chain_start(self, *_: Any, run_id: UUID, name: str, **__: Any) -> None:
        """Note a start."""
        self.names[run_id] = name
        self.seen.append(f"start {name}")

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note an error."""
        self.seen.append(f"{type(error).__name__} {self.names[run_id]}")


def task(name: str = "n", parent: Task | None = None) -> Task:
    """Return a task, or the call of a hidden one."""
    hidden = parent is not None
    kind = Kind.PULL if parent is None else Kind.CALL
    made = node(name, hidden=hidden)
    return Task(id=name, node=made, kind=kind, input=1, path="p", parent=parent)


def steps_of(planned: Task) -> Steps:
    """Start *planned*, and wait."""
    yield Submit([planned], StepContext("c", "", 0, 1))
    yield Wait()
    return Result(None)


def commanding() -> Steps:
    """Command the graph around."""
    raise ParentCommand(Command(graph=Command.PARENT))
    yield


def callbacks_of(handler: Noting, **options: Any) -> GraphCallbacks:
    """Return the calls of *handler* for a graph."""
    labels = GraphLabels(name="inner")
    return GraphCallbacks(Handlers([handler]), labels, uuid4(), **options)


def test_a_nested_run_that_is_abandoned_ends_for_its_handlers() -> None:
    """First its node, then the run."""
    handler = Noting()
    steps = callbacks_of(handler).graph_steps(steps_of(task()), 1)

    next(steps)
    steps.send(None)
    steps.close()

    ends = ["TaskCancelled n", "TaskCancelled inner"]
    assert ["start inner", "start n", *ends] == handler.seen


def test_a_failed_run_ends_the_nodes_that_it_no_longer_waits_for() -> None:
    """Every start has an end, also after a time limit."""
    handler = Noting()

    def fail() -> Steps:
        yield Submit([task()], StepContext("c", "", 0, 1))
        raise TimeoutError

    steps = callbacks_of(handler).node_steps(fail())
    next(steps)
    with pytest.raises(TimeoutError):
        steps.send(None)

    assert ["start n", "TaskCancelled n"] == handler.seen


def test_an_outermost_run_that_is_forgotten_calls_nobody() -> None:
    """Python may close its steps at any time, on any OS thread."""
    handler = Noting()
    steps = callbacks_of(handler).node_steps(steps_of(task()))

    next(steps)
    steps.close()

    assert ["start n"] == handler.seen


def test_a_command_for_the_graph_around_ends_the_node_around() -> None:
    """The node's own end, after its writers, is not noted a second time."""
    handler = Noting()
    outer = callbacks_of(handler)
    outer_task = task("outer")
    outer_steps = outer.node_steps(steps_of(outer_task))
    next(outer_steps)

    def escape(error: ParentCommand) -> None:
        outer.escape(outer_task, error)
        outer.escape(outer_task, error)

    inner = callbacks_of(handler, parent_id=outer.id_of(outer_task), escape=escape)
    with pytest.raises(ParentCommand):
        next(inner.graph_steps(commanding(), 1))
    outer_steps.send(None)
    with pytest.raises(StopIteration):
        outer_steps.send(Wakeup([Ended("outer", 1, Withdrawn())], 1, 1))

    ends = ["ParentCommand inner", "ParentCommand outer"]
    assert ["start outer", "start inner", *ends] == handler.seen


def test_a_graph_without_a_graph_around_may_command_one() -> None:
    """The engine decides what that means."""
    handler = Noting()

    with pytest.raises(ParentCommand):
        next(callbacks_of(handler).graph_steps(commanding(), 1))

    assert ["start inner", "ParentCommand inner"] == handler.seen


def test_a_hidden_call_has_the_id_of_its_caller() -> None:
    """Once the caller has ended, it is the graph's."""
    handler = Noting()
    callbacks = callbacks_of(handler)
    caller = task()
    hidden = task("hidden", caller)
    steps = callbacks.node_steps(steps_of(caller))

    before = callbacks.id_of(hidden)
    next(steps)
    during = callbacks.id_of(hidden)
    steps.send(None)
    with pytest.raises(StopIteration):
        steps.send(Wakeup([Ended("n", 1, Escaped(Command()))], 1, 1))

    assert "n" == handler.names[during]
    assert before == callbacks.id_of(hidden) != during
    assert ["start n", "ParentCommand n"] == handler.seen


def test_the_failure_of_an_effect_reaches_the_run() -> None:
    """The run may continue after it."""
    handler = Noting()

    def go_on() -> Steps:
        try:
            yield Wait()
        except OSError:
            yield Submit([task()], StepContext("c", "", 0, 1))

    steps = callbacks_of(handler).node_steps(go_on())
    next(steps)

    assert isinstance(steps.throw(OSError("full")), Submit)
    assert ["start n"] == handler.seen


def test_a_task_that_was_withdrawn_has_ended() -> None:
    """The handler gets the error of a cancelled task."""
    handler = Noting()
    steps = callbacks_of(handler).node_steps(steps_of(task()))
    next(steps)
    steps.send(None)

    with pytest.raises(StopIteration):
        steps.send(Wakeup([Ended("n", 1, Withdrawn())], 1, 1))

    assert ["start n", "TaskCancelled n"] == handler.seen
