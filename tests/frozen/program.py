"""A program whose store of one day is read by every later version.

Do not edit it: its digests and names are in the recorded store.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from flowpregel import entrypoint, interrupt, task
from flowpregel.cache.lmdb import LMDBCache
from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.graph import END, START, StateGraph
from flowpregel.store.lmdb import LMDBStore
from flowpregel.types import Command

EXECUTED: list[str] = []
"""The calls that this process has made."""
BROKEN = [True]
"""Whether `fragile` fails."""


@dataclass
class Part:
    name: str
    weights: list[float] = field(default_factory=list)


@task
def price(number: int, *, factor: int = 2) -> int:
    EXECUTED.append(f"price({number})")
    return number * factor


@task
def part(name: str) -> Part:
    EXECUTED.append(f"part({name})")
    return Part(name, [1.5, 2.5])


@task
def fragile(number: int) -> int:
    EXECUTED.append(f"fragile({number})")
    if BROKEN[0]:
        raise ValueError("broken")
    return number


@task(executor="processes")
def remote(name: str) -> dict[str, Any]:
    return {"name": name, "data": list(range(3))}


@task(cache=True)
def shared_square(x: int) -> int:
    EXECUTED.append(f"shared_square({x})")
    return x * x


def add_lists(state: list[int], updates: list[list[int]]) -> list[int]:
    return [*state, *(item for update in updates for item in update)]


class State(TypedDict):
    total: Annotated[int, operator.add]
    log: Annotated[list[int], DeltaChannel(add_lists, snapshot_frequency=None)]


def one(state: State) -> Any:
    return {"total": 1, "log": [len(state["log"])]}


def two(state: State) -> Any:
    answer = interrupt({"question": "How many?"})
    return {"total": answer, "log": [answer]}


class Flows:
    """The flows, on the store in a folder."""

    def __init__(self, folder: Path) -> None:
        path = str(folder / "store")
        self.saver = LMDBSaver(path)
        self.store = LMDBStore(path)
        self.cache = LMDBCache(path)

        @entrypoint(checkpointer=self.saver, cache=self.cache, executor="inline")
        def finished(numbers: list[int]) -> Any:
            prices = [price(number) for number in numbers]
            return [price.result() for price in prices], part("wheel").result()

        @entrypoint(checkpointer=self.saver, executor="inline")
        def failed(numbers: list[int]) -> Any:
            first = [price(number, factor=3).result() for number in numbers]
            return first, remote("r").result(), fragile(7).result()

        @entrypoint(checkpointer=self.saver, executor="inline")
        def asking(name: str) -> Any:
            size = price(21).result()
            return f"{name} {size} {interrupt('sure?')}"

        @entrypoint(cache=self.cache, executor="inline")
        def squares(numbers: list[int]) -> list[int]:
            return [shared_square(number).result() for number in numbers]

        graph = StateGraph(State)
        graph.add_node("one", one)
        graph.add_node("two", two)
        graph.add_edge(START, "one")
        graph.add_edge("one", "two")
        graph.add_edge("two", END)
        self.finished, self.failed, self.asking = finished, failed, asking
        self.squares = squares
        self.graph = graph.compile(checkpointer=self.saver, executor="inline")

    def answer_graph(self, answer: int) -> Any:
        return self.graph.invoke(Command(resume=answer), thread_id="graph")

    def close(self) -> None:
        for resource in (self.cache, self.store, self.saver):
            resource.close()
