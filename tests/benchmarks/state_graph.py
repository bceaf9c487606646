"""StateGraph beside LangGraph's: fan-out, a wide state, a long line of nodes, a loop."""

from __future__ import annotations

import importlib.util
import operator
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

import flowpregel.graph
from flowpregel.checkpoint.memory import InMemorySaver
from tests.benchmarks.harness import OURS, Row, Side

LANES = 100
FIELDS = 300
LINE = 1_000
TURNS = 1_000
HAS_LANGGRAPH = importlib.util.find_spec("langgraph") is not None


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


def fan_out(graph: Any) -> Any:
    """Return nodes side by side, and one that comes after all of them."""
    builder = graph.StateGraph(Lanes)
    names = [f"lane{i}" for i in range(LANES)]
    for name in names:
        builder.add_node(name, lambda _: {"found": [1]})
        builder.add_edge(graph.START, name)
    builder.add_node("last", lambda state: {"found": [len(state["found"])]})
    builder.add_edge(names, "last")
    return builder


def wide_state(graph: Any) -> Any:
    """Return ten nodes in a line that each read and write a state of many fields."""
    builder = graph.StateGraph(Wide)
    builder.add_sequence(
        [
            (f"n{i}", lambda state: {key: value + 1 for key, value in state.items()})
            for i in range(10)
        ]
    )
    return builder.add_edge(graph.START, "n0")


def line(graph: Any) -> Any:
    """Return many nodes, one after the other."""
    builder = graph.StateGraph(Count)
    builder.add_sequence([(f"n{i}", add_one) for i in range(LINE)])
    return builder.add_edge(graph.START, "n0")


def loop(graph: Any) -> Any:
    """Return one node that a conditional edge leads back to."""
    builder = graph.StateGraph(Count).add_node("n", add_one).add_edge(graph.START, "n")
    return builder.add_conditional_edges(
        "n", lambda state: "n" if state["n"] < TURNS else graph.END, ["n", graph.END]
    )


Make = Callable[[Any], Any]

WORKLOADS: Mapping[str, tuple[Make, dict[str, Any], int]] = {
    "fan-out to 100 nodes": (fan_out, {"found": []}, LANES),
    "10 nodes, 300 fields": (wide_state, {f"f{i}": 0 for i in range(FIELDS)}, 10),
    "line of 1,000 nodes": (line, {"n": 0}, LINE),
    "loop of 1,000 with a conditional edge": (loop, {"n": 0}, TURNS),
}
"""What is built, what it is given, and how many units its work has."""


def side_of(app: Any, given: Any, units: int, close: Callable[[], None] = lambda: None) -> Side:
    """Return a side that runs *app* on a new thread each time."""
    turns = iter(range(1_000_000))

    def side() -> float:
        config = {"configurable": {"thread_id": str(next(turns))}, "recursion_limit": 5_000}
        begun = time.perf_counter()
        app.invoke(given, config)
        close()
        return (time.perf_counter() - begun) / units

    side()
    return side


def sides(make: Make, given: Any, units: int, *, kept: bool) -> dict[str, Side]:
    """Return ours and the peer's, without a saver or with one in memory."""
    ours = make(flowpregel.graph).compile(InMemorySaver() if kept else None, executor="inline")
    found = {OURS: side_of(ours, given, units)}
    if HAS_LANGGRAPH:
        import langgraph.graph
        from langgraph.checkpoint.memory import InMemorySaver as Peer

        peer = make(langgraph.graph).compile(Peer() if kept else None)
        found["langgraph"] = side_of(peer, given, units)
    return found


def durable_sides(make: Make, given: Any, units: int) -> dict[str, Side]:
    """Return ours on LMDB, and the peer's on SQLite, both with the default durability."""
    from flowpregel.checkpoint.lmdb import LMDBSaver

    folder = Path(tempfile.mkdtemp(prefix="flowpregel-bench-"))
    ours = make(flowpregel.graph).compile(LMDBSaver(folder / "store"), executor="inline")
    found = {OURS: side_of(ours, given, units)}
    if HAS_LANGGRAPH and importlib.util.find_spec("langgraph.checkpoint.sqlite") is not None:
        import sqlite3

        import langgraph.graph
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(folder / "peer.sqlite", check_same_thread=False)
        peer = make(langgraph.graph).compile(SqliteSaver(connection))
        found["langgraph"] = side_of(peer, given, units)
    return found


def rows() -> list[Row]:
    """Return a row for each workload: no saver, one in memory, one on disk."""
    found = []
    for number, (what, (make, given, units)) in enumerate(WORKLOADS.items(), start=1):
        plain = sides(make, given, units, kept=False)
        kept = sides(make, given, units, kept=True)
        durable = durable_sides(make, given, units)
        for letter, how, each, goal in (
            ("a", "no saver", plain, 0.4),
            ("b", "in-memory saver", kept, 0.4),
            ("c", "LMDB beside SQLite, async", durable, 0.3),
        ):
            found.append(
                Row(
                    name=f"G{number}{letter}",
                    what=f"{what}, {how}",
                    unit="a node",
                    sides=each,
                    against="langgraph",
                    goal=goal,
                )
            )
    return found
