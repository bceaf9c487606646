"""The names of LangGraph's inside that packages import do the same in flowpregel."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from pydantic import BaseModel, field_validator

from flowpregel.plugins.langgraph.hook import name_pairs
from flowpregel.plugins.langgraph.modules import MODULES
from flowpregel.types import StreamWriter
from tests.parity.langchain import ScriptedModel, call
from tests.parity.libraries import BOTH, Library

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* is deprecated"),
    pytest.mark.filterwarnings("ignore:.* has been moved to"),
]


class Number(TypedDict, total=False):
    """A state of one number."""

    number: int


def name_of(library: Library, module: str, name: str) -> Any:
    """Return a name of LangGraph's *module*, as the hook would give it for
    flowpregel.
    """
    if not library.is_ours:
        return getattr(import_module(f"langgraph.{module}"), name)
    objects = {}
    for home, names in MODULES[f"langgraph.{module}"].items():
        source = import_module(home)
        for theirs, ours in name_pairs(names, source):
            objects[theirs] = getattr(source, ours)
    return objects[name]


def both(module: str, name: str) -> list[Any]:
    """Return what LangGraph and flowpregel have under a name."""
    return [name_of(library, module, name) for library in BOTH]


@pytest.mark.parametrize(
    ("config", "patch"),
    [
        (None, {"a": 1}),
        ({}, {"a": 1}),
        ({"tags": ["x"]}, {"a": 1}),
        ({"configurable": {"a": 0, "b": 2}, "metadata": {}}, {"a": 1}),
    ],
)
def test_a_configurable_is_patched_alike(config: Any, patch: Any) -> None:
    """With any or no config before."""
    theirs, ours = both("utils.config", "patch_configurable")

    assert theirs(config, patch) == ours(config, patch)


@pytest.mark.parametrize(
    "configs",
    [
        (),
        (None, {}),
        ({"tags": ["a"], "metadata": {"x": 1}}, {"tags": ["b"], "metadata": {"y": 2}}),
        ({"configurable": {"a": 1}}, {"configurable": {"b": 2}, "run_name": "r"}),
        ({"callbacks": [1]}, {"callbacks": [2]}, {"recursion_limit": 7}),
    ],
)
@pytest.mark.parametrize("name", ["ensure_config", "merge_configs"])
def test_configs_are_merged_alike(name: str, configs: tuple[Any, ...]) -> None:
    """The default recursion limits differ, and are not compared."""
    theirs, ours = both("_internal._config", name)
    limit = {} if {"recursion_limit": 7} in configs else {"recursion_limit": None}

    assert {**theirs(*configs), **limit} == {**ours(*configs), **limit}


def plain(value: int) -> int:
    """Return the next number."""
    return value + 1


async def awaited(value: int) -> int:
    """Return the next number, later."""
    return value + 2


def chain(value: int) -> Any:
    """Return a Runnable that takes the same number."""
    return RunnableLambda(lambda number: number * 10)


def configured(value: int, config: RunnableConfig, *, factor: int = 1) -> Any:
    """Return a part of the config."""
    return value * factor, config["configurable"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("functions", "options", "value"),
    [
        ((plain,), {}, 1),
        ((plain, awaited), {"name": "count"}, 1),
        ((chain,), {}, 3),
        ((configured,), {"factor": 3}, 2),
        ((pow,), {"explode_args": True}, ((2, 3), {"mod": 5})),
    ],
)
def test_a_runnable_callable_calls_its_functions_alike(
    functions: Any, options: Any, value: Any, is_async: bool
) -> None:
    """Sync and async, by itself."""
    outcomes = []
    for cls in both("utils.runnable", "RunnableCallable"):
        runnable = cls(*functions, **options)
        config = {"configurable": {"user": "ada"}}
        if is_async:
            result = asyncio.run(runnable.ainvoke(value, config))
        else:
            result = runnable.invoke(value, config)
        outcomes.append((result, runnable.name))

    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_a_runnable_callable_is_a_node_with_the_values_of_its_run(
    library: Library,
) -> None:
    """By the names of its parameters; its name is the name of the node."""
    seen: list[Any] = []

    def look(
        state: Number, config: RunnableConfig, *, runtime: Any, writer: StreamWriter
    ) -> Number:
        seen.extend((runtime.context, config["configurable"]["thread_id"]))
        writer("written")
        return {"number": state["number"] + 1}

    node = name_of(library, "utils.runnable", "RunnableCallable")(look)
    builder = library.of("graph.StateGraph")(Number, context_schema=str).add_node(node)
    app = library.compile(builder.add_edge("__start__", "look"))

    items = app.stream(
        {"number": 1},
        {"configurable": {"thread_id": "t"}},
        context="here",
        stream_mode=["custom", "updates"],
    )

    assert [("custom", "written"), ("updates", {"look": {"number": 2}})] == [*items]
    assert ["here", "t"] == seen


class Text(TypedDict, total=False):
    """A state of one text, and of a number that is not put in or out."""

    number: int
    text: str


class OnlyText(TypedDict, total=False):
    """The part of the state that goes in and out."""

    text: str


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_a_graph_takes_the_older_names_of_its_arguments(library: Library) -> None:
    """Programs and packages that were written before LangGraph 1.0 have them."""
    tries = [1, 2]

    def count(state: Any) -> Text:
        if len(tries) > 1:
            raise ConnectionError(tries.pop())
        return {"number": len(state["text"]), "text": f"{sorted(state)}"}

    builder = name_of(library, "graph", "StateGraph")(
        Text, config_schema=dict, input=OnlyText, output=OnlyText
    )
    policy = library.of("types.RetryPolicy")(initial_interval=0)
    builder.add_node("count", count, retry=policy, input=OnlyText)
    app = library.compile(builder.add_edge("__start__", "count"), checkpointer=None)

    assert {"text": "['text']"} == app.invoke({"text": "abc"})
    assert dict is builder.context_schema


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_a_reducer_of_a_program_gives_a_message_one_id(library: Library) -> None:
    """The state that an edge reads and the state of the next superstep agree."""
    add_messages = name_of(library, "graph.message", "add_messages")

    def last_ten(messages: Any, writes: Any) -> Any:
        return add_messages(messages, writes)[-10:]

    seen = []

    def choose(state: Any) -> str:
        seen.append(state["messages"][-1].id)
        return "__end__"

    fields = {"messages": Annotated[list, last_ten]}
    state = TypedDict("state", fields)  # type: ignore[operator]
    builder = library.graph(state, ("say", lambda _: {"messages": [AIMessage("hi")]}))
    app = library.compile(builder.add_conditional_edges("say", choose))
    output = app.invoke({"messages": []}, {"configurable": {"thread_id": "t"}})

    assert [output["messages"][-1].id] == seen


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_a_node_can_ask_by_raising(library: Library) -> None:
    """The old form of a question; the node runs again when the run is resumed."""
    asks = [True]

    def ask(state: Number) -> Number:
        if asks.pop():
            raise name_of(library, "errors", "NodeInterrupt")("Go on?")
        return {"number": 2}

    app = library.compile(library.graph(Number, ask))
    config = {"configurable": {"thread_id": "t"}}
    [question] = app.invoke({"number": 1}, config)["__interrupt__"]
    assert "Go on?" == question.value

    asks.append(False)
    assert {"number": 2} == app.invoke(None, config)


class Even(BaseModel):
    """An even number."""

    number: int

    @field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        """Refuse an odd number."""
        if number % 2:
            raise ValueError("odd")
        return number


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def half(number: int) -> int:
    """Halve a number."""
    return number // 2


@pytest.mark.parametrize("is_list", [False, True])
def test_requested_tools_are_validated_alike(is_list: bool) -> None:
    """Against models, tools and functions; an error is an answer, by a function."""
    message = AIMessage(
        "",
        tool_calls=[
            call("Even", "1", number=4),
            call("Even", "2", number=3),
            call("double", "3", number="x"),
            call("half", "4", number=8),
        ],
    )
    answers = []
    for cls in both("prebuilt.tool_validator", "ValidationNode"):
        node = cls(
            [Even, double, half],
            format_error=lambda error, call, schema: f"{call['id']} {schema.__name__}",
        )
        output = node.invoke([message] if is_list else {"messages": [message]})
        for answer in output if is_list else output["messages"]:
            answer.id = None
        answers.append(output)

    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("bound", "tools", "outcome"),
    [
        (None, [double], True),
        ([double], [double], False),
        ([double], [], ValueError),
        ([double], [tool(half)], ValueError),
    ],
)
def test_the_tools_of_a_model_are_compared_alike(
    bound: Any, tools: Any, outcome: Any
) -> None:
    """Tools are bound once; other tools are an error."""
    model: Any = ScriptedModel(script=[])
    if bound is not None:
        model = model.bind_tools(bound)

    for function in both("prebuilt.chat_agent_executor", "_should_bind_tools"):
        if isinstance(outcome, bool):
            assert outcome is function(model, tools)
        else:
            with pytest.raises(outcome):
                function(model, tools)
