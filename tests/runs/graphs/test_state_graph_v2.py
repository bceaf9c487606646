"""``version="v2"``, and what a graph says of its input and output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from flowpregel.channels import LastValue, Topic
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint
from flowpregel.graph import START, StateGraph
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.types import Command, GraphOutput, interrupt
from tests.runs.conftest import Drive


@dataclass
class Report:
    """A state with a default."""

    x: int
    text: str = "none"


@dataclass
class Summary:
    """Less than the state."""

    x: int


class Model(BaseModel):
    """A state that is validated."""

    x: int
    text: str = "none"


class Plain(TypedDict, total=False):
    """A state that is a dict."""

    x: int
    text: str


def graph(state: Any, node: Any = lambda _: {"x": 5}, **schemas: Any) -> StateGraph:
    """Return a graph of one node."""
    return StateGraph(state, **schemas).add_node("n", node).add_edge(START, "n")


@pytest.mark.parametrize("state", [Report, Model])
def test_an_output_is_an_object_of_its_schema(drive: Drive, state: Any) -> None:
    """So are the values of a stream; their updates are dicts."""
    app = graph(state).compile(executor="inline")

    output = drive.invoke(app, {"x": 1}, version="v2")
    parts = drive.stream(app, {"x": 1}, version="v2", stream_mode=["values", "updates"])

    assert GraphOutput(state(x=5, text="none")) == output
    assert [
        {"type": "values", "ns": (), "data": state(x=1), "interrupts": ()},
        {"type": "updates", "ns": (), "data": {"n": {"x": 5}}},
        {"type": "values", "ns": (), "data": state(x=5), "interrupts": ()},
    ] == parts


def test_an_output_schema_of_its_own_shows_its_keys(drive: Drive) -> None:
    """Where the output is asked for by a key, it is what that holds."""
    app = graph(Report, output_schema=Summary).compile(executor="inline")

    assert Summary(5) == drive.invoke(app, {"x": 1}, version="v2").value
    assert 5 == drive.invoke(app, {"x": 1}, version="v2", output_keys="x").value


def test_the_first_version_returns_dicts(drive: Drive) -> None:
    """As it always did."""
    app = graph(Report).compile(executor="inline")

    assert {"x": 5} == drive.invoke(app, {"x": 1}) | {"x": 5}
    assert isinstance(drive.invoke(app, {"x": 1}), dict)


def test_values_that_cannot_be_an_object_yet_are_a_dict(drive: Drive) -> None:
    """Before the first node has written what the class requires."""
    builder = StateGraph(Report, input_schema=Plain)
    builder.add_node("n", lambda _: {"x": 5}, input_schema=Plain).add_edge(START, "n")
    app = builder.compile(executor="inline")

    parts = drive.stream(app, {"text": "begin"}, version="v2", stream_mode="values")

    assert [{"text": "begin"}, Report(5, "begin")] == [part["data"] for part in parts]


def test_questions_stand_beside_the_value(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """In an output, and in a stream's values."""
    app = graph(Report, lambda _: {"x": interrupt("how many?")}).compile(
        saver, executor="inline"
    )

    output = drive.invoke(app, {"x": 1}, thread_id="1", version="v2")
    parts = drive.stream(
        app, {"x": 1}, thread_id="2", version="v2", stream_mode="values"
    )

    assert "how many?" == output.interrupts[0].value
    assert Report(1) == output.value
    assert (Report(1), "how many?") == (
        parts[-1]["data"],
        parts[-1]["interrupts"][0].value,
    )
    done = drive.invoke(app, Command(resume=7), thread_id="1", version="v2")
    assert GraphOutput(Report(7)) == done


def test_an_output_can_be_read_like_the_dict_it_was_before() -> None:
    """For programs that are moved over one line at a time."""
    asked = GraphOutput({"x": 5}, ("question",))  # type: ignore[arg-type]

    assert 5 == asked["x"]
    assert "x" in asked
    assert "y" not in asked
    assert ("question",) == asked["__interrupt__"]
    assert "__interrupt__" in asked
    assert "__interrupt__" not in GraphOutput(Summary(3))
    assert 3 == GraphOutput(Summary(3))["x"]
    assert "x" in GraphOutput(Summary(3))


def test_a_state_graph_says_what_it_takes_and_gives() -> None:
    """By its schemas, under its name."""
    app = graph(Plain, output_schema=Summary, context_schema=Report).compile(name="job")
    number = {"title": "X", "type": "integer"}

    assert "jobInput" == app.get_input_jsonschema()["title"]
    assert {"x", "text"} == app.get_input_jsonschema()["properties"].keys()
    assert {
        "title": "jobOutput",
        "type": "object",
        "properties": {"x": number},
        "required": ["x"],
    } == app.get_output_jsonschema()
    assert (Plain, Summary) == (app.InputType, app.OutputType)
    assert "Report" == (app.get_context_jsonschema() or {})["title"]
    assert graph(Plain).compile().get_context_jsonschema() is None


def test_a_models_own_schema_is_told() -> None:
    """Pydantic knows it best."""
    app = graph(Model).compile()

    assert Model.model_json_schema() == app.get_input_jsonschema()
    assert Model is app.get_input_schema()
    assert {"x"} == app.get_output_schema().model_json_schema()["properties"].keys() - {
        "text"
    }


def test_channels_say_what_a_pregel_takes_and_gives() -> None:
    """One is its own type; several are a dict of which nothing has to be there."""
    channels = {"a": LastValue(str), "b": LastValue(int), "c": Topic(float)}
    node = NodeBuilder().subscribe_only("a").do(len).write_to("b")
    one = Pregel(
        nodes={"n": node}, channels=channels, input_channels="a", output_channels="b"
    )
    several = Pregel(
        nodes={"n": node},
        channels=channels,
        input_channels=["a"],
        output_channels=["b", "c"],
    )

    assert {"title": "LangGraphInput", "type": "string"} == one.get_input_jsonschema()
    assert (str, int) == (one.InputType, one.OutputType)
    assert several.InputType is None
    found = several.get_output_jsonschema()
    expected = {"title": "C", "type": "array", "items": {"type": "number"}}
    assert {**expected, "default": None} == found["properties"]["c"]
    assert "required" not in found


def test_a_workflow_says_what_its_function_does() -> None:
    """By its annotations."""

    @entrypoint()
    def job(numbers: list[int]) -> str:
        return str(numbers)

    assert {
        "title": "jobInput",
        "type": "array",
        "items": {"type": "integer"},
    } == job.get_input_jsonschema()
    assert {"title": "jobOutput", "type": "string"} == job.get_output_jsonschema()
    assert [1] == job.get_input_schema()(["1"]).root


def test_without_pydantic_the_schema_is_the_class_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And there is no JSON Schema of it."""
    app = graph(Report).compile()
    monkeypatch.setitem(sys.modules, "pydantic", None)

    assert Report is app.get_input_schema()
    with pytest.raises(ConfigurationError, match="needs pydantic"):
        app.get_input_jsonschema()
