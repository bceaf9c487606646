"""A thread that goes on from an edit, and then from the same edit once more."""

from __future__ import annotations

import os
from typing import Any, TypedDict

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.context import interrupt
from flowpregel.func import task
from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Command


@task(executor="inline")
def number() -> int:
    """Return a number from outside."""
    return int(os.environ["NUMBER"])


class State(TypedDict, total=False):
    """A number from outside, and an answer."""

    n: int
    answer: str


def test_a_second_start_from_an_edit_makes_its_calls_anew(
    store: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing but a call had finished when the first one stopped to ask."""

    def ask(state: State) -> State:
        n = number().result()
        return {"n": n, "answer": interrupt(f"is {n} right?")}

    graph = (
        StateGraph(State)
        .add_node("ask", ask)
        .add_edge(START, "ask")
        .add_edge("ask", END)
    )
    app = graph.compile(store, executor="inline")
    monkeypatch.setenv("NUMBER", "1")
    app.invoke({"n": 0}, thread_id="1")
    app.invoke(Command(resume="yes"), thread_id="1")
    edit: Any = app.update_state({"configurable": {"thread_id": "1"}}, {"n": 0}, START)

    asked: list[str] = []
    for outside in ("2", "3"):
        monkeypatch.setenv("NUMBER", outside)
        asked.append(app.invoke(None, edit)["__interrupt__"][0].value)

    assert ["is 2 right?", "is 3 right?"] == asked
    assert {"n": 3, "answer": "no"} == app.invoke(Command(resume="no"), thread_id="1")
