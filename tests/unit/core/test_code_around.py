"""The code that works beside nodes: what is recorded of it, and compared."""

from __future__ import annotations

from typing import Annotated, TypedDict

from flowpregel import START, StateGraph
from flowpregel._core.code_around import CodeAround
from flowpregel._core.ids import AttemptRecord
from flowpregel._core.program import Program
from flowpregel._core.provenance import CodeComparison


def added(old: int, new: int) -> int:
    """Return the sum."""
    return old + new


def is_big(state: dict[str, int]) -> str:
    """Return the next node."""
    return "second" if state["n"] > 9 else "__end__"


class State(TypedDict):
    """A number that is added up."""

    n: Annotated[int, added]


def program() -> Program:
    """Return a program of two nodes: a condition chooses the second one."""
    builder = StateGraph(State)
    for name in ("first", "second"):
        builder.add_node(name, lambda _: {"n": 1})
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", is_big)
    return builder.compile().definition.program


def attempt_with(*used: tuple[str, str, int]) -> AttemptRecord:
    """Return the record of an attempt of the first node."""
    return AttemptRecord("first", 0, 0.0, 1, "inline", pid=1, used=used)


def used_by_first() -> dict[str, str]:
    """Return the digests of what works beside the first node, by recorded name."""
    around = CodeAround(program())
    used = around.used_by(around.program.nodes["first"], frozenset({"n"}))
    return {name: code for name, code, _ in used}


def test_its_names_are_those_of_no_task() -> None:
    assert ["\ncondition of node first", "\nreducer of channel n"] == [*used_by_first()]


def test_names_of_older_records_are_compared_too() -> None:
    """They had no new line before them."""
    codes = used_by_first()
    kept = attempt_with(
        ("condition of node first", codes["\ncondition of node first"], 1),
        ("reducer of channel n", codes["\nreducer of channel n"], 1),
    )
    edited = attempt_with(("condition of node first", "another", 1))
    comparison = CodeComparison(program())

    assert not comparison.add(kept)
    assert comparison.add(edited)

    (change,) = comparison.changes
    assert ("condition of node first", "another") == (change.name, change.recorded)
    assert set() == comparison.unknown
