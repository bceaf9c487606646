"""The names that stand in the first lines of LangGraph's programs, at their import
paths.
"""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from tests.parity.libraries import BOTH, Library


class State(TypedDict, total=False):
    """A state of one number."""

    number: int


class Number(BaseModel):
    """The same, as a model."""

    number: int


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


@pytest.mark.parametrize(
    "path",
    [
        "channels.any_value.AnyValue",
        "channels.ephemeral_value.EphemeralValue",
        "channels.last_value.LastValue",
        "channels.untracked_value.UntrackedValue",
        "checkpoint.base.CheckpointTuple",
        "graph.state.CompiledStateGraph",
        "graph.state.StateGraph",
        "managed.base.ManagedValue",
        "managed.is_last_step.IsLastStep",
        "managed.is_last_step.RemainingSteps",
        "pregel._read.PregelNode",
        "pregel._write.ChannelWrite",
        "pregel._write.ChannelWriteEntry",
        "pregel.protocol.PregelProtocol",
        "pregel.protocol.StreamProtocol",
    ],
)
def test_a_program_finds_the_name_where_it_looks_for_it(
    library: Library, path: str
) -> None:
    """Seed documents and programs import from the file that defines a name in
    LangGraph.
    """
    assert isinstance(library.of(path), object)


@pytest.mark.parametrize("name", ["graph.StateGraph", "graph.state.CompiledStateGraph"])
def test_a_graph_takes_types_in_annotations(library: Library, name: str) -> None:
    """One, as most programs write, or all four."""
    cls = library.of(name)

    assert cls[State] is not None
    assert cls[State, None, State, State] is not None


def test_a_graph_built_with_types_runs(library: Library) -> None:
    """The annotated class is called like the class."""
    builder = library.of("graph.StateGraph")[State](State)
    builder.add_node("add", lambda state: {"number": state["number"] + 1})
    app = library.compile(builder.add_edge("__start__", "add"), checkpointer=None)

    assert {"number": 2} == app.invoke({"number": 1})


def test_a_compiled_graph_has_the_models_of_its_input_and_output(
    library: Library,
) -> None:
    """`input_schema` and `output_schema` are pydantic models."""
    app = library.compile(library.graph(Number, ("add", lambda state: state)))

    for schema in (app.input_schema, app.output_schema):
        assert ["number"] == [*schema.model_json_schema()["properties"]]


def test_a_node_can_ask_for_the_server_that_is_not_there(library: Library) -> None:
    """Programs ask whether they run on LangGraph's server, by `runtime.server_info`."""
    found: list[Any] = []

    def look(state: State) -> State:
        runtime = library.of("runtime.get_runtime")()
        found.extend(
            (runtime.server_info, runtime.execution_info.patch(task_id="x").task_id)
        )
        return state

    library.compile(library.graph(State, look), checkpointer=None).invoke({"number": 1})

    assert [None, "x"] == found
