"""The runs of nested graphs: their starts, their turns and their ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flowpregel._core.calls import DEEPEST
from flowpregel._core.effects import Ended, StepContext, Stopped
from flowpregel._core.records import Kind, Node, Raised, Returned, Task
from flowpregel._engine.nested import ActiveRun, NestedRuns, RunContext

STEP = StepContext("", "", 0, 1)


def steps() -> Iterator[Any]:
    """Return the steps of a run that ends at once."""
    return iter(())


@dataclass(frozen=True, eq=False)
class FakeGraph:
    """A graph whose runs have the namespace *namespace*, or cannot start."""

    namespace: str = ""
    error: Exception | None = None

    def nested_run(
        self, task: Task, step: StepContext, outer: RunContext
    ) -> tuple[Any, RunContext]:
        """Return the steps of a run, and its context."""
        if self.error is not None:
            raise self.error
        return steps(), RunContext(thread_id="1", namespace=self.namespace)


def task_of(graph: FakeGraph, name: str = "a") -> Task:
    """Return a task whose node is *graph*."""
    node = Node(name="child", role="graph", graph=graph)
    return Task(name, node, Kind.PULL, None, "")


def outermost(depth: int = 0) -> ActiveRun:
    """Return a run that is nested in *depth* others."""
    return ActiveRun(steps(), RunContext(), depth=depth)  # type: ignore[arg-type]


@pytest.fixture
def nested() -> NestedRuns:
    """Return the nested runs of a run that has none."""
    return NestedRuns(deque())


def outcomes(run: ActiveRun) -> list[object]:
    """Return the outcomes in the inbox of *run*."""
    return [event.outcome for event in run.inbox if isinstance(event, Ended)]


@pytest.mark.parametrize(
    ("namespace", "ready"), [("child", 1), ("a|child", 1), ("child:7", 2), ("", 2)]
)
def test_only_runs_of_a_graph_with_a_memory_wait_for_each_other(
    nested: NestedRuns, namespace: str, ready: int
) -> None:
    """Their tasks would have the same ids. A namespace with an id is used once."""
    graph = FakeGraph(namespace)
    for name in ("a", "b"):
        nested.start(outermost(), task_of(graph, name), STEP)

    assert ready == len(nested.ready)
    assert ["a", "b"] == list(nested.active)


def test_a_run_that_ends_passes_its_turn_on(nested: NestedRuns) -> None:
    """The runs of a graph go in the order of their starts, one at a time."""
    graph = FakeGraph("child")
    for name in ("a", "b", "c"):
        nested.start(outermost(), task_of(graph, name), STEP)
    first = nested.ready.popleft()

    nested.pass_turn(first)

    assert [nested.active["b"]] == list(nested.ready)


def test_a_run_that_waits_for_its_turn_has_none_to_pass_on(nested: NestedRuns) -> None:
    """A run that is stopped in the queue does not let another one overtake."""
    graph = FakeGraph("child")
    for name in ("a", "b", "c"):
        nested.start(outermost(), task_of(graph, name), STEP)

    nested.pass_turn(nested.active["b"])

    assert [nested.active["a"]] == list(nested.ready)


def test_a_graph_that_cannot_start_fails_its_task(nested: NestedRuns) -> None:
    """The run around it gets the error as the outcome of the task, at once."""
    run, error = outermost(), ValueError("no")

    nested.start(run, task_of(FakeGraph(error=error)), STEP)

    assert [Raised(error)] == outcomes(run)
    assert 0 == run.deadline
    assert {} == nested.active


def test_endless_nesting_fails_the_task_that_goes_too_deep(nested: NestedRuns) -> None:
    """The last run that may begin is not refused."""
    allowed, refused = outermost(DEEPEST - 1), outermost(DEEPEST)

    for run, name in ((allowed, "a"), (refused, "b")):
        nested.start(run, task_of(FakeGraph(), name), STEP)

    assert ["a"] == list(nested.active)
    assert DEEPEST == nested.active["a"].depth
    (outcome,) = outcomes(refused)
    assert isinstance(outcome, Raised)


def test_the_end_of_the_writers_has_the_time_of_the_whole_task(
    nested: NestedRuns,
) -> None:
    """The writers of a graph's node take no time; the nested run did."""
    nested.start(outermost(), task_of(FakeGraph()), STEP)
    end = Ended("a", 1, Returned(()))

    nested.add_span(end)

    assert end.span is not None
    assert "graph" == end.span.executor
    assert {} == nested.active


@pytest.mark.parametrize(
    ("requests", "received"),
    [
        ([Stopped("x", kill=False), Stopped("y", kill=False)], ["x"]),
        ([Stopped("x", kill=False), Stopped("y")], ["x", "y"]),
        ([Stopped("x"), Stopped("y", leave=True)], ["x", "y"]),
        ([Stopped("x"), Stopped("y", kill=False)], ["x"]),
    ],
)
def test_a_run_gets_only_stronger_requests_to_stop(
    requests: list[Stopped], received: list[str]
) -> None:
    """A run asked in time can be killed, and then left; nothing is asked twice."""
    run = outermost()
    for request in requests:
        run.stop(request)

    assert received == [
        event.reason for event in run.inbox if isinstance(event, Stopped)
    ]
    assert 0 == run.deadline
