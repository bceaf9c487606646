"""`ToolNode` and what tools can ask for: the same answers as LangGraph's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from flowpregel.plugins import langchain
from tests.parity.chat_tools import OddError, add, fail, tools_of
from tests.parity.langchain import (
    ChatSide,
    asks,
    call,
    drive,
    flowpregel,
    langgraph,
    outcome,
)
from tests.parity.tool_wrappers import (
    WRAPPERS,
    Talk,
    answer_itself,
    await_twice,
    fail_itself,
    name_state,
)

SIDES = (langgraph, flowpregel)


def tell(error: ValueError) -> str:
    """Tell the model of an error."""
    return f"told of {error}"


def tell_two(error: Any) -> str:
    """Tell the model of two kinds of errors."""
    return f"told of {error}"


# LangGraph reads a union only where it is no text.
tell_two.__annotations__["error"] = ValueError | OddError


class State(TypedDict, total=False):
    """What a graph of one node reads and writes."""

    messages: Annotated[list, operator.add]
    talk: Annotated[list, operator.add]
    topic: str


@cache
def side_and_tools(make: Callable[[], ChatSide]) -> tuple[ChatSide, list[Any]]:
    """Return an engine, and the tools for it."""
    side = make()
    return side, [*tools_of(side).values()]


def run(
    make: Callable[[], ChatSide], given: Any, *, is_async: bool = False, **options: Any
) -> Any:
    """Return what a graph of one `ToolNode` makes of *given*."""
    side, tools = side_and_tools(make)
    node = side.prebuilt.ToolNode(tools, **options)
    # LangGraph's needs a graph around it.
    builder = side.graph.StateGraph(State if isinstance(given, dict) else list)
    builder.add_node("tools", node).add_edge("__start__", "tools")
    app = builder.compile(store=side.store(), **side.options)
    return outcome(lambda: drive(app, given, is_async))


def both(given: Any, **options: Any) -> Any:
    """Return what ours makes of *given*, if LangGraph's makes the same of it."""
    theirs, ours = (run(make, given, **options) for make in SIDES)
    assert theirs == ours
    return ours


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"messages": [HumanMessage("hi"), asks(call("add", "1", a=1, b=2))]},
        {"messages": [asks(call("add", "1", a=1, b=2), call("add", "2", a=3, b=4))]},
        {"messages": [asks(call("nothing", "1"), call("add", "2", a="x", b=4))]},
        {
            "messages": [asks(call("look", "1", word="w", topic="forged"))],
            "topic": "tea",
        },
        {"messages": [asks(call("describe", "1", word="w"))], "topic": "tea"},
        {"messages": [asks(call("remember", "1", word="w"))]},
        {
            "messages": [
                asks(call("update", "7", topic="x"), call("add", "2", a=3, b=4))
            ]
        },
        {"messages": [asks()]},
        {"messages": [HumanMessage("nobody asks")]},
        {"messages": []},
        [HumanMessage("hi"), asks(call("add", "1", a=1, b=2))],
    ],
)
def test_a_tool_node_answers_as_langgraphs(given: Any, is_async: bool) -> None:
    """Calls, unknown tools, wrong arguments, what the run fills in, commands, no
    calls.
    """
    both(given, is_async=is_async)


@pytest.mark.parametrize(
    "handling",
    [
        True,
        False,
        "in one's own words",
        ValueError,
        (ValueError, TypeError),
        tell,
        tell_two,
    ],
)
@pytest.mark.parametrize("kind", ["value", "type", "odd"])
def test_the_same_errors_are_told_to_the_model(handling: Any, kind: str) -> None:
    """All others fail the node."""
    both(
        {"messages": [asks(call("fail", "1", kind=kind))]}, handle_tool_errors=handling
    )


def test_an_object_may_word_an_error() -> None:
    """Any callable, of which no annotation is known, is told of all errors."""
    node = langchain.ToolNode(
        [fail], handle_tool_errors=partial("{} went wrong".format)
    )

    [answer] = node.invoke([asks(call("fail", "1", kind="odd"))])

    assert "odd went wrong" == answer.content


def test_an_async_tool_is_awaited() -> None:
    """Beside sync ones."""
    given = {
        "messages": [asks(call("later", "1", text="a"), call("add", "2", a=1, b=1))]
    }

    _, *answers = both(given, is_async=True)["messages"]

    assert ["later a", "2"] == [content for _, _, content, *_ in answers]


@pytest.mark.parametrize("schema", ["MessagesState", "AgentState"])
def test_a_tool_may_be_annotated_with_the_state(schema: str) -> None:
    """On Python 3.11 too, where pydantic takes only some TypedDicts."""
    state = Annotated[getattr(langchain, schema), langchain.InjectedState]

    def count(state: Any) -> str:
        """Count the messages."""
        return str(len(state["messages"]))

    count.__annotations__["state"] = state
    [answer] = langchain.ToolNode([count]).invoke([asks(call("count", "1"))])

    assert "1" == answer.content


