"""The drawing of a graph is stored with its runs, once a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint
from flowpregel._core.records import DRAWING, Address
from flowpregel.graph import END, START, StateGraph
from flowpregel.watching import StoreReader


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


def step(state: dict[str, int]) -> dict[str, int]:
    return {"n": state["n"] + 1}


def loop(saver: LMDBSaver, label: str = "again") -> Any:
    """Return a graph that runs a node until n is 3."""
    graph = StateGraph(dict[str, int]).add_node("step", step).add_node("other", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges(
        "step",
        lambda state: label if state["n"] < 3 else "good",
        {label: "step", "good": END, "odd": "other"},
    )
    return graph.compile(checkpointer=saver)


def drawing_of(saver: LMDBSaver, thread: str) -> Any:
    """Return the stored drawing of a run."""
    with closing(StoreReader(saver)) as reader:
        return reader.drawing(thread)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_the_drawing_of_a_finished_run_is_that_of_its_graph(
    saver: LMDBSaver, durability: str
) -> None:
    graph = loop(saver)
    graph.invoke({"n": 0}, thread_id="a", durability=durability)

    outline = graph.get_graph().outline()
    edges = [list(edge) for edge in outline["edges"]]
    assert {**outline, "edges": edges} == drawing_of(saver, "a")
    assert "again" in outline["labels"]


def test_each_run_has_the_drawing_of_its_own_graph(saver: LMDBSaver) -> None:
    loop(saver).invoke({"n": 0}, thread_id="a")
    loop(saver, "more").invoke({"n": 0}, thread_id="b")
    loop(saver).invoke({"n": 0}, thread_id="c")

    labels = [drawing_of(saver, thread)["labels"] for thread in "abc"]
    assert ["again" in each for each in labels] == [True, False, True]
    digests = {
        saved.checkpoint.metadata[DRAWING]
        for thread in "abc"
        for saved in saver.history(Address(thread))
    }
    assert 2 == len(digests)


def test_the_drawing_is_not_among_the_metadata_that_users_see(
    saver: LMDBSaver,
) -> None:
    graph = loop(saver)
    graph.invoke({"n": 0}, thread_id="a")

    config = {"configurable": {"thread_id": "a"}}
    shown = [*(graph.get_state(config).metadata or {})]
    for item in saver.list(config):
        shown += item.metadata
    assert DRAWING not in shown
    assert "step" in shown


def test_a_workflow_has_no_stored_drawing(saver: LMDBSaver) -> None:
    entrypoint(checkpointer=saver)(lambda number: number).run(1, id="a")

    assert drawing_of(saver, "a") is None
    assert drawing_of(saver, "unknown") is None
