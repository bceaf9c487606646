"""The words by which people search for an error stand in our messages as in
LangGraph's.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage

from tests.parity import langchain
from tests.parity.libraries import BOTH, CONFIG, Library

Program = Callable[[Library], Any]


class State(TypedDict, total=False):
    """A state of one text, and of a list with a reducer."""

    text: str
    log: Annotated[list[str], operator.add]


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


def write(state: State) -> State:
    """Write the text."""
    return {"text": "written"}


async def wait(state: State) -> State:
    """Write the text, in a coroutine."""
    return {"text": "waited"}


def beside(library: Library, action: Any, **options: Any) -> Any:
    """Return a graph of two nodes that do the same in one superstep."""
    builder = library.graph(State, ("one", action))
    builder.add_node("two", action).add_edge("__start__", "two")
    return library.compile(builder, **options)


def alone(library: Library, action: Any, **options: Any) -> Any:
    """Return a graph of one node."""
    return library.compile(library.graph(State, ("one", action)), **options)


def two_overwrites(library: Library) -> Any:
    """Two nodes replace a list that has a reducer."""
    overwrite = library.of("types.Overwrite")
    app = beside(library, lambda _: {"log": overwrite(["new"])})
    return app.invoke({"text": ""}, CONFIG)


def for_ever(library: Library) -> Any:
    """A node leads to itself."""
    builder = library.graph(State, ("one", write)).add_edge("one", "one")
    app = library.compile(builder)
    return app.invoke({"text": ""}, {**CONFIG, "recursion_limit": 3})


def one_answer_to_two(library: Library) -> Any:
    """Two nodes ask, and one answer comes without an id."""
    interrupt = library.of("types.interrupt")
    app = beside(library, lambda _: {"log": [interrupt("?")]})
    app.invoke({"text": ""}, CONFIG)
    return app.invoke(library.of("types.Command")(resume="yes"), CONFIG)


def answer_without_saver(library: Library) -> Any:
    """Nothing was kept that an answer could resume."""
    command = library.of("types.Command")
    return alone(library, write, checkpointer=None).invoke(command(resume=1), CONFIG)


def command_to_no_parent(library: Library) -> Any:
    """The outermost graph has no parent."""
    command = library.of("types.Command")
    return alone(library, write).invoke(command(graph="__parent__"), CONFIG)


def branch_to_none(library: Library) -> Any:
    """A conditional edge forgets to return a node."""
    builder = library.graph(State, ("one", write))
    builder.add_conditional_edges("one", lambda _: None)
    return library.compile(builder).invoke({"text": ""}, CONFIG)


def packet_to_the_end(library: Library) -> Any:
    """A conditional edge sends something to the end."""
    builder = library.graph(State, ("one", write))
    send = library.of("types.Send")
    builder.add_conditional_edges("one", lambda _: send("__end__", {}))
    return library.compile(builder).invoke({"text": ""}, CONFIG)


def update_by_two(library: Library) -> Any:
    """Two nodes wrote last, so an update must name one of them."""
    app = beside(library, lambda _: {"log": ["new"]})
    app.invoke({"text": ""}, CONFIG)
    return app.update_state(CONFIG, {"text": "edited"})


def without_start(library: Library) -> Any:
    """No edge leaves the start."""
    return library.of("graph.StateGraph")(State).add_node(write).compile()


def edge_from_nowhere(library: Library) -> Any:
    """An edge begins at a node that was never added."""
    return library.graph(State, write).add_edge("none", "write").compile()


def edge_to_nowhere(library: Library) -> Any:
    """An edge ends at a node that was never added."""
    return library.graph(State, write).add_edge("write", "none").compile()


def chat_without_answers(library: Library) -> Any:
    """A history has a call of a tool that no message answers."""
    side = langchain.flowpregel() if library.is_ours else langchain.langgraph()
    model = langchain.ScriptedModel(script=[])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph's function is deprecated.
        agent = side.prebuilt.create_react_agent(model, [])
    history = [("user", "hi"), langchain.asks(langchain.call("look", "1"))]
    return agent.invoke({"messages": [*history, AIMessage("again")]})


PROGRAMS: list[tuple[str, str, Program]] = [
    (
        "INVALID_CONCURRENT_GRAPH_UPDATE",
        "At key 'text': Can receive only one value per step",
        lambda lib: beside(lib, write).invoke({"text": ""}, CONFIG),
    ),
    (
        "INVALID_CONCURRENT_GRAPH_UPDATE",
        "Can receive only one Overwrite value per super-step",
        two_overwrites,
    ),
    ("GRAPH_RECURSION_LIMIT", "Recursion limit of 3 reached", for_ever),
    (
        "INVALID_GRAPH_NODE_RETURN_VALUE",
        "Expected dict, got 5",
        lambda lib: alone(lib, lambda _: 5).invoke({"text": ""}, CONFIG),
    ),
    ("INVALID_CHAT_HISTORY", "tool_calls that do not have", chat_without_answers),
    ("", "do not have a corresponding ToolMessage", chat_without_answers),
    ("", "multiple pending interrupts, you must specify", one_answer_to_two),
    ("", "you must specify the interrupt id", one_answer_to_two),
    ("", "without checkpointer", answer_without_saver),
    (
        "",
        "No checkpointer set",
        lambda lib: alone(lib, write, checkpointer=None).get_state(CONFIG),
    ),
    ("", "Checkpointer requires", lambda lib: alone(lib, write).invoke({"text": ""})),
    ("", "Received no input for", lambda lib: alone(lib, write).invoke(None, CONFIG)),
    ("", "no parent graph", command_to_no_parent),
    ("", "did not return a valid destination", branch_to_none),
    ("", "Cannot send a packet to the END node", packet_to_the_end),
    ("", "Ambiguous update, specify as_node", update_by_two),
    ("", "Graph must have an entrypoint", without_start),
    ("", "Found edge starting at unknown node", edge_from_nowhere),
    ("", "ending at unknown node", edge_to_nowhere),
    ("", "outside of a runnable context", lambda lib: lib.of("config.get_config")()),
    (
        "",
        "No synchronous function provided",
        lambda lib: alone(lib, wait).invoke({"text": ""}, CONFIG),
    ),
    (
        "",
        "checkpointer=True cannot be used for root graphs",
        lambda lib: alone(lib, write, checkpointer=True).invoke({"text": ""}, CONFIG),
    ),
]


@pytest.mark.parametrize(
    ("code", "phrase", "program"),
    PROGRAMS,
    ids=[f"{code} {phrase}".strip() for code, phrase, _ in PROGRAMS],
)
def test_an_error_is_found_by_the_words_that_people_search_for(
    library: Library, code: str, phrase: str, program: Program
) -> None:
    """Code and phrase stand in the message of either library."""
    with pytest.raises(Exception, match=re.escape(phrase)) as caught:
        program(library)

    assert code in str(caught.value)


def test_two_subgraphs_in_one_node_are_no_error(library: Library) -> None:
    """The code MULTIPLE_SUBGRAPHS is from earlier versions of LangGraph: neither
    library raises it.
    """
    inner = library.compile(library.graph(State, write), checkpointer=None)

    def call_twice(state: State) -> State:
        return {"log": [inner.invoke(state)["text"] for _ in range(2)]}

    app = alone(library, call_twice)

    result = app.invoke({"text": "", "log": []}, CONFIG)

    assert ["written", "written"] == result["log"]


def ask(library: Library) -> Any:
    """Return a node that asks."""
    interrupt = library.of("types.interrupt")
    return lambda _: {"text": interrupt("?")}


@pytest.mark.parametrize(
    "program",
    [
        lambda lib: alone(lib, write, checkpointer=None).get_state(CONFIG),
        lambda lib: alone(lib, ask(lib), checkpointer=None).invoke({"text": ""}),
        answer_without_saver,
    ],
    ids=["get_state", "interrupt", "resume"],
)
def test_what_needs_a_checkpointer_has_the_code_of_the_guide(program: Program) -> None:
    """LangGraph's guide lists MISSING_CHECKPOINTER, which only its JavaScript edition
    shows in a message.
    """
    with pytest.raises(ValueError, match="MISSING_CHECKPOINTER"):
        program(Library("flowpregel"))


def test_every_code_of_langgraph_is_on_our_page() -> None:
    """A reader who searches for a code finds its cause and its remedy."""
    from langgraph.errors import ErrorCode

    page = Path(__file__).parents[2] / "docs" / "reference" / "error-codes.md"
    text = page.read_text("utf-8")

    assert [] == [code.name for code in ErrorCode if f"`{code.name}`" not in text]
