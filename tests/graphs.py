"""Small graphs that many tests build on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from flowpregel.channels import LastValue, Topic
from flowpregel.graph import START, StateGraph
from flowpregel.pregel import NodeBuilder, Pregel


def on_input(call: Any, *channels: str) -> NodeBuilder:
    """Return a node that the input triggers, and that writes to *channels*
    (``out``).
    """
    return NodeBuilder().subscribe_only("a").do(call).write_to(*(channels or ("out",)))


def fan_out(*calls: Callable[[Any], Any], **options: Any) -> Pregel:
    """Return a graph that gives its input to each of *calls*, as nodes n0, n1, ... side
    by side.
    """
    return graph(
        {f"n{index}": on_input(call) for index, call in enumerate(calls)}, **options
    )


def graph(
    nodes: Mapping[str, Any], channels: Mapping[str, Any] | None = None, **options: Any
) -> Pregel:
    """Return a graph from ``a`` to ``out``, which gathers what is written to it; runs
    inline.
    """
    declared = {"a": LastValue(object), "out": Topic(object, accumulate=True)}
    return Pregel(
        nodes=dict(nodes),
        channels={**declared, **(channels or {})},
        **{
            "input_channels": "a",
            "output_channels": "out",
            "executor": "inline",
            **options,
        },
    )


def extend(value: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """Fold writes into a list, as the reducer of a `DeltaChannel`."""
    return [*value, *(item for write in writes for item in write)]


class Lists(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]
    total: int


def put(*items: Any) -> Any:
    """Return a node that adds *items*."""
    return lambda _: {"items": [*items]}


def fan(*names: str) -> StateGraph:
    """Return a graph whose nodes all start at once, each adding its name."""
    builder = StateGraph(Lists)
    for name in names:
        builder.add_node(name, put(name)).add_edge(START, name)
    return builder
