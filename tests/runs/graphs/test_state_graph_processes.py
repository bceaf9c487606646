"""A graph whose nodes run in worker processes: what they need travels with them."""

from __future__ import annotations

import operator
import os
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.graph import END, START, StateGraph
from flowpregel.managed import RemainingSteps
from flowpregel.types import Command, Send, interrupt
from tests.runs.conftest import Drive

pytestmark = pytest.mark.slow


class Items(TypedDict, total=False):
    """A state whose list adds up, and what is left of the run."""

    items: Annotated[list[Any], operator.add]
    left: RemainingSteps


def test_nodes_run_in_other_processes(drive: Drive) -> None:
    """Not in this one."""
    builder = StateGraph(Items).add_node("n", lambda _: {"items": [os.getpid()]})

    app = builder.add_edge(START, "n").compile(executor="processes")

    assert [os.getpid()] != drive.invoke(app, {"items": []})["items"]


def test_a_node_may_run_somewhere_else_than_its_graph(drive: Drive) -> None:
    """``executor=`` of a node is stronger."""
    builder = StateGraph(Items).add_node(
        "n", lambda _: {"items": [os.getpid()]}, executor="inline"
    )

    app = builder.add_edge(START, "n").compile(executor="processes")

    assert [os.getpid()] == drive.invoke(app, {"items": []})["items"]


def test_a_path_function_sees_fresh_state_and_managed_values_in_its_worker(
    drive: Drive,
) -> None:
    """The channels it reads travel with its node."""
    builder = (
        StateGraph(Items).add_node("n", lambda _: {"items": ["n"]}).add_edge(START, "n")
    )
    builder.add_conditional_edges(
        "n", lambda s: END if len(s["items"]) > 3 and s["left"] > 0 else "n", ["n", END]
    )

    result = drive.invoke(builder.compile(executor="processes"), {"items": ["in"]})

    assert ["in", "n", "n", "n"] == result["items"]


def test_sends_commands_and_questions_cross_the_border(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """In both directions."""

    def start(state: Items) -> Any:
        return Command(
            update={"items": ["start"]}, goto=[Send("each", n) for n in range(3)]
        )

    def each(n: int) -> Items:
        return {"items": [interrupt(f"{n}?")]}

    builder = (
        StateGraph(Items)
        .add_node(start)
        .add_node("each", each)
        .add_edge(START, "start")
    )
    app = builder.compile(saver, executor="processes")

    asked = drive.invoke(app, {"items": []}, thread_id="1")["__interrupt__"]
    answers = {item.id: item.value.upper() for item in asked}
    result = drive.invoke(app, Command(resume=answers), thread_id="1")

    assert ["start", "0?", "1?", "2?"] == result["items"]


def test_the_leaves_of_a_nested_graph_run_in_workers(drive: Drive) -> None:
    """The nested run itself is in the coordinator."""
    inner = StateGraph(Items).add_node("leaf", lambda _: {"items": [os.getpid()]})
    outer = StateGraph(Items).add_node("inner", inner.add_edge(START, "leaf").compile())

    app = outer.add_edge(START, "inner").compile(executor="processes")

    assert [os.getpid()] != drive.invoke(app, {"items": []})["items"]
