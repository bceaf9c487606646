"""A graph is a step of a LangChain chain, on either side of the bar."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from typing_extensions import TypedDict

from tests.parity.langchain import outcome
from tests.parity.libraries import BOTH, Library

runnables = pytest.importorskip("langchain_core.runnables")


class State(TypedDict, total=False):
    """A state of one number."""

    x: int


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def graph(request: pytest.FixtureRequest) -> Any:
    """Return a graph that adds one."""
    library: Library = request.param
    builder = library.graph(State, ("add", lambda state: {"x": state["x"] + 1}))
    return library.compile(builder, checkpointer=None)


def test_a_graph_takes_what_the_step_before_it_gives(graph: Any) -> None:
    """One input, several, and on an event loop."""
    given = runnables.RunnableLambda(lambda number: {"x": number})
    taken = runnables.RunnableLambda(lambda state: state["x"])
    chain = given | graph | taken

    assert 5 == chain.invoke(4, {"tags": ["a"]})
    assert [2, 3] == chain.batch([1, 2])
    assert 6 == asyncio.run(chain.ainvoke(5))


def test_a_chain_begins_with_a_graph(graph: Any) -> None:
    """The bar is LangChain's."""
    assert 5 == (graph | runnables.RunnableLambda(lambda state: state["x"])).invoke(
        {"x": 4}
    )


def test_a_graph_is_one_of_several_steps_side_by_side(graph: Any) -> None:
    """As in a dict of steps."""
    both = runnables.RunnablePassthrough() | {
        "more": graph,
        "same": lambda state: state,
    }

    assert {"more": {"x": 2}, "same": {"x": 1}} == both.invoke({"x": 1})


def double(state: State) -> State:
    """Return the state with its number doubled."""
    return {"x": 2 * state["x"]}


def number_of(state: State) -> int:
    """Return the number of a state."""
    return state["x"]


def chains(graph: Any) -> dict[str, Any]:
    """Return chains of a graph, functions and dicts, and changed forms of a graph."""
    return {
        "function | graph": double | graph,
        "graph | function": graph | number_of,
        "function | graph | function": double | graph | number_of,
        "dict | graph": {"x": number_of} | graph,
        "graph | dict": graph | {"same": dict, "number": number_of},
        "graph | graph": graph | graph,
        "pipe": graph.pipe(double, number_of, name="piped"),
        "pick": graph.pick("x"),
        "assign": graph.assign(twice=lambda state: 2 * state["x"]),
        "bind": graph.bind(stream_mode="updates"),
        "bind and config": graph.bind(output_keys=["x"]).with_config(tags=["t"]),
        "with_types": graph.with_types(input_type=State, output_type=State),
        "with_retry": graph.with_retry(stop_after_attempt=2),
        "with_fallbacks": graph.with_fallbacks([graph]),
        "runnable | graph": runnables.RunnableLambda(double) | graph,
        "branch": runnables.RunnableBranch(
            (lambda state: state["x"] > 5, double), graph
        ),
        "a function that returns it": runnables.RunnableLambda(lambda _: graph),
    }


@pytest.mark.filterwarnings("ignore:the input has no key of the state")
@pytest.mark.parametrize("name", chains(runnables.RunnableLambda(dict)))
def test_chains_do_what_langgraphs_do(name: str) -> None:
    """Called, in a batch, streamed, and on an event loop."""
    outputs = []
    for library in BOTH:
        chain = chains(adder(library))[name]
        calls = [
            partial(chain.invoke, {"x": 1}),
            partial(chain.batch, [{"x": 2}, {"x": 7}]),
            # A step after the graph gets the updates that the graph streams.
            lambda chain=chain: [*chain.stream({"x": 3})],
            lambda chain=chain: asyncio.run(chain.ainvoke({"x": 4})),
            lambda chain=chain: asyncio.run(chain.abatch([{"x": 5}])),
            lambda chain=chain: asyncio.run(items(chain.astream({"x": 6}))),
        ]
        outputs.append([outcome(call) for call in calls])

    called = [output for output in outputs[0] if output != "KeyError"]
    assert len(called) >= 4
    assert outputs[0] == outputs[1]


