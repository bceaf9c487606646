"""Workflows inside workflows, and beside graphs: one run, one record."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Command, interrupt
from tests.runs.crashes import Once


class State(TypedDict):
    n: int


def test_a_workflow_that_another_calls_is_resumed_with_it(
    drive: Any, executor: str, counted: Any
) -> None:
    """What its tasks did is recorded too."""
    work, crash = counted(), Once(OSError("crash"))

    @entrypoint(executor=executor)
    def inner(n: int) -> int:
        return sum(future.result() for future in task(work).map(range(n)))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def outer(n: int) -> int:
        total = inner.invoke(n) + inner.invoke(1)
        crash()
        return total

    with pytest.raises(OSError, match="crash"):
        drive.invoke(outer, 3, thread_id="1")

    assert 3 == drive.invoke(outer, None, thread_id="1")
    assert [0, 0, 1, 2] == sorted(work.seen)


def test_an_async_workflow_awaits_another(drive: Any, executor: str) -> None:
    """``ainvoke`` inside an async body."""

    @entrypoint(executor=executor)
    async def inner(n: int) -> int:
        return await task(abs)(-n)

    @entrypoint(executor=executor)
    async def outer(n: int) -> int:
        return await inner.ainvoke(n) + 1

    assert 4 == drive.invoke(outer, 3)


def test_a_question_of_an_inner_workflow_reaches_the_caller(
    drive: Any, executor: str
) -> None:
    """And the answer finds its way back."""

    @entrypoint(executor=executor)
    def inner(n: int) -> str:
        return f"{n} {interrupt('sure?')}"

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def outer(n: int) -> str:
        return f"({inner.invoke(n)})"

    asked = drive.invoke(outer, 3, thread_id="1")["__interrupt__"]

    assert ["sure?"] == [item.value for item in asked]
    assert "(3 yes)" == drive.invoke(outer, Command(resume="yes"), thread_id="1")


def test_a_node_of_a_graph_calls_tasks(drive: Any, executor: str, counted: Any) -> None:
    """They are recorded with the node, and not called again when it is."""
    work, crash = counted(lambda n: n + 1), Once(OSError("crash"))

    def node(state: State) -> State:
        n = task(work)(state["n"]).result()
        crash()
        return {"n": n}

    graph = StateGraph(State)
    graph.add_node("node", node, executor=executor)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(checkpointer=InMemorySaver(), executor=executor)
    with pytest.raises(OSError, match="crash"):
        drive.invoke(app, {"n": 1}, thread_id="1")

    assert {"n": 2} == drive.invoke(app, None, thread_id="1")
    assert [1] == work.seen


def test_a_workflow_runs_a_graph(drive: Any, executor: str) -> None:
    """Either kind can be inside the other."""
    graph = StateGraph(State)
    graph.add_node("node", lambda state: {"n": state["n"] * 2})
    graph.add_edge(START, "node")
    app = graph.compile()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        result: State = app.invoke({"n": n})
        return result["n"] + task(abs)(-1).result()

    assert 7 == drive.invoke(flow, 3, thread_id="1")


def test_a_graph_is_not_answered_by_what_a_task_left(drive: Any, executor: str) -> None:
    """What is recorded of a task is not handed to a graph in its place."""
    crash, uses = Once(OSError("crash")), ["task", "graph"]

    @entrypoint(executor=executor)
    def inner(n: int) -> int:
        return n

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def outer(n: int) -> int:
        result = task(abs)(-n).result() if uses.pop(0) == "task" else inner.invoke(-n)
        crash()
        return result

    with pytest.raises(OSError, match="crash"):
        drive.invoke(outer, 3, thread_id="1")

    assert -3 == drive.invoke(outer, None, thread_id="1")
