"""Flows whose graphs are drawn: by data, with calls of calls, and a nested graph."""

from __future__ import annotations

from typing import Any

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel.graph import END, START, StateGraph


@task
def find(count: int) -> list[str]:
    return [f"file-{number}.txt" for number in range(count)]


@task
def clean(path: str) -> str:
    return f"clean {path}"


@task
def fetch(path: str) -> str:
    return clean(path).result()


@task
def parse(text: str) -> dict[str, int]:
    return {"words": 1_000 + len(text)}


@task
def score(parts: list[dict[str, int]]) -> int:
    return sum(part["words"] for part in parts)


@task
def notify() -> None:
    pass


@entrypoint(executor="inline")
def study(count: int) -> int:
    texts = fetch.map(find(count).result())
    result = score([parse(text.result()) for text in texts]).result()
    notify().result()
    return result


def keep(state: dict[str, int]) -> dict[str, int]:
    return {"n": state["n"] + 1}


def review_graph() -> StateGraph[Any, Any, Any, Any]:
    """Return a graph with a nested graph and a loop."""
    inner = StateGraph(dict[str, int]).add_node("draft", keep).add_node("check", keep)
    inner.add_edge(START, "draft").add_edge("draft", "check")
    graph = StateGraph(dict[str, int]).add_node("write", inner.compile())
    graph.add_node("review", keep).add_edge(START, "write").add_edge("write", "review")
    graph.add_conditional_edges(
        "review",
        lambda state: "again" if state["n"] < 6 else "good",
        {"again": "write", "good": END},
    )
    return graph


def add_graph_runs(saver: LMDBSaver) -> None:
    """Add the runs ``study`` and ``review`` to a store."""
    study.copy({"checkpointer": saver}).run(3, id="study")
    program = review_graph().compile(checkpointer=saver)
    program.invoke({"n": 0}, thread_id="review")
