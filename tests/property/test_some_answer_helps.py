"""Whatever a thread was told before, right answers to what it asks bring it to its
end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import FlowPregelError
from flowpregel.graph import StateGraph
from flowpregel.types import Command, Interrupt, Send, interrupt

HERE = {"configurable": {"thread_id": "1"}}
ROUNDS = 60
"""More than any story leaves to answer."""


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


class Number(BaseModel):
    """What a question with a schema takes."""

    value: int


@dataclass(frozen=True)
class Asker:
    """A node that asks, and fails with an answer that is no number."""

    name: str
    questions: tuple[bool, ...]
    """For each of its questions, whether it has a schema."""
    nested: bool | None = None
    """Whether it is a graph, and with which checkpointer: True, or False for its
    parent's.
    """


@dataclass(frozen=True)
class Move:
    """What is said to the thread."""

    answers: tuple[tuple[int, bool], ...] = ()
    """Answers: the index of a question that waits, and whether it is a right one."""
    by_value: bool = False
    """Whether it is one answer for whatever waits."""
    goto: int | None = None
    """The node to go to as well."""
    sends: bool = False
    """Whether that is a `Send`."""


def body_of(asker: Asker) -> Callable[[Any], Items]:
    """Return the function of a node."""

    def ask(_: Any) -> Items:
        numbers = []
        for index, has_schema in enumerate(asker.questions):
            schema = Number if has_schema else None
            said = interrupt(f"{asker.name} {index}", response_schema=schema)
            numbers.append(said.value if has_schema else int(said))
        return {"items": numbers}

    return ask


def graph_of(askers: Sequence[Asker]) -> Any:
    """Return a graph of *askers* side by side."""
    builder = StateGraph(Items)
    for asker in askers:
        action: Any = body_of(asker)
        if asker.nested is not None:
            inner = (
                StateGraph(Items).add_node("ask", action).add_edge("__start__", "ask")
            )
            action = inner.compile(checkpointer=asker.nested or None)
        builder.add_node(asker.name, action).add_edge("__start__", asker.name)
    return builder.compile(InMemorySaver(), executor="inline")


def answer_to(question: Interrupt, *, right: bool) -> Any:
    """Return an answer that fits *question*, or one that does not."""
    number: Any = 3 if right else "many"
    return number if question.response_schema is None else {"value": number}


def said(app: Any, move: Move, askers: Sequence[Asker]) -> Command[Any] | None:
    """Return *move* as what the graph is given."""
    waiting = app.get_state(HERE).interrupts
    resume: Any = None
    if waiting and move.answers:
        chosen = {waiting[index % len(waiting)]: right for index, right in move.answers}
        answers = {
            asked.id: answer_to(asked, right=right) for asked, right in chosen.items()
        }
        resume = next(iter(answers.values())) if move.by_value else answers
    goto: Any = ()
    if move.goto is not None:
        goto = askers[move.goto % len(askers)].name
        goto = Send(goto, {}) if move.sends else goto
    if resume is None and not goto:
        return None
    return Command(resume=resume, goto=goto)


MAY_RAISE = (FlowPregelError, ValueError)
"""What a wrong answer, or one that fits no question, is met with."""


@st.composite
def stories(draw: Any) -> tuple[list[Asker], list[Move]]:
    """Make up a graph, and what is said to its thread."""
    count = draw(st.integers(1, 3))
    asker = st.builds(
        Asker,
        name=st.just(""),
        questions=st.lists(st.booleans(), min_size=1, max_size=2).map(tuple),
        nested=st.sampled_from([None, None, False, True]),
    )
    askers = [
        Asker(f"n{index}", made.questions, made.nested)
        for index, made in enumerate(
            draw(st.lists(asker, min_size=count, max_size=count))
        )
    ]
    answers = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=3)
    goto = st.one_of(st.none(), st.none(), st.integers(0, 2))
    move = st.builds(Move, answers.map(tuple), st.booleans(), goto, st.booleans())
    return askers, draw(st.lists(move, max_size=5))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(story=stories())
def test_right_answers_bring_a_thread_to_its_end(
    story: tuple[list[Asker], list[Move]],
) -> None:
    """Also after wrong ones, by value or by id, with a goto or without."""
    askers, moves = story
    app = graph_of(askers)
    app.invoke({"items": []}, HERE)
    for move in moves:
        try:
            app.invoke(said(app, move, askers), HERE)
        except MAY_RAISE:
            continue

    for _ in range(ROUNDS):
        state = app.get_state(HERE)
        if not state.next:
            break
        right = {asked.id: answer_to(asked, right=True) for asked in state.interrupts}
        app.invoke(Command(resume=right) if right else None, HERE)

    assert () == app.get_state(HERE).next
