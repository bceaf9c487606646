"""Count Python calls: ``python -m tests.benchmarks.calls``.

Calls of Python functions in the coordinator, counted by `sys.setprofile` on all of its
OS threads, do not depend on the machine or on what else runs on it. Each count is the
difference between a long run and a short one, divided by the difference in their
lengths, so that what a run costs once is left out. LangGraph's count of the same
program stands beside ours.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypedDict

SHORT: Final = 20
LONG: Final = 70

Program = Callable[[int], None]
"""Makes a given number of supersteps or of calls."""


@dataclass(frozen=True, kw_only=True)
class CountedRow:
    """A program on both sides, and the most calls a step that ours may take."""

    name: str
    ours: Callable[[], Program]
    langgraph: Callable[[], Program]
    goal: int


class Counter(TypedDict):
    """The state of the loop."""

    count: int


def count_calls(program: Program) -> float:
    """Return the Python calls of one step of *program*, which is warm."""
    program(SHORT)
    return (_calls_of(program, LONG) - _calls_of(program, SHORT)) / (LONG - SHORT)


def _calls_of(program: Program, length: int) -> int:
    total = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal total
        total += event == "call"

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        program(length)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return total


def _graph_loop(graph_class: Any, compile_options: dict[str, Any]) -> Program:
    """Return a StateGraph of one node that loops by a conditional edge."""

    def step(state: Counter) -> Counter:
        return {"count": state["count"] - 1}

    def route(state: Counter) -> str:
        return "step" if state["count"] > 0 else "__end__"

    graph = graph_class(Counter)
    graph.add_node("step", step)
    graph.add_edge("__start__", "step")
    graph.add_conditional_edges("step", route, ["step", "__end__"])
    program = graph.compile(**compile_options)
    threads = iter(range(1_000))

    def run(length: int) -> None:
        config = {
            "recursion_limit": length + 10,
            "configurable": {"thread_id": str(next(threads))},
        }
        program.invoke({"count": length}, config)

    return run


def our_loop() -> Program:
    """Return our loop without a saver."""
    from flowpregel import StateGraph

    return _graph_loop(StateGraph, {"executor": "inline"})


def their_loop() -> Program:
    """Return LangGraph's loop without a saver."""
    from langgraph.graph import StateGraph

    return _graph_loop(StateGraph, {})


def our_saved_loop() -> Program:
    """Return our loop with the in-memory saver."""
    from flowpregel import InMemorySaver, StateGraph

    return _graph_loop(
        StateGraph, {"executor": "inline", "checkpointer": InMemorySaver()}
    )


def their_saved_loop() -> Program:
    """Return LangGraph's loop with its in-memory saver."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import StateGraph

    return _graph_loop(StateGraph, {"checkpointer": InMemorySaver()})


def _task_program(
    decorators: Any, options: dict[str, Any], *, at_once: bool
) -> Program:
    """Return a workflow that calls a task, all calls at once or one by one."""

    def double_number(number: int) -> int:
        return 2 * number

    double = decorators.task(double_number)

    def body(length: int) -> int:
        if not at_once:
            return sum(double(number).result() for number in range(length))
        futures = [double(number) for number in range(length)]
        return sum(future.result() for future in futures)

    flow = decorators.entrypoint(**options)(body)

    def run(length: int) -> None:
        flow.invoke(length)

    return run


def our_gathered_calls() -> Program:
    """Return our workflow whose calls are gathered."""
    import flowpregel.func as ours

    return _task_program(ours, {"executor": "inline"}, at_once=True)


def their_gathered_calls() -> Program:
    """Return LangGraph's workflow whose calls are gathered."""
    import langgraph.func as theirs

    return _task_program(theirs, {}, at_once=True)


def our_single_calls() -> Program:
    """Return our workflow that makes one call after another."""
    import flowpregel.func as ours

    return _task_program(ours, {"executor": "inline"}, at_once=False)


def their_single_calls() -> Program:
    """Return LangGraph's workflow that makes one call after another."""
    import langgraph.func as theirs

    return _task_program(theirs, {}, at_once=False)


ROWS: Final = (
    CountedRow(
        name="a superstep of a StateGraph loop, no saver",
        ours=our_loop,
        langgraph=their_loop,
        goal=75,
    ),
    CountedRow(
        name="the same with the in-memory saver",
        ours=our_saved_loop,
        langgraph=their_saved_loop,
        goal=125,
    ),
    CountedRow(
        name="a @task call gathered with others",
        ours=our_gathered_calls,
        langgraph=their_gathered_calls,
        goal=55,
    ),
    CountedRow(
        name="a @task call one by one",
        ours=our_single_calls,
        langgraph=their_single_calls,
        goal=85,
    ),
)


def main() -> None:
    """Print each row: ours, the goal, and LangGraph's count."""
    print(f"{'Python calls in the coordinator, inline':44} ours  goal  langgraph")
    for row in ROWS:
        ours, langgraph = count_calls(row.ours()), count_calls(row.langgraph())
        print(f"{row.name:44} {ours:4.0f}  {row.goal:4}  {langgraph:9.0f}")


if __name__ == "__main__":
    main()
