"""StateGraphs that read the same on ours and on LangGraph: G1 to G4."""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from tests.benchmarks import work
from tests.benchmarks.model import Working

FIELDS = 300


class Count(TypedDict):
    """The state of the loop and the line."""

    n: int


class Lanes(TypedDict):
    """The state of the fan-out."""

    found: Annotated[list[int], operator.add]


Wide = TypedDict("Wide", {f"f{i}": int for i in range(FIELDS)})  # type: ignore[misc]


def add_one(state: Count) -> dict[str, int]:
    """Count."""
    return {"n": state["n"] + 1}


def fan_out(graph: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """Return *size* nodes side by side and one that comes after all of them; and the
    input.
    """
    builder = graph.StateGraph(Lanes)
    names = [f"lane{i}" for i in range(size)]
    for name in names:
        builder.add_node(name, lambda _: {"found": [1]})
        builder.add_edge(graph.START, name)
    builder.add_node("last", lambda state: {"found": [len(state["found"])]})
    builder.add_edge(names, "last")
    return builder, {"found": []}


def wide_state(graph: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """Return *size* nodes in a line that each read and write a state of many fields."""
    builder = graph.StateGraph(Wide)
    builder.add_sequence(
        [
            (f"n{i}", lambda state: {key: value + 1 for key, value in state.items()})
            for i in range(size)
        ]
    )
    return builder.add_edge(graph.START, "n0"), {f"f{i}": 0 for i in range(FIELDS)}


def line(graph: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """Return *size* nodes, one after the other."""
    builder = graph.StateGraph(Count)
    builder.add_sequence([(f"n{i}", add_one) for i in range(size)])
    return builder.add_edge(graph.START, "n0"), {"n": 0}


def loop(graph: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """Return one node that a conditional edge leads back to, *size* times."""
    builder = graph.StateGraph(Count).add_node("n", add_one).add_edge(graph.START, "n")
    builder.add_conditional_edges(
        "n", lambda state: "n" if state["n"] < size else graph.END, ["n", graph.END]
    )
    return builder, {"n": 0}


GRAPHS: dict[str, Callable[[Any, int], tuple[Any, dict[str, Any]]]] = {
    "fan_out": fan_out,
    "wide_state": wide_state,
    "line": line,
    "loop": loop,
}


@contextlib.contextmanager
def ours(kind: str | None, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the options of our ``compile``."""
    from tests.benchmarks.peers.ours import saver

    yield {"checkpointer": saver(kind, folder), "executor": "inline"}


@contextlib.contextmanager
def theirs(kind: str | None, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the options of LangGraph's ``compile``."""
    from tests.benchmarks.peers.langgraph import saver

    with saver(kind, folder) as found:
        yield {"checkpointer": found}


@contextlib.contextmanager
def run(package: str, name: str, size: int, kept: str | None = None) -> Working:
    """Yield a graph of *size* nodes or turns, on a new thread each time; the time of a
    node.

    Args:
        package: ``flowpregel`` or ``langgraph``.
        name: Of `GRAPHS`.
        size: How many nodes, or how often.
        kept: None, ``memory``, or on disk with the default durability.
    """
    builder, given = GRAPHS[name](importlib.import_module(f"{package}.graph"), size)
    turns = iter(range(1_000_000))
    options_of = ours if package == "flowpregel" else theirs
    with work.folder() as folder, options_of(kept, folder) as options:
        app = builder.compile(**options)

        def turn() -> float:
            config: Any = {"configurable": {"thread_id": str(next(turns))}}
            config["recursion_limit"] = 5_000
            return work.seconds_of(lambda: app.invoke(given, config), size)

        yield turn
