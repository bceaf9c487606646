"""An error handler that takes too long is stopped, as any node."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypedDict

import pytest

from flowpregel.errors import NodeTimeoutError
from flowpregel.executors import ProcessExecutor
from flowpregel.graph import START, StateGraph

LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""


class State(TypedDict, total=False):
    """What the graphs hold."""

    value: int


def fail(_: State) -> State:
    raise OSError("no")


async def fail_later(_: State) -> State:
    raise OSError("no")


def handle(_: State) -> State:
    time.sleep(LONG)
    return {"value": 1}


async def handle_later(_: State) -> State:
    await asyncio.sleep(LONG)
    return {"value": 1}


def graph_of(action: Any, handler: Any) -> Any:
    """Return a graph of one node and its handler, with a timeout for both."""
    builder = StateGraph(State).add_node("node", action, error_handler=handler)
    return builder.add_edge(START, "node").set_node_defaults(timeout=0.2)


def test_an_async_handler_is_stopped() -> None:
    """The run fails with its timeout, not with what it was to handle."""
    app = graph_of(fail_later, handle_later).compile(executor="inline")

    with pytest.raises(NodeTimeoutError, match="__error_handler__node"):
        asyncio.run(app.ainvoke({"value": 0}))


@pytest.mark.slow
def test_a_handler_in_a_worker_is_stopped() -> None:
    """Its worker too, if need be."""
    with ProcessExecutor(1) as pool:
        app = graph_of(fail, handle).compile(executor=pool)

        with pytest.raises(NodeTimeoutError, match="__error_handler__node"):
            app.invoke({"value": 0})