def adder(library: Library) -> Any:
    """Return a graph of *library* that adds one."""
    builder = library.graph(State, ("add", lambda state: {"x": state["x"] + 1}))
    return library.compile(builder, checkpointer=None)


async def items(stream: Any) -> list[Any]:
    """Return the items of an async iterator."""
    return [item async for item in stream]


def test_a_graph_and_its_nodes_are_runnables(graph: Any) -> None:
    """For `isinstance`, where LangChain and others ask."""
    assert isinstance(graph, runnables.Runnable)
    assert issubclass(type(graph), runnables.Runnable)
    assert not isinstance(graph.nodes, runnables.Runnable)


def test_a_node_is_a_step_of_a_chain() -> None:
    """Ours: LangGraph's node is none of itself, but has one."""
    node = adder(BOTH[1]).nodes["add"]
    chain = runnables.RunnableLambda(double) | node | number_of

    assert isinstance(node, runnables.Runnable)
    assert 5 == chain.invoke({"x": 2})
    assert [5, 7] == chain.batch([{"x": 2}, {"x": 3}])
    assert [5] == [*chain.stream({"x": 2})]
    assert 5 == asyncio.run(chain.ainvoke({"x": 2}))
    assert [5] == asyncio.run(chain.abatch([{"x": 2}]))
    assert [5] == asyncio.run(items(chain.astream({"x": 2})))


def test_outputs_are_given_as_they_come(graph: Any) -> None:
    """With the positions of their inputs."""
    inputs = [{"x": 1}, {"x": 2}]

    done = [*graph.batch_as_completed(inputs)]
    later = asyncio.run(items(graph.abatch_as_completed(inputs)))

    assert (
        [(0, {"x": 2}), (1, {"x": 3})]
        == sorted(done, key=str)
        == sorted(later, key=str)
    )


def test_a_list_of_inputs_is_mapped(graph: Any) -> None:
    """By the graph as by any Runnable."""
    assert [{"x": 2}, {"x": 3}] == graph.map().invoke([{"x": 1}, {"x": 2}])


@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_a_graph_is_a_tool_of_a_model(graph: Any) -> None:
    """Its arguments are the keys of its input."""
    tool = graph.as_tool(name="adder", description="Adds one.", arg_types={"x": int})

    assert ("adder", "Adds one.", ["x"]) == (tool.name, tool.description, [*tool.args])
    assert {"x": 8} == tool.invoke({"x": 7})


@pytest.mark.parametrize("suffix", [None, "input"])
def test_names_are_made_as_langgraphs(suffix: str | None) -> None:
    """With and without a suffix, of the graph or given."""
    names = []
    for library in BOTH:
        graph = adder(library).copy({"name": "adder"})
        names.append(
            [
                graph.get_name(suffix),
                graph.get_name(suffix, name="Other"),
                graph.config_specs,
            ]
        )

    assert names[0] == names[1]


def test_listeners_get_the_run(graph: Any) -> None:
    """Its start and its end."""
    heard: list[Any] = []
    listening = graph.with_listeners(
        on_start=lambda run: heard.append(run.inputs),
        on_end=lambda run: heard.append(run.outputs),
    )

    listening.invoke({"x": 1})

    assert [{"x": 1}, {"x": 2}] == heard


def test_a_run_in_a_chain_has_langchains_limit() -> None:
    """A chain passes its own limit of 25 on, unless the caller sets another."""
    outputs = []
    for library in BOTH:
        builder = library.of("graph.StateGraph")(State)
        builder.add_node("add", lambda state: {"x": state["x"] + 1})
        builder.add_edge("__start__", "add")
        builder.add_conditional_edges(
            "add", lambda state: "add" if state["x"] < 40 else "__end__"
        )
        chain = double | library.compile(builder, checkpointer=None) | number_of
        with pytest.raises(library.of("errors.GraphRecursionError"), match="25"):
            chain.invoke({"x": 1})
        outputs.append(chain.invoke({"x": 1}, {"recursion_limit": 50}))

    assert [40, 40] == outputs
