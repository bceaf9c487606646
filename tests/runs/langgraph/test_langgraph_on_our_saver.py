"""LangGraph's own graphs and workflows, kept by our savers."""

from itertools import chain
from typing import Annotated, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.plugins.langgraph.saver import SaverAdapter

CONFIG = {"configurable": {"thread_id": "t"}}


def extend(old, writes):
    return [*(old or []), *chain.from_iterable(writes)]


class State(TypedDict):
    seen: Annotated[list, lambda old, new: old + new]


@pytest.fixture
def saver():
    return SaverAdapter(InMemorySaver())


def asking_graph(saver):
    def first(state):
        return {"seen": ["first"]}

    def ask(state):
        return {"seen": [interrupt("what next?")]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("ask", ask)
    builder.add_edge(START, "first")
    builder.add_edge("first", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def test_a_state_graph_stops_at_an_interrupt_and_resumes(saver):
    asking_graph(saver).invoke({"seen": ["start"]}, CONFIG)

    result = asking_graph(saver).invoke(Command(resume="the end"), CONFIG)

    assert result["seen"] == ["start", "first", "the end"]


def test_a_state_graph_has_a_history_and_can_be_forked(saver):
    graph = asking_graph(saver)
    graph.invoke({"seen": ["start"]}, CONFIG)
    graph.invoke(Command(resume="one"), CONFIG)
    asked = next(s for s in graph.get_state_history(CONFIG) if s.next == ("ask",))

    graph.invoke(None, asked.config)
    result = graph.invoke(Command(resume="two"), CONFIG)

    assert result["seen"] == ["start", "first", "two"]


def test_sends_of_a_state_graph_are_kept(saver):
    builder = StateGraph(State)
    builder.add_node("plan", lambda state: {"seen": ["plan"]})
    builder.add_node("work", lambda number: {"seen": [interrupt(number)]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda state: [Send("work", 1), Send("work", 2)]
    )
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"seen": []}, CONFIG)
    questions = graph.get_state(CONFIG).interrupts

    result = graph.invoke(
        Command(resume={q.id: q.value * 10 for q in questions}), CONFIG
    )

    assert result["seen"] == ["plan", 10, 20]


def test_a_delta_channel_of_langgraph_is_rebuilt(saver):
    class Deltas(TypedDict):
        items: Annotated[list, DeltaChannel(extend)]

    builder = StateGraph(Deltas)
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: {"items": [name]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"items": ["start"]}, CONFIG)

    assert graph.get_state(CONFIG).values["items"] == ["start", "a", "b"]


def test_an_entrypoint_does_not_run_a_finished_task_again(saver):
    calls = []

    @task
    def work(number):
        calls.append(number)
        return number * 2

    @entrypoint(checkpointer=saver)
    def flow(number):
        done = work(number).result()
        return done + interrupt("how much more?")

    flow.invoke(3, CONFIG)

    assert flow.invoke(Command(resume=4), CONFIG) == 10
    assert calls == [3]


async def _run_async(saver):
    graph = asking_graph(saver)
    await graph.ainvoke({"seen": ["start"]}, CONFIG)
    return await graph.ainvoke(Command(resume="the end"), CONFIG)


def test_a_state_graph_runs_asynchronously(saver):
    import asyncio

    assert asyncio.run(_run_async(saver))["seen"] == ["start", "first", "the end"]
