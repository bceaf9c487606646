"""LangGraph's sync savers: what they give back is not always what they were given."""

from __future__ import annotations

import operator
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.types import interrupt
from tests.parity import sides
from tests.parity.sides import Side
from tests.runs.conftest import Drive

sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
CONFIG = {"configurable": {"thread_id": "1"}}


class Items(TypedDict):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


class Form(BaseModel):
    """An argument of which not every field is given."""

    name: str
    remark: str | None = None


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def theirs(request: pytest.FixtureRequest) -> Any:
    """Yield a saver of LangGraph."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    if request.param == "postgres":
        yield request.getfixturevalue("langgraph_postgres")
        return
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        yield sqlite.SqliteSaver(connection)


def asking(side: Side, saver: Any) -> Any:
    """Return a graph that asks in its second step."""
    builder = side.graph.StateGraph(Items)
    builder.add_node("first", lambda _: {"items": ["first"]})
    builder.add_node("ask", lambda _: {"items": [side.types.interrupt("?")]})
    builder.add_edge("__start__", "first").add_edge("first", "ask")
    return builder.compile(saver, **side.options)


def test_their_metadata_have_no_key_for_the_durability(theirs: Any) -> None:
    asking(sides.flowpregel(), theirs).invoke({"items": []}, CONFIG, durability="sync")

    metadata = theirs.get_tuple(CONFIG).metadata

    assert "run_id" in metadata
    assert "run_durability" not in metadata


@pytest.mark.parametrize(
    "side", [sides.langgraph(), sides.flowpregel()], ids=lambda it: it.name
)
def test_a_copy_of_a_checkpoint_goes_on_from_it(side: Side, theirs: Any) -> None:
    """It asks again what was asked there, and an answer goes on."""
    app, answer = asking(side, theirs), side.types.Command(resume="yes")
    app.invoke({"items": []}, CONFIG)
    app.invoke(answer, CONFIG)
    before = next(
        each for each in app.get_state_history(CONFIG) if each.next == ("ask",)
    )

    copied = app.update_state(before.config, None, as_node="__copy__")

    assert "__interrupt__" in app.invoke(None, copied)
    assert ["first", "yes"] == app.invoke(answer, copied)["items"]


def test_a_call_is_known_by_a_pydantic_argument(drive: Drive, theirs: Any) -> None:
    """A model that comes back has had all its fields given, and is equal."""
    calls: list[Form] = []

    @task
    def read(form: Form) -> str:
        calls.append(form)
        return form.name

    @entrypoint(checkpointer=theirs, executor="inline")
    def flow(form: Form) -> str:
        return read(form).result() + str(interrupt("?"))

    command = sides.flowpregel().types.Command
    drive.invoke(flow, Form(name="Ada"), thread_id="1")

    assert "Ada!" == drive.invoke(flow, command(resume="!"), thread_id="1")
    assert [Form(name="Ada")] == calls


Start = Callable[[Any], Any]
STOPS: dict[str, Start] = {
    "an answer": lambda side: side.types.Command(resume="yes"),
    "nothing": lambda side: None,
}


@pytest.mark.parametrize("given", STOPS.values(), ids=STOPS)
def test_a_thread_that_langgraph_left_asking_is_refused(
    drive: Drive, theirs: Any, given: Start
) -> None:
    """The question is of a task of its own; new input drops it, as ever."""
    ours = sides.flowpregel()
    asking(sides.langgraph(), theirs).invoke({"items": ["in"]}, CONFIG)
    app = asking(ours, theirs)

    with pytest.raises(ConfigurationError, match="between two supersteps"):
        drive.invoke(app, given(ours), CONFIG)

    assert "__interrupt__" in drive.invoke(app, {"items": ["new"]}, CONFIG)
    ended = drive.invoke(app, ours.types.Command(resume="yes"), CONFIG)
    assert ["in", "first", "new", "first", "yes"] == ended["items"]


def test_a_thread_that_langgraph_left_at_rest_goes_on(
    drive: Drive, theirs: Any
) -> None:
    """With its state."""
    app, command = asking(sides.langgraph(), theirs), sides.langgraph().types.Command
    app.invoke({"items": ["in"]}, CONFIG)
    app.invoke(command(resume="theirs"), CONFIG)

    drive.invoke(asking(sides.flowpregel(), theirs), {"items": []}, CONFIG)

    state = asking(sides.flowpregel(), theirs).get_state(CONFIG)
    assert ["in", "first", "theirs", "first"] == state.values["items"]
    assert ["?"] == [each.value for each in state.interrupts]


def test_what_a_send_is_kept_as_is_loaded_with_the_saver() -> None:
    """Not in the middle of a run, which would have to wait for it."""
    program = (
        "import sys\n"
        "from langgraph.checkpoint.memory import InMemorySaver\n"
        "from flowpregel.plugins.langgraph.foreign import as_saver\n"
        "as_saver(InMemorySaver())\n"
        "assert 'langgraph.types' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
