"""Attributes of graphs, nodes and savers that programs read, beside LangGraph."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, TypedDict

import pytest

from tests.parity.libraries import BOTH, CONFIG, Library


class State(TypedDict, total=False):
    """A state of one number."""

    number: int


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


def add(state: State) -> State:
    """Add one."""
    return {"number": state["number"] + 1}


def fold(value: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """Append all writes."""
    return [*value, *(item for write in writes for item in write)]


def test_events_of_a_nested_graph_name_the_checkpoints_around_it(
    library: Library,
) -> None:
    """Their configs can be passed to the outer graph."""
    inner = library.graph(State, add).compile()
    app = library.compile(library.graph(State, ("inner", inner)))

    nested = []
    for namespace, mode, event in app.stream(
        {"number": 1}, CONFIG, stream_mode=["checkpoints", "debug"], subgraphs=True
    ):
        if namespace and (mode == "checkpoints" or event["type"] == "checkpoint"):
            nested.append(event if mode == "checkpoints" else event["payload"])

    assert len(nested) == 6
    for event in nested:
        parents = event["metadata"]["parents"]
        for config in (event["config"], event["parent_config"]):
            if config is not None:
                address = config["configurable"]
                own = {address["checkpoint_ns"]: address["checkpoint_id"]}
                assert {**parents, **own} == address["checkpoint_map"]
    numbers = [app.get_state(event["config"]).values for event in nested[::2]]
    assert [{}, {"number": 1}, {"number": 2}] == numbers


def test_a_node_lists_the_graph_that_it_runs(library: Library) -> None:
    """Whether it is the graph, or calls it. A plain function has none."""
    inner = library.graph(State, add).compile()
    apart = library.graph(State, add).compile(checkpointer=False)
    nodes = (
        ("is", inner),
        ("calls", lambda state: inner.invoke(state)),
        ("plain", add),
        ("apart", apart),
    )
    app = library.compile(library.graph(State, *nodes))

    found = {name: [*node.subgraphs] for name, node in app.nodes.items()}

    expected = {"is": [inner], "calls": [inner], "plain": [], "apart": []}
    assert {"__start__": [], **expected} == found


def test_a_builder_shows_the_channels_of_its_schemas(library: Library) -> None:
    """As a dict for each schema, managed values included."""
    steps = library.of("managed.RemainingSteps")

    fields = {"number": int, "left": steps}
    whole = TypedDict("Whole", fields)  # type: ignore[operator]
    builder = library.of("graph.StateGraph")(
        whole, input_schema=State, output_schema=State
    )

    assert [whole, State] == [*builder.schemas]
    assert ["left", "number"] == sorted(builder.schemas[whole])
    assert isinstance(builder.schemas[State], dict)
    number = builder.schemas[State]["number"]
    assert ("LastValue", int) == (type(number).__name__, number.ValueType)


def test_a_node_of_a_builder_can_be_called(library: Library) -> None:
    """By its `runnable`, which names the function."""

    async def later(state: State) -> State:
        return {"number": state["number"] + 2}

    inner = library.graph(State, add).compile()
    builder = library.graph(State, add, later, ("inner", inner))

    now, waiting = builder.nodes["add"].runnable, builder.nodes["later"].runnable

    assert {"number": 2} == now.invoke({"number": 1})
    assert {"number": 3} == asyncio.run(waiting.ainvoke({"number": 1}))
    assert (add, None) == (now.func, waiting.func)
    assert later is waiting.afunc
    assert ("add", "later") == (now.name, waiting.name)
    assert inner is builder.nodes["inner"].runnable
    assert State is builder.nodes["add"].input_schema


def pregel(library: Library, inputs: Any, outputs: Any) -> Any:
    """Return a program without a state graph."""
    channels = library.of("channels")
    node = library.of("pregel.NodeBuilder")().subscribe_to("a", "b").write_to("c")
    return library.of("pregel.Pregel")(
        nodes={"node": node},
        channels={
            "a": channels.LastValue(int),
            "b": channels.LastValue(str),
            "c": channels.Topic(int),
        },
        input_channels=inputs,
        output_channels=outputs,
    )


@pytest.mark.parametrize("inputs", ["a", ["a"], ["a", "b"]])
@pytest.mark.parametrize("outputs", ["c", ["a", "c"]])
def test_a_program_describes_its_input_and_output(inputs: Any, outputs: Any) -> None:
    """The same JSON Schema, whether there is one channel or several."""
    schemas = []
    for library in BOTH:
        app = pregel(library, inputs, outputs)
        schemas.append((app.get_input_jsonschema(), app.get_output_jsonschema()))

    assert schemas[0] == schemas[1]


def test_a_graph_is_mapped_over_inputs(library: Library) -> None:
    """The outputs have the order of the inputs."""
    app = library.compile(library.graph(State, add), checkpointer=None)
    inputs: list[State] = [{"number": number} for number in range(3)]
    outputs = [{"number": number} for number in (1, 2, 3)]

    assert outputs == app.map().invoke(inputs)
    assert outputs == asyncio.run(app.map().ainvoke(inputs))


def test_a_saver_takes_the_type_of_its_versions(library: Library) -> None:
    """Programs write it where they derive a saver."""
    base = library.of("checkpoint.base.BaseCheckpointSaver")

    class Own(base[int]):  # type: ignore[misc]
        pass

    assert issubclass(Own, base)


# ---------------------------------------------------------------- delta channels


def logging(library: Library, saver: Any) -> Any:
    """Return a graph of which the second node writes to a `DeltaChannel`."""
    delta = library.of("channels.DeltaChannel")(fold, snapshot_frequency=3)
    fields = {"number": int, "log": Annotated[list[str], delta]}
    log = TypedDict("Log", fields, total=False)  # type: ignore[operator]

    def note(state: Any) -> Any:
        return {"log": [f"at {state['number']}"]}

    builder = library.graph(log, add, note)
    return library.compile(builder, checkpointer=saver)


def folded(history: Any) -> list[Any]:
    """Return the value that a history leads to."""
    seed = history.get("seed", [])
    return fold(
        getattr(seed, "value", seed), [value for *_, value in history["writes"]]
    )


def values_by_history(saver: Any, app: Any, config: Any) -> list[list[Any]]:
    """Return the value at each checkpoint of a thread, by the saver's history."""
    values = []
    for state in app.get_state_history(config):
        read = partial(saver.get_delta_channel_history, channels=["log"])
        values.append(folded(read(config=state.config)["log"]))
    return values


def forked(app: Any) -> None:
    """Run a thread, and fork it off the checkpoint before the first write."""
    app.invoke({"number": 0}, CONFIG)
    states = [*app.get_state_history(CONFIG)]
    before = next(state for state in states if state.next == ("note",))
    edited = app.update_state(before.config, {"number": 9}, as_node="add")
    app.invoke(None, edited)


def test_the_history_of_a_channel_leads_to_its_value(library: Library) -> None:
    """At each checkpoint, in each branch."""
    saver = library.of("checkpoint.memory.InMemorySaver")()
    app = logging(library, saver)
    forked(app)

    states = [*app.get_state_history(CONFIG)]
    read = asyncio.run(
        saver.aget_delta_channel_history(config=states[0].config, channels=["log"])
    )

    assert ["at 9"] == folded(read["log"])
    known = [state for state in states if state.values["log"]]
    assert [["at 9"], ["at 1"]] == [state.values["log"] for state in known]
    assert {} == saver.get_delta_channel_history(config=CONFIG, channels=[])
