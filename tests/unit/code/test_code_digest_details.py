"""Digests of code: what the parts of a class, a method and a graph add to them."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import Any

import pytest

from flowpregel._code.digest import code_digest, code_of
from flowpregel._code.values import home_of
from flowpregel.graph import START, StateGraph
from tests.unit.code.code_packages import Import, load

__all__ = ["load"]  # a fixture

METHODS = """
    class Outer:
        def unrelated(self):
            return {outer}

        class Inner:
            def work(self):
                return self.helper()

            def helper(self):
                return {inner}

    class Alone:
        def work(self):
            return self.helper()

        def helper(self):
            return {alone}
"""


def methods(load: Import, **changed: int) -> Any:
    """Return a module with classes, of whose numbers some are changed."""
    return load(METHODS.format(**{"outer": 1, "inner": 1, "alone": 1, **changed}))


def test_the_other_methods_of_its_class_count_for_a_method(load: Import) -> None:
    """It may call them by ``self``, whatever object it is called with."""
    one, other = methods(load), methods(load, alone=2)

    assert code_digest(one.Alone.work).digest != code_digest(other.Alone.work).digest
    assert (
        code_digest(one.Outer.Inner.work).digest
        == code_digest(other.Outer.Inner.work).digest
    )


def test_the_class_of_a_method_is_the_innermost(load: Import) -> None:
    """The methods of the class around that do not count."""
    one, outer, inner = methods(load), methods(load, outer=2), methods(load, inner=2)

    digests = [
        code_digest(each.Outer.Inner.work).digest for each in (one, outer, inner)
    ]

    assert digests[0] == digests[1] != digests[2]


def made(value: Any, *, slots: bool) -> type:
    """Return a class that no module has, with a field of that default."""
    return make_dataclass("Made", [("x", int, field(default=value))], slots=slots)


@pytest.mark.parametrize("slots", [True, False])
def test_the_default_of_a_field_counts(slots: bool) -> None:
    """With slots it is no attribute of the class."""
    digests = {code_digest(made(value, slots=slots)).digest for value in (1, 2, 1)}

    assert 2 == len(digests)


@pytest.mark.parametrize("name", ["limit", "limit__", "_limit", "_limit_"])
def test_an_attribute_of_a_class_counts_whatever_its_name(name: str) -> None:
    """Unless it is one of the language's own."""
    digests = {
        code_digest(type("Made", (), {name: value})).digest for value in (1, 2, 1)
    }

    assert 2 == len(digests)


def test_the_digest_of_a_body_is_taken_again_when_a_name_means_something_else(
    load: Import,
) -> None:
    """And not before."""
    module = load("def helper():\n    return 1\n\ndef body():\n    return helper()\n")
    first = code_of(module.body)
    assert first is code_of(module.body)

    module.helper = len

    assert first.digest != code_of(module.body).digest


def test_the_home_of_a_graph_is_that_of_its_first_node() -> None:
    """By which is decided whose code it is."""

    def first(state: dict[str, Any]) -> None: ...
    def second(state: dict[str, Any]) -> None: ...

    graph = StateGraph(dict).add_node("first", first).add_node("second", second)
    app = graph.add_edge(START, "first").add_edge("first", "second").compile()

    assert first is home_of(app)
