"""A thread that an older graph left behind goes on in the new one, by a hook of the
user's.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.graph import START, StateGraph
from flowpregel.types import Command, interrupt
from tests.runs.conftest import Drive

HERE = {"thread_id": "1"}


class Old(TypedDict, total=False):
    """What the first version of the program kept: a text of words."""

    words: str
    answer: str


class New(TypedDict, total=False):
    """What the second version keeps: a list, under another name."""

    terms: Annotated[list[str], operator.add]
    answer: str


def ask(_: Any) -> dict[str, str]:
    """Ask, in either version."""
    return {"answer": interrupt("go on?")}


def as_list(values: dict[str, Any]) -> dict[str, Any]:
    """Bring the first version's state to the second's; leave the second's as it is."""
    if "terms" not in values and "words" in values:
        values["terms"] = values.pop("words").split()
    return values


def first(saver: Any) -> Any:
    """Return the first version."""
    return (
        StateGraph(Old)
        .add_node(ask)
        .add_edge(START, "ask")
        .compile(saver, executor="inline")
    )


def second(saver: Any, **options: Any) -> Any:
    """Return the second version, which adds a term for the answer."""
    builder = (
        StateGraph(New).add_node(ask).add_edge(START, "ask").add_edge("ask", "note")
    )
    builder.add_node("note", lambda state: {"terms": [state["answer"]]})
    return builder.compile(saver, executor="inline", **options)


def test_an_old_thread_goes_on_with_migrated_state(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Its question waits still, and what it held is there under its new name."""
    drive.invoke(first(saver), {"words": "one two"}, **HERE)
    app = second(saver, migrate=as_list)

    assert {"terms": ["one", "two"]} == app.get_state(**HERE).values
    expected = {"terms": ["one", "two", "yes"], "answer": "yes"}
    assert expected == drive.invoke(app, Command(resume="yes"), **HERE)
    assert expected == app.get_state(**HERE).values
    assert {"terms": ["one", "two"]} == [*app.get_state_history(**HERE)][2].values


def test_what_is_not_written_again_is_migrated_on_every_read(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """A later run of the new program finds it all the same."""
    drive.invoke(first(saver), {"words": "one two"}, **HERE)
    drive.invoke(second(saver, migrate=as_list), {}, **HERE)

    assert ["one", "two"] == second(saver, migrate=as_list).get_state(**HERE).values[
        "terms"
    ]


def test_without_a_hook_the_new_graph_starts_with_what_it_knows(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Nothing is guessed."""
    drive.invoke(first(saver), {"words": "one two"}, **HERE)

    result = drive.invoke(second(saver), Command(resume="yes"), **HERE)

    assert {"terms": ["yes"], "answer": "yes"} == result