def test_another_key_may_hold_the_messages() -> None:
    """For what is read and what is written."""
    given = {"talk": [asks(call("add", "1", a=1, b=2))]}

    _, answer = both(given, messages_key="talk")["talk"]
    assert "3" == answer[2]


@pytest.mark.parametrize(
    "state",
    [
        {"messages": [AIMessage("done")]},
        {"messages": [asks(call("add", "1"))]},
        [asks(call("add", "1")), HumanMessage("no")],
        {"messages": []},
        {},
    ],
)
def test_the_condition_leads_where_langgraphs_does(state: Any) -> None:
    """To the tools, to the end, or to an error."""
    sides = (make() for make in SIDES)
    theirs, ours = (
        outcome(partial(side.prebuilt.tools_condition, state)) for side in sides
    )

    assert theirs == ours


# ---------------------------------------------------------------- wrapped calls


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize(
    "calls",
    [
        [call("add", "1", a=1, b=2)],
        [call("look", "1", word="w"), call("describe", "2", word="v")],
        [call("nothing", "1", a=5)],
        [call("fail", "1", kind="value")],
        [call("add", "1", a="x", b=2)],
        [call("update", "1", topic="milk")],
    ],
)
def test_wrapped_calls_are_answered_as_langgraphs(
    calls: list[Any], wrap: Any, is_async: bool
) -> None:
    """Called, called twice, answered, changed, replaced, failed and caught."""
    given = {"messages": [asks(*calls)], "topic": "tea"}

    both(given, wrap_tool_call=wrap, is_async=is_async)


@pytest.mark.parametrize("handling", [True, False, "in one's own words", tell])
def test_an_error_of_a_wrapper_is_handled_as_one_of_a_tool(handling: Any) -> None:
    """It is told to the model, or fails the node."""
    given = {"messages": [asks(call("add", "1", a=1, b=2))], "topic": "tea"}

    both(given, wrap_tool_call=fail_itself, handle_tool_errors=handling)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_async_wrapper_is_for_async_runs(is_async: bool) -> None:
    """A sync run calls the tool without it."""
    given = {"messages": [asks(call("add", "1", a=1, b=2))]}

    _, answer = both(given, awrap_tool_call=await_twice, is_async=is_async)["messages"]

    assert ("4" if is_async else "3") == answer[2]


def sent(side: ChatSide, packet: Any, calls: list[Any], **options: Any) -> Any:
    """Return what a `ToolNode` makes of *calls* that are sent to it one by one."""
    tools = [*tools_of(side).values()]
    builder = side.graph.StateGraph(State)
    builder.add_node("tools", side.prebuilt.ToolNode(tools, **options))

    def send(state: Any) -> Any:
        return [side.types.Send("tools", packet(call, state)) for call in calls]

    builder.add_conditional_edges("__start__", send, ["tools"])
    app = builder.compile(store=side.store(), **side.options)
    given = {"messages": [HumanMessage("hi"), asks(*calls)], "topic": "tea"}
    return outcome(lambda: drive(app, given, False))


def as_list(call: Any, state: Any) -> Any:
    """Return a packet without the state."""
    return [call]


def with_context(call: Any, state: Any) -> Any:
    """Return a packet with a state of its own."""
    return langchain.ToolCallWithContext(
        __type="tool_call_with_context",
        tool_call=call,
        state={**state, "topic": "its own"},
    )


@pytest.mark.parametrize("packet", [as_list, with_context])
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_call_that_is_sent_alone_gets_the_state(packet: Any, executor: str) -> None:
    """That of the graph, or that of its packet; in a worker process, too."""
    calls = [call("look", "1", word="w"), call("describe", "2", word="v")]
    sides = (langgraph(), flowpregel(executor))

    theirs, ours = (sent(side, packet, calls) for side in sides)

    assert theirs == ours
    topic = "tea" if packet is as_list else "its own"
    assert [f"w 2 {topic} 1"] == [
        content for _, name, content, *_ in ours["messages"] if name == "look"
    ]


def test_a_wrapper_gets_the_state_of_a_call_that_is_sent_alone() -> None:
    """As the request's, and as that of its runtime."""
    calls = [call("nothing", "1")]
    theirs, ours = (
        sent(make(), as_list, calls, wrap_tool_call=answer_itself) for make in SIDES
    )

    assert theirs == ours


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_the_state_of_a_call_that_is_sent_alone_is_an_object(executor: str) -> None:
    """If the graph's state is one."""

    side = flowpregel(executor)
    builder = side.graph.StateGraph(Talk)
    node = side.prebuilt.ToolNode([add], wrap_tool_call=name_state)
    packet = [call("add", "1", a=1, b=2)]
    builder.add_node("tools", node).add_conditional_edges(
        "__start__", lambda _: side.types.Send("tools", packet), ["tools"]
    )
    app = builder.compile(**side.options)

    *_, said = app.invoke({"messages": [], "topic": "tea"})["messages"]

    assert "Talk tea" == said.content
