"""`References`: whether all that code refers to is still the very same."""

from __future__ import annotations

import array
import enum
import functools
import logging
import operator
import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from flowpregel._pickling.crossing import dumps
from flowpregel.executors.processes.wire.references import References
from flowpregel.func import task
from flowpregel.policies import RetryPolicy

Changed = tuple[Any, Callable[[], object]]
"""Some code, and what changes something that it refers to."""


def a_name_of_the_body() -> Changed:
    factor: Any = 1

    def change() -> None:
        nonlocal factor
        factor = True

    return lambda x: factor * x, change


def an_item_of_a_list() -> Changed:
    table = [1, [2]]
    return lambda: table, lambda: operator.setitem(table[1], 0, 2.0)  # type: ignore[call-overload]


def the_items_of_a_dict() -> Changed:
    table = {"a": 1}
    return lambda: table, lambda: table.update(b=2)


def a_key_of_a_dict() -> Changed:
    table = {1: "a"}

    def change() -> None:
        del table[1]
        table[True] = "a"

    return lambda: table, change


def an_item_of_a_set() -> Changed:
    table = {1, 2}

    def change() -> None:
        table.discard(1)
        table.add(True)

    return lambda: table, change


def a_name_of_a_helper() -> Changed:
    factor = 1

    def change() -> None:
        nonlocal factor
        factor = 2

    def helper() -> int:
        return factor

    return lambda: helper(), change


def the_code() -> Changed:
    def code() -> int:
        return 1

    return code, lambda: setattr(code, "__code__", (lambda: 2).__code__)


def the_defaults() -> Changed:
    def code(x: int = 1) -> int:
        return x

    return code, lambda: setattr(code, "__defaults__", (2,))


def a_keyword_default() -> Changed:
    def code(*, x: int = 1) -> int:
        return x

    return code, lambda: operator.setitem(code.__kwdefaults__, "x", 2)


def an_attribute_of_the_function() -> Changed:
    def code() -> int:
        return 1

    return code, lambda: setattr(code, "calls", 1)


def a_global() -> Changed:
    variables: dict[str, Any] = {"__name__": "__main__", "K": 1}
    exec("def code():\n    return helper() + K\ndef helper():\n    return L", variables)
    return variables["code"], lambda: variables.update(L=2)


def a_global_of_the_main_program() -> Changed:
    variables: dict[str, Any] = {"__name__": "__main__", "K": 1}
    exec("def code():\n    return K", variables)
    return variables["code"], lambda: variables.update(K=1.0)


class Model:
    """Has a dict."""

    def __init__(self) -> None:
        self.w: Any = 1

    def predict(self) -> Any:
        return self.w


class Slotted:
    """Has a slot, and another that is empty."""

    __slots__ = ("other", "w")

    def __init__(self) -> None:
        self.w = 1

    def __call__(self) -> int:
        return self.w


def the_object_of_a_method() -> Changed:
    model = Model()
    return model.predict, lambda: setattr(model, "w", 1.0)


def a_new_attribute_of_an_object() -> Changed:
    model = Model()
    return model.predict, lambda: setattr(model, "bias", 1)


def the_dict_of_an_object() -> Changed:
    model = Model()
    return model.predict, lambda: setattr(model, "__dict__", {"w": 1})


def a_slot() -> Changed:
    code = Slotted()
    return code, lambda: setattr(code, "w", True)


def an_empty_slot() -> Changed:
    code = Slotted()
    return code, lambda: setattr(code, "other", 1)


def the_class_of_an_object() -> Changed:
    model = Model()
    return model.predict, lambda: setattr(
        model, "__class__", type("Other", (Model,), {})
    )


def an_attribute_of_a_local_class() -> Changed:
    class Local(Model):
        size = 1

        def predict(self) -> int:
            return self.size

    return Local().predict, lambda: setattr(Local, "size", 2)


def a_method_of_a_local_class() -> Changed:
    @dataclass
    class Point:
        x: int

        @property
        def near(self) -> int:
            return self.x

    return lambda: Point(1).near, lambda: setattr(Point, "near", 2)


