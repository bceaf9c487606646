"""The parameters of a node that the run fills in, and what counts as callable."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from flowpregel.graph import StateGraph


def result_of(action: Any) -> Any:
    """Return the state after a graph of the one node *action*."""
    graph = StateGraph(dict).add_node("n", action).add_edge("__start__", "n")
    return graph.compile(executor="inline").invoke({"x": 1})


def variadic_before_writer(
    state: dict[str, int], *config: Any, writer: Any
) -> dict[str, Any]:
    """Have ``*config`` for a name that is filled in, and a writer behind it."""
    return {"config": config, "writes": callable(writer)}


def foreign_before_runtime(
    state: dict[str, int], config: int = 3, *, runtime: Any = None
) -> dict[str, Any]:
    """Have a ``config`` that is a number, and a runtime behind it."""
    return {"config": config, "has_runtime": runtime is not None}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (variadic_before_writer, {"config": (), "writes": True}),
        (foreign_before_runtime, {"config": 3, "has_runtime": True}),
    ],
)
def test_a_parameter_that_is_not_filled_in_hides_none_behind_it(
    action: Any, expected: dict[str, Any]
) -> None:
    """Variadic parameters and other annotations are the function's own."""
    assert expected == result_of(action)


def test_an_object_with_every_attribute_is_called_if_it_can_be() -> None:
    """A Mock has an ``invoke`` too, as soon as somebody asks for it."""
    action = Mock(return_value={"x": 2})

    assert {"x": 2} == result_of(action)
    action.assert_called_once_with({"x": 1})


def test_an_object_that_forwards_its_attributes_is_invoked() -> None:
    """A proxy that cannot be called has the ``invoke`` of what it stands for."""

    class Inner:
        def invoke(self, state: dict[str, int], config: Any = None) -> dict[str, int]:
            return {"x": state["x"] + 1}

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(Inner(), name)

    assert {"x": 2} == result_of(Proxy())
