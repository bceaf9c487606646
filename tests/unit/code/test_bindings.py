"""The objects that names refer to: whether they are those of before."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from flowpregel._code.bindings import Bindings


class Value:
    """An object that only the module refers to."""


def noted(module: ModuleType, *names: str) -> Bindings:
    """Return the bindings of *names* in a module."""
    bindings = Bindings()
    for name in names:
        bindings.note_name(module, vars(module), name, name)
    bindings.close(())
    return bindings


@pytest.fixture
def module() -> ModuleType:
    """Return a module with a value."""
    module = ModuleType("module")
    vars(module).update(value=Value(), number=1)
    return module


def test_names_hold_while_each_refers_to_its_object(module: ModuleType) -> None:
    """Other names of the module do not count."""
    bindings = noted(module, "value", "number", "missing")
    assert bindings.hold()

    vars(module)["other"] = Value()
    assert bindings.hold()

    vars(module)["missing"] = Value()
    assert not bindings.hold()


def test_an_object_with_the_identity_of_one_that_is_gone_is_another_one(
    module: ModuleType,
) -> None:
    """Python uses the memory of an object again."""
    bindings = noted(module, "value")
    identity = id(vars(module)["value"])

    vars(module)["value"] = None
    values: list[Any] = []
    while len(values) < 1_000 and vars(module)["value"] is None:
        value = Value()
        values.append(value)
        if id(value) == identity:
            vars(module)["value"] = value

    assert not bindings.hold()


def test_names_of_a_module_that_is_gone_cannot_be_read_again() -> None:
    """Where names alone are compared, they are left out."""
    module = ModuleType("module")
    vars(module)["number"] = 1
    bindings = noted(module, "number")
    assert bindings.hold()

    del module

    assert not bindings.hold()
    assert bindings.names_hold()
