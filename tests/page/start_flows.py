"""Flows with parameters of many kinds, for the tests of the form that starts a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypedDict

from flowpregel import entrypoint, task
from flowpregel.graph import START, StateGraph


class Optimizer(Enum):
    ADAM = "adam"
    SGD = "sgd"


@dataclass
class Params:
    rate: float
    depth: int = 3
    tags: list[str] = field(default_factory=list)


@task
def train(params: Params, optimizer: Optimizer) -> float:
    return params.rate * params.depth


@entrypoint(executor="inline")
def sweep(
    params: Params,
    optimizer: Optimizer = Optimizer.ADAM,
    mode: Literal["fast", "exact"] = "fast",
    is_long: bool = False,
    note: str | None = None,
    sizes: tuple[int, ...] = (1, 2),
) -> list[object]:
    """Train a model.

    The loss is the product.
    """
    loss = train(params, optimizer).result()
    return [loss, optimizer.name, mode, is_long, note, sizes]


class Counted(TypedDict):
    count: int


def add(state: Counted) -> Counted:
    return {"count": state["count"] + 1}


counting = StateGraph(Counted).add_node(add).add_edge(START, "add").compile()
