"""A long, agent-like loop: its history grows for thousands of turns, its steps do not.

    python examples/agent_loop.py --turns 2000

A stand-in for a model looks at what happened so far and asks for a tool; the tool
runs in a worker process; what it found joins the history. The history is a
DeltaChannel: each step keeps what it added, not the whole list again. Stop the
program and run it again: the loop goes on at the turn where it was.
"""

from __future__ import annotations

import argparse
import operator
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from flowpregel.channels import DeltaChannel
from flowpregel.graph import END, START, StateGraph

Message = tuple[Literal["goal", "call", "result"], str]


def extend(history: list[Message], writes: Sequence[list[Message]]) -> list[Message]:
    """Return *history* with what several writes add."""
    return [*history, *(message for write in writes for message in write)]


class State(TypedDict):
    """What the loop knows."""

    history: Annotated[list[Message], DeltaChannel(extend)]
    turns: Annotated[int, operator.add]
    limit: int


def think(state: State) -> dict[str, Any]:
    """Choose the next tool, as a model would: the Collatz rule is the plan."""
    number = int(state["history"][-1][1])
    step = f"halve {number}" if number % 2 == 0 else f"triple {number}"
    return {"history": [("call", step)], "turns": 1}


def act(state: State) -> dict[str, Any]:
    """Run the tool that was asked for."""
    tool, number = state["history"][-1][1].split()
    result = int(number) // 2 if tool == "halve" else 3 * int(number) + 1
    return {"history": [("result", str(result))]}


def again(state: State) -> str:
    """Say whether there is another turn."""
    return END if state["turns"] >= state["limit"] else "think"


def agent(store: Any, executor: str = "processes") -> Any:
    """Return the loop, kept in the folder *store*."""
    graph = StateGraph(State)
    graph.add_node("think", think, executor="inline")
    graph.add_node("act", act, executor=executor)
    graph.add_edge(START, "think")
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", again, ["think", END])
    return graph.compile(checkpointer=store)


def main(arguments: list[str] | None = None) -> None:
    """Run the loop, or go on with it, and say how long turns took early and late."""
    parser = argparse.ArgumentParser(description="A long loop with a growing history.")
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument(
        "--store", default="agent.lmdb", help="folder to keep the run in"
    )
    asked = parser.parse_args(arguments)
    given = {"history": [("goal", str(27**9))], "turns": 0, "limit": asked.turns}
    loop, times, turns = agent(asked.store), [time.perf_counter()], 0
    for update in loop.stream(
        given,
        thread_id=f"{asked.turns} turns",
        resume="auto",
        stream_mode="updates",
        recursion_limit=2 * asked.turns + 10,
    ):
        if "act" in update:
            turns += 1
            times.append(time.perf_counter())
    tenth = max(1, turns // 10)
    state = loop.get_state(thread_id=f"{asked.turns} turns").values
    print(
        f"{turns} turns now, {state['turns']} in all, {len(state['history'])} messages"
    )
    if turns:
        early, late = times[tenth] - times[0], times[-1] - times[-1 - tenth]
        print(
            f"a turn took {1e3 * early / tenth:.2f} ms early and "
            f"{1e3 * late / tenth:.2f} ms late"
        )


if __name__ == "__main__":
    main()
