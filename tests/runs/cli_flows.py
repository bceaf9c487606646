"""Flows that the tests of the command run, by the name of this module."""

from __future__ import annotations

import asyncio
import os
from typing import Any, TypedDict

from flowpregel import interrupt, signal, sleep
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.runtime import get_runtime

FLOWS = "tests.runs.cli_flows"


@task
def double(n: int) -> int:
    return 2 * n


@entrypoint(executor="threads")
def total(numbers: list[int]) -> int:
    return sum(future.result() for future in double.map(numbers))


@task
def add_zero(numbers: list[int]) -> int:
    """Change the argument in place."""
    numbers.append(0)
    return len(numbers)


@entrypoint(executor="threads")
def changing(numbers: list[int]) -> int:
    return add_zero(numbers).result()


@task
def question(name: str) -> str:
    return str(interrupt({"allow": name}))


@entrypoint(executor="threads")
def allow(names: list[str]) -> list[str]:
    return [future.result() for future in question.map(names)]


@entrypoint(executor="threads")
def rest(seconds: float) -> str:
    sleep(seconds)
    return "awake"


@task
def send_to_program(number: int) -> None:
    os.kill(os.getpid(), number)


@entrypoint(executor="threads")
def told_to_end(number: int) -> None:
    for _ in range(6):
        send_to_program(number).result()


@entrypoint(executor="threads")
def wait(names: list[str]) -> list[object]:
    return [signal(name).result() for name in names]


@task
def divide(n: int) -> float:
    return 1 / n


@entrypoint(executor="threads")
def shares(numbers: list[int]) -> list[float]:
    return [future.result() for future in divide.map(numbers)]


class State(TypedDict, total=False):
    n: int
    log: str


def add(state: State) -> State:
    return {"n": state["n"] + 1}


def tell(state: State) -> State:
    print("a task prints")
    return {"log": f"n is {state['n']}"}


unfinished_graph = (
    StateGraph(State)
    .add_node("add", add)
    .add_node("tell", tell)
    .add_edge(START, "add")
    .add_edge("add", "tell")
    .add_edge("tell", END)
)
steps = unfinished_graph.compile(name="steps")


def ask(state: State) -> State:
    return {"log": str(interrupt("go on?"))}


asking = (
    StateGraph(State)
    .add_node("ask", ask)
    .add_edge(START, "ask")
    .compile(executor="inline")
)


def ask_in_a_graph(name: str, form: str, store: str) -> None:
    """Run a flow of this module on a store until it asks, as its program would."""
    flow = globals()[name]
    given: Any = ["ann"] if name == "allow" else {"n": 1}
    with LMDBSaver(store) as saver:
        flow.checkpointer = saver
        try:
            match form:
                case "invoke":
                    flow.invoke(given, thread_id="t")
                case "stream":
                    assert [*flow.stream(given, thread_id="t")]
                case "ainvoke":
                    asyncio.run(flow.ainvoke(given, thread_id="t"))
        finally:
            flow.checkpointer = None


@task
def context_of_run(_: int) -> object:
    return get_runtime().context


@entrypoint(executor="threads")
def context(n: int) -> object:
    return context_of_run(n).result()
