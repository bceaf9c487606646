"""A state is a TypedDict, a dataclass, a pydantic model or a plain value; nodes may see
parts.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, Required, TypedDict

import pytest

from flowpregel.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from flowpregel.errors import ConfigurationError
from flowpregel.graph import START, StateGraph
from flowpregel.managed import RemainingSteps
from flowpregel.runtime import Runtime
from tests.graphs import extend
from tests.runs.conftest import Drive


@dataclass
class Point:
    """A dataclass with a default and a reducer."""

    x: int
    y: int = 10
    seen: Annotated[list[str], operator.add] = field(default_factory=list)


def move(point: Point) -> dict[str, Any]:
    """Read attributes, return a dict."""
    return {"x": point.x + point.y, "seen": ["move"]}


def turn(point: Point) -> Point:
    """Return an object."""
    return Point(x=point.y, y=point.x, seen=["turn"])


def test_nodes_of_a_dataclass_get_and_return_objects(
    drive: Drive, executor: str
) -> None:
    """The output is a dict, as in LangGraph."""
    app = StateGraph(Point).add_sequence([move, turn]).add_edge(START, "move")

    result = drive.invoke(app.compile(executor=executor), {"x": 1})

    assert {"x": 10, "y": 11, "seen": ["move", "turn"]} == result


def test_an_input_may_be_an_object_of_the_schema(drive: Drive) -> None:
    """Its attributes are the input."""
    app = (
        StateGraph(Point)
        .add_node(move)
        .add_edge(START, "move")
        .compile(executor="inline")
    )

    assert 3 == drive.invoke(app, Point(x=1, y=2))["x"]


def test_a_plain_value_may_be_the_whole_state(drive: Drive, executor: str) -> None:
    """Nodes get it, and return what is folded into it."""
    builder = StateGraph(Annotated[list[str], operator.add])
    builder.add_node("a", lambda state: [f"{len(state)}"]).add_edge(START, "a")

    assert ["in", "1"] == drive.invoke(builder.compile(executor=executor), ["in"])


def test_a_plain_value_without_a_reducer_is_replaced(drive: Drive) -> None:
    """An int that counts."""
    builder = StateGraph(int).add_node("n", lambda n: n + 1).add_edge(START, "n")
    builder.add_conditional_edges("n", lambda n: "n" if n < 5 else "__end__")

    assert 5 == drive.invoke(builder.compile(executor="inline"), 0)


class Overall(TypedDict, total=False):
    """What a graph knows in all."""

    question: str
    answer: str
    notes: Annotated[list[str], operator.add]


class Asked(TypedDict):
    """What it is given."""

    question: str


class Told(TypedDict):
    """What it gives back."""

    answer: str


class Private(TypedDict):
    """What two nodes share, and nobody else sees."""

    draft: str


def sketch(state: Asked) -> Private:
    """Write something that is no part of the overall state."""
    return {"draft": f"draft of {state['question']}"}


def finish(state: Private) -> dict[str, Any]:
    """Read it."""
    return {"answer": state["draft"].upper(), "notes": sorted(state)}


def test_input_output_and_private_states_are_kept_apart(
    drive: Drive, executor: str
) -> None:
    """Each node sees the keys its parameter is annotated with, and no others."""
    builder = StateGraph(Overall, input_schema=Asked, output_schema=Told)
    builder.add_sequence([sketch, finish]).add_edge(START, "sketch")
    app = builder.compile(executor=executor)

    assert {"answer": "DRAFT OF WHY"} == drive.invoke(
        app, {"question": "why", "notes": ["no"]}
    )
    shown = drive.stream(
        app, {"question": "why"}, stream_mode="values", output_keys=["notes"]
    )
    assert {"notes": ["draft"]} == shown[-1]


def test_a_node_may_be_told_what_to_see(drive: Drive) -> None:
    """``input_schema`` is stronger than an annotation."""
    builder = StateGraph(Overall)
    builder.add_node("n", lambda state: {"notes": sorted(state)}, input_schema=Asked)
    app = builder.add_edge(START, "n").compile(executor="inline")

    assert ["in", "question"] == drive.invoke(app, {"question": "q", "notes": ["in"]})[
        "notes"
    ]


class Needed(TypedDict, total=False):
    """Keys with marks around and inside of ``Annotated``."""

    a: Required[Annotated[list[int], operator.add]]
    b: Annotated[NotRequired[list[int]], DeltaChannel(extend)]
    c: NotRequired[int | None]


def test_required_and_not_required_make_no_difference_to_channels() -> None:
    """The type inside of them counts."""
    channels = StateGraph(Needed).channels

    assert isinstance(channels["a"], BinaryOperatorAggregate)
    assert isinstance(channels["b"], DeltaChannel)
    assert [] == channels["b"].from_checkpoint([]).get()
    assert isinstance(channels["c"], LastValue)


class Other(TypedDict):
    """Declares a key in another way than `Overall`."""

    notes: Annotated[list[str], lambda old, new: new]


def test_two_schemas_that_disagree_on_a_key_are_refused() -> None:
    """The message names the key, and both channels' kinds."""
    with pytest.raises(
        ConfigurationError, match="'notes' already exists with a different type"
    ):
        StateGraph(Overall).add_node("n", lambda s: s, input_schema=Other)


