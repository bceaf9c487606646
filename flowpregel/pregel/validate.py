"""Checks that nodes and channels fit together, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel._core.program import names
from flowpregel._core.records import (
    CALLED,
    ERROR,
    ERROR_SOURCE,
    INPUT,
    INTERRUPT,
    NO_WRITES,
    RESUME,
    RETURN,
    TASKS,
)
from flowpregel._engine.tasks import check_executor
from flowpregel.channels.base import BaseChannel
from flowpregel.errors import ConfigurationError
from flowpregel.managed import managed_value
from flowpregel.pregel.node import PregelNode

if TYPE_CHECKING:
    from flowpregel.pregel.base import PregelBase

RESERVED = frozenset({CALLED, ERROR, ERROR_SOURCE, INPUT, INTERRUPT, NO_WRITES, RESUME, RETURN})


def validate_graph(graph: PregelBase) -> None:
    """Check *graph*.

    Raises:
        ConfigurationError: Something does not fit; the message says what does exist.
    """
    _check_channels(graph)
    triggering: set[str] = set()
    for name, node in graph.nodes.items():
        _check_node(graph, name, node)
        triggering.update(node.triggers)
    inputs = names(graph.input_channels)
    for key in inputs:
        _check_known(graph, key, "the input channel")
    if not triggering.intersection(inputs):
        raise ConfigurationError(
            f"Input channel {', '.join(map(repr, inputs))} is not subscribed to by any node, so "
            "nothing could ever run"
        )
    for key in (*names(graph.output_channels), *names(graph.stream_channels or ())):
        _check_known(graph, key, "the output channel")
    for where in (graph.interrupt_after_nodes, graph.interrupt_before_nodes):
        for name in () if where == "*" else where:
            if name not in graph.nodes:
                raise ConfigurationError(
                    f"a breakpoint names node {name!r}, which does not exist; the nodes are: "
                    f"{', '.join(graph.nodes)}"
                )


def _check_channels(graph: PregelBase) -> None:
    for key, item in graph.channels.items():
        if key in RESERVED:
            raise ConfigurationError(f"Channel name {key!r} is reserved")
        if not isinstance(item, BaseChannel) and managed_value(item) is None:
            raise ConfigurationError(
                f"channel {key!r} is {item!r}, which is neither a channel nor a managed value"
            )


def _check_node(graph: PregelBase, name: str, node: Any) -> None:
    if name in RESERVED:
        raise ConfigurationError(f"Node name {name!r} is reserved")
    if not isinstance(node, PregelNode):
        raise ConfigurationError(
            f"node {name!r} is {node!r}; use a PregelNode, a NodeBuilder or a Channel pipe"
        )
    check_executor(node.executor)
    for key in names(node.channels):
        _check_known(graph, key, f"node {name!r} reads channel")
    for key in node.triggers:
        _check_known(graph, key, f"node {name!r} subscribes to channel")
        if not isinstance(graph.channels[key], BaseChannel):
            raise ConfigurationError(f"node {name!r} cannot be triggered by {key!r}: not a channel")
    for writer in node.writers:
        for key in getattr(writer, "channels", ()):
            _check_known(graph, key, f"node {name!r} writes to channel")


def _check_known(graph: PregelBase, key: str, what: str) -> None:
    if key not in graph.channels:
        known = ", ".join(repr(name) for name in graph.channels if name != TASKS)
        raise ConfigurationError(f"{what} {key!r}, which is not in known channels: {known}")
