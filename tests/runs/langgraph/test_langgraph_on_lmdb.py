"""LangGraph's own graphs and workflows, kept in our store."""

from typing import Annotated, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from flowpregel.plugins.langgraph import LMDBSaver

CONFIG = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    seen: Annotated[list, lambda old, new: old + new]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")
    return tmp_path / "store.lmdb"


def asking_graph(saver):
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"seen": [("first",)]})
    builder.add_node("ask", lambda state: {"seen": [interrupt("what next?")]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def test_a_state_graph_resumes_after_the_store_was_closed(folder):
    with LMDBSaver(folder) as saver:
        asking_graph(saver).invoke({"seen": ["start"]}, CONFIG)

    with LMDBSaver(folder) as saver:
        result = asking_graph(saver).invoke(Command(resume="the end"), CONFIG)

    assert result["seen"] == ["start", ("first",), "the end"]


def test_an_entrypoint_resumes_without_running_finished_tasks_again(folder):
    ran = []

    @task
    def count(number):
        ran.append(number)
        return number + 1

    def flow_on(saver):
        @entrypoint(checkpointer=saver)
        def flow(number):
            counted = count(number).result()
            return counted, interrupt("go on?")

        return flow

    with LMDBSaver(folder) as saver:
        flow_on(saver).invoke(1, CONFIG)

    with LMDBSaver(folder) as saver:
        result = flow_on(saver).invoke(Command(resume="yes"), CONFIG)

    assert result == (2, "yes")
    assert [1] == ran