class PlainNotes(TypedDict):
    """Names a key without saying how it folds."""

    notes: list[str]


def test_a_plain_declaration_takes_the_channel_another_schema_gave(
    drive: Drive,
) -> None:
    """A private view need not repeat the reducer."""
    builder = StateGraph(Overall)
    builder.add_node("n", lambda _: {"notes": ["n"]}, input_schema=PlainNotes)

    app = builder.add_edge(START, "n").compile(executor="inline")

    assert ["in", "n"] == drive.invoke(app, {"notes": ["in"]})["notes"]


class Managed(TypedDict):
    """Has a managed value."""

    left: RemainingSteps


def test_managed_values_are_no_input() -> None:
    """The message names the key and the schema."""
    with pytest.raises(ConfigurationError, match="in input schema Managed: left"):
        StateGraph(Overall, input_schema=Managed)


class BadReducer(TypedDict):
    """Its reducer takes one argument."""

    n: Annotated[int, lambda only: only]


def test_a_reducer_takes_two_arguments() -> None:
    """The message names the key."""
    with pytest.raises(
        ConfigurationError, match=r"reducer signature of state key 'n'.*\(only\)"
    ):
        StateGraph(BadReducer)


@dataclass
class Settings:
    """A context."""

    language: str = "en"


def test_nodes_and_paths_are_given_the_context_of_the_run(drive: Drive) -> None:
    """A dict becomes an object of the context schema."""

    def speak(state: Overall, runtime: Runtime[Settings]) -> dict[str, Any]:
        return {"notes": [runtime.context.language]}

    def path(state: Overall, runtime: Runtime[Settings]) -> str:
        return "more" if runtime.context.language == "eo" else "__end__"

    builder = StateGraph(Overall, context_schema=Settings).add_node(speak)
    builder.add_node("more", lambda _: {"notes": ["more"]}).add_edge(START, "speak")
    app = builder.add_conditional_edges("speak", path).compile(executor="inline")

    assert ["eo", "more"] == drive.invoke(app, {}, context={"language": "eo"})["notes"]
    assert ["en"] == drive.invoke(app, {}, context=Settings())["notes"]


# ---------------------------------------------------------------- pydantic


def model() -> Any:
    """Return a pydantic model with a default, a reducer, and a field that nodes fill
    in.
    """
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        n: int
        name: str = "nobody"
        notes: Annotated[list[str], operator.add] = pydantic.Field(default_factory=list)
        late: str | None = None

    Model.model_rebuild(_types_namespace={"Annotated": Annotated, "operator": operator})
    return Model


def test_nodes_of_a_model_get_validated_objects(drive: Drive) -> None:
    """What can be converted is; defaults are filled in."""
    builder = StateGraph(model()).add_node(
        "n", lambda m: {"notes": [f"{m.n + 1} {m.name}"]}
    )
    app = builder.add_edge(START, "n").compile(executor="inline")

    assert ["3 nobody"] == drive.invoke(app, {"n": "2"})["notes"]


def test_input_that_does_not_fit_the_model_is_refused_at_the_door(drive: Drive) -> None:
    """No node runs."""
    from pydantic import ValidationError

    ran: list[int] = []
    builder = (
        StateGraph(model()).add_node("n", lambda m: ran.append(1)).add_edge(START, "n")
    )

    with pytest.raises(ValidationError, match="valid integer"):
        drive.invoke(builder.compile(executor="inline"), {"n": "many"})
    assert [] == ran


def test_a_node_may_return_a_model(drive: Drive) -> None:
    """Of what is None by default, only what was set is written."""
    made = model()
    builder = StateGraph(made).add_node("n", lambda m: made(n=5)).add_edge(START, "n")
    app = builder.compile(executor="inline")

    assert 5 == drive.invoke(app, {"n": 1, "late": "kept"})["n"]
    assert "kept" == drive.invoke(app, {"n": 1, "late": "kept"})["late"]
