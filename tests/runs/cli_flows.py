"""Flows that the tests of the command run, by the name of this module."""

from __future__ import annotations

import os
from typing import TypedDict

from flowpregel import interrupt, signal, sleep
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph

FLOWS = "tests.runs.cli_flows"


@task
def double(n: int) -> int:
    return 2 * n


@entrypoint(executor="threads")
def total(numbers: list[int]) -> int:
    return sum(future.result() for future in double.map(numbers))


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