def a_global_of_a_property() -> Changed:
    near = 1

    class Point:
        @property
        def near(self) -> int:
            return near

    def change() -> None:
        nonlocal near
        near = 2

    return Point, change


def a_keyword_of_a_partial() -> Changed:
    code = functools.partial(int, base=2)
    return code, lambda: code.keywords.update(base=3)


CHANGES = [
    a_name_of_the_body,
    an_item_of_a_list,
    the_items_of_a_dict,
    a_key_of_a_dict,
    an_item_of_a_set,
    a_name_of_a_helper,
    the_code,
    the_defaults,
    a_keyword_default,
    an_attribute_of_the_function,
    a_global,
    a_global_of_the_main_program,
    the_object_of_a_method,
    a_new_attribute_of_an_object,
    the_dict_of_an_object,
    a_slot,
    an_empty_slot,
    the_class_of_an_object,
    an_attribute_of_a_local_class,
    a_method_of_a_local_class,
    a_global_of_a_property,
    a_keyword_of_a_partial,
]


@pytest.mark.parametrize("make", CHANGES, ids=[each.__name__ for each in CHANGES])
def test_a_change_is_seen(make: Callable[[], Changed]) -> None:
    """They hold, also when the code is pickled and called, until something changes."""
    code, change = make()
    references = References.of(code)
    assert references is not None
    dumps(code)
    assert references.hold()

    change()

    assert not references.hold()


class Color(enum.Enum):
    """Is found by its name."""

    RED = 1


class Pair(NamedTuple):
    """Does not change."""

    left: int
    right: Any


class Reduced:
    """Decides itself what is pickled."""

    def __reduce__(self) -> Any:
        return Reduced, ()


class Stately:
    """Decides itself what is pickled of its state."""

    def __getstate__(self) -> Any:
        return {}


class Numbers(list[int]):
    """Is a list, and more."""


@pytest.mark.parametrize(
    "value",
    [
        bytearray(1),
        array.array("i", [1]),
        Reduced(),
        Stately(),
        Numbers(),
        [Numbers()],
        Pair(1, bytearray(1)),
        types.SimpleNamespace(a=1),
        [*range(10_000)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_code_that_can_change_unseen_has_none(value: Any) -> None:
    """It is packed for each call."""
    assert References.of(lambda: value) is None


def _module_level() -> None:
    pass


@task
def _of_module() -> None:
    pass


@pytest.mark.parametrize(
    "value",
    [
        1,
        "text",
        (1, (2,)),
        Color.RED,
        Pair(1, "b"),
        RetryPolicy(),
        _of_module,
        task(lambda: None),
        operator,
        logging.getLogger("a"),
        _module_level,
        Model,
        functools.reduce,
        operator.itemgetter(1),
        "a".upper,
        frozenset({1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_change_or_has_a_name_holds(value: Any) -> None:
    """Functions and classes of a module go by name, so that nothing in them is
    compared.
    """
    references = References.of((value, lambda: value))

    assert references is not None
    assert references.hold()


def test_an_object_is_not_looked_into_twice() -> None:
    """Functions and classes refer to each other."""

    class Node:
        def make(self) -> Any:
            return Node(), visit

    def visit(node: Any) -> Any:
        return visit(Node())

    references = References.of(visit)

    assert references is not None
    assert references.hold()


def test_a_container_that_changes_size_meanwhile_does_not_hold() -> None:
    """Another OS thread may add to it while it is compared."""
    table = {"a": 1}
    references = References.of(lambda: table)
    assert references is not None

    class Growing:
        def __iter__(self) -> Any:
            for each in table:
                table[each + "b"] = 1
                yield each

    references._before.append((iter, Growing(), ("a",)))  # noqa: SLF001 - no other way to be in time

    assert not references.hold()


def test_code_in_a_worker_is_compared_as_in_the_program() -> None:
    """What was unpickled has references of its own."""
    factor, table = 2, {"a": 1}
    code = pickle.loads(dumps(lambda x: (factor * x, table)))
    references = References.of(code)
    assert references is not None
    assert references.hold()

    code(1)[1]["a"] = 2

    assert not references.hold()
