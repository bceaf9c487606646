"""Digests of code: what the parts of a class, a method and a graph add to them."""

from __future__ import annotations

import sys
from dataclasses import field, make_dataclass
from typing import Any

import pytest

from flowpregel._code.digest import code_digest, code_of
from flowpregel._code.values import home_of, is_outside
from flowpregel._pickling.digest import digest_of
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


def test_the_digests_of_the_last_thousand_bodies_are_kept(load: Import) -> None:
    """Not of all that a program makes, such as the closures of a loop."""
    module = load("def made():\n    def body(): ...\n    return body\n")
    bodies = [module.made() for _ in range(1_001)]
    first = code_of(bodies[0])
    for body in bodies[1:-1]:
        code_of(body)
    assert first is code_of(bodies[0])

    code_of(bodies[-1])

    assert first is not code_of(bodies[0])


@pytest.mark.parametrize("name", ["helper", "LIMIT"])
def test_a_name_that_refers_to_another_object_is_noticed_if_both_are_still_there(
    load: Import, name: str
) -> None:
    """A function or a constant, which somebody else refers to as well."""
    module = load(
        """
        LIMIT, other_LIMIT = (1,), (2,)

        def helper():
            return LIMIT

        def other_helper():
            return ()

        def body():
            return helper()

        all_of_them = [LIMIT, helper]
        """
    )
    first = code_of(module.body)

    setattr(module, name, getattr(module, f"other_{name}"))

    assert first.digest != code_of(module.body).digest


def test_the_home_of_a_graph_is_that_of_its_first_node() -> None:
    """By which is decided whose code it is."""

    def first(state: dict[str, Any]) -> None: ...
    def second(state: dict[str, Any]) -> None: ...

    graph = StateGraph(dict).add_node("first", first).add_node("second", second)
    app = graph.add_edge(START, "first").add_edge("first", "second").compile()

    assert first is home_of(app)


def test_a_function_that_another_one_makes_belongs_to_no_class(load: Import) -> None:
    """Whatever the name of that one refers to, such as what a decorator made of it."""
    text = """
        class Anything:
            limit = {limit}

            def __init__(self, function):
                self.inner = function()

            def __getattr__(self, name):
                return Anything

        @Anything
        def make():
            def inner():
                return 1
            return inner

        inner = make.inner
    """
    one, other = (load(text.format(limit=limit)).inner for limit in (1, 2))

    assert code_digest(one).digest == code_digest(other).digest


def test_the_source_of_a_body_shows_tasks_in_its_constants_but_not_tasks(
    load: Import,
) -> None:
    """The code that calls a task shows its name already."""
    module = load(
        """
        from flowpregel import task

        @task
        def work(x):
            return x

        STEPS = [work]

        def body(x):
            return work(x), [step(x) for step in STEPS]
        """
    )

    source = code_of(module.body).source

    assert ":STEPS = " in source
    assert ":work = " not in source


def test_classes_of_packages_are_outside_and_those_of_the_user_are_not(
    load: Import,
) -> None:
    """Those of the library itself are outside as well."""
    outside = [is_outside(class_) for class_ in (dict, StateGraph, pytest.Item)]

    assert [True] * 3 == outside
    assert not is_outside(load("class Own: ...").Own)


GENERIC = """
T = {}
type Number = int | {}
type Nested = dict[str, Nested] | Number

def number(x):
    return isinstance(x, Number.__value__), Nested

class Stack[T](list[T]):
    items: list[T]

    def first[V](self, x: V) -> T:
        return self.items[0], V

def stack():
    return Stack
"""
newer = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="Python 3.12 is the first with type parameters"
)


@newer
def test_an_alias_counts_by_the_type_that_it_stands_for(load: Import) -> None:
    modules = [load(GENERIC.format(1, name)) for name in ("str", "str", "float")]

    first, same, edited = (code_digest(module.number).digest for module in modules)
    digests = [digest_of(module.Number) for module in modules]

    assert first == same != edited
    assert digests[0] == digests[1] != digests[2]


@newer
def test_a_type_parameter_is_no_global_of_the_same_name(load: Import) -> None:
    modules = [load(GENERIC.format(number, "str")) for number in (1, 2)]

    assert 1 == len({code_digest(module.stack).digest for module in modules})
