"""LangGraph's readers of events (`stream_events(version="v3")`) on both engines."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.stream import StreamChannel, StreamTransformer

from flowpregel.errors import ConfigurationError
from tests.parity.libraries import BOTH, Library

FLOWPREGEL = BOTH[1]
pytestmark = pytest.mark.filterwarnings("ignore:The v3 streaming protocol")


class State(TypedDict):
    """A state of one list."""

    items: Annotated[list[str], operator.add]


def first(state: State) -> State:
    """Write."""
    return {"items": ["first"]}


def emitting(library: Library) -> tuple[str, Any]:
    """Return a node that writes, and emits an item."""

    def second(state: State) -> State:
        library.of("config.get_stream_writer")()("from second")
        return {"items": ["second"]}

    return "second", second


def fail(state: State) -> State:
    """Fail."""
    raise OSError("no")


class Custom(StreamTransformer):
    """Collects what nodes emit."""

    required_stream_modes = ("custom",)

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        super().__init__(scope)
        self.channel: StreamChannel[Any] = StreamChannel()

    def init(self) -> dict[str, Any]:
        """Return the projection."""
        return {"emitted": self.channel}

    def process(self, event: Any) -> bool:
        """Collect an item."""
        if event["method"] == "custom":
            self.channel.push(event["params"]["data"])
        return True


def app_of(library: Library, *nodes: Any, **options: Any) -> Any:
    """Return a graph of *nodes*."""
    return library.compile(library.graph(State, *nodes), checkpointer=None, **options)


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_a_reader_has_the_values_and_the_output(library: Library) -> None:
    """The values after each superstep, and the last ones."""
    reader = app_of(library, first, emitting(library)).stream_events(
        {"items": []}, version="v3"
    )

    assert [[], ["first"], ["first", "second"]] == [
        values["items"] for values in reader.values
    ]
    assert {"items": ["first", "second"]} == reader.output


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
@pytest.mark.parametrize("where", ["graph", "call"])
def test_a_transformer_makes_a_projection(library: Library, where: str) -> None:
    """One of the graph, or of the call."""
    compiled = {"transformers": [Custom]} if where == "graph" else {}
    called = {"transformers": [Custom]} if where == "call" else {}
    app = app_of(library, first, emitting(library), **compiled)

    reader = app.stream_events({"items": []}, version="v3", **called)

    assert ["from second"] == list(reader.extensions["emitted"])


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_an_async_reader_is_awaited(library: Library) -> None:
    """And has the same values."""

    async def read() -> Any:
        app = app_of(library, first, emitting(library))
        reader = await app.astream_events({"items": []}, version="v3")
        return [len(values["items"]) async for values in reader.values]

    assert [0, 1, 2] == asyncio.run(read())


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
def test_a_reader_raises_the_error_of_the_run(library: Library) -> None:
    """When its output is asked for."""
    reader = app_of(library, first, fail).stream_events({"items": []}, version="v3")

    with pytest.raises(OSError, match="no"):
        _ = reader.output


@pytest.mark.parametrize("library", BOTH, ids=lambda library: library.name)
@pytest.mark.parametrize(
    "options", [{"stream_mode": "values"}, {"transformers": [Custom()]}]
)
def test_what_nested_graphs_could_not_have_is_refused(
    library: Library, options: dict[str, Any]
) -> None:
    """A stream mode of one's own, and an instance of a transformer."""
    app = app_of(library, first)

    with pytest.raises(TypeError):
        app.stream_events({"items": []}, version="v3", **options)


def test_another_version_is_refused() -> None:
    """With the one there is."""
    with pytest.raises(ConfigurationError, match="version='v3' only"):
        app_of(FLOWPREGEL, first).stream_events({"items": []}, version="v2")
