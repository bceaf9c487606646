"""What a class is made of: for classes that cannot be read from a source under their
name.

A class is *importable* if its module and qualified name lead back to it. Such a class
counts by its name, and its code is read from the source of its module. No name leads to
one that a function or a call makes (`create_model`, `namedtuple`, ``Enum("Color",
...)``, a `class` statement in a function): two of them may share a name and mean
different things. They count by their content.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

IMPORTABLE_ELSEWHERE: WeakSet[type] = WeakSet()
"""Classes of another process's main program, which are importable there and came here
by value.
"""
_HEAP_TYPE = 1 << 9
_IMMUTABLE_TYPE = 1 << 8
"""Flags of types: classes of Python code have the first, and lack the second."""
_DERIVED = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
    types.DynamicClassAttribute,
)
"""Kinds of class attributes that `__slots__`, fields or C code bring along."""
_DATA_NAMES = frozenset(
    {
        "__slots__",
        "__dataclass_params__",
        "__attrs_attrs__",
        "__orig_bases__",
        "__total__",
        "__required_keys__",
        "__optional_keys__",
        "__private_attributes__",
    }
)
"""Attributes with two underscores that say what a class is; others are derived or of
people.
"""
_SKIPPED = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol"})
_GENERATED_BY = frozenset({"dataclasses", "reprlib", "enum", "collections"})
"""Modules whose functions follow from the fields or members of a class."""


def is_importable(class_: type) -> bool:
    """Return whether the module and the qualified name of a class lead to it."""
    if class_.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) != _HEAP_TYPE:
        return True
    if class_ in IMPORTABLE_ELSEWHERE:
        return True
    found: Any = sys.modules.get(class_.__module__)
    for name in class_.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is class_


def class_of_main(make: Callable[..., type], given: tuple[Any, ...]) -> type:
    """Return the class that a recipe makes: it is importable in the process that it
    came from.
    """
    class_ = make(*given)
    IMPORTABLE_ELSEWHERE.add(class_)
    return class_


def class_content(class_: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each part of a class, in an order of its own.

    Left out is what follows from the other parts, such as the methods that `dataclass`
    makes.
    """
    yield "bases", [type(class_), *class_.__bases__]
    yield "annotations", _annotations(class_)
    variables = vars(class_)
    members: Mapping[str, Any] = {}
    if issubclass(class_, enum.Enum):
        members = class_.__members__
        yield "members", [[name, member._value_] for name, member in members.items()]
    if "__dataclass_fields__" in variables:
        yield "fields", [_field_content(field) for field in dataclasses.fields(class_)]
    if "__pydantic_decorators__" in variables:
        yield from _pydantic_content(class_)
    for name, value in sorted(variables.items()):
        if name not in members and is_content(class_, name, value):
            # A function, a static one and a class method may wrap the same function.
            yield f"{name} {type(value).__qualname__}", value


def _annotations(class_: type) -> list[Any]:
    """Return the annotations of a class in their order, which is that of its fields."""
    try:
        return [[*pair] for pair in inspect.get_annotations(class_).items()]
    # since Python 3.14 they are evaluated late; the fields have them too
    except NameError:
        return []


def is_content(class_: type, name: str, value: Any) -> bool:
    """Return whether an attribute of a class is neither derived nor written for
    people.
    """
    if isinstance(value, _DERIVED) or name in _SKIPPED:
        return False
    function = (
        value.__func__ if isinstance(value, staticmethod | classmethod) else value
    )
    if isinstance(function, types.FunctionType):
        module = str(function.__globals__.get("__name__"))
        is_generated = function.__code__.co_filename == "<string>" and (
            "__dataclass_params__" in vars(class_) or module.startswith("namedtuple_")
        )
        return not is_generated and module.partition(".")[0] not in _GENERATED_BY
    if name.startswith("__") and name.endswith("__"):
        return name in _DATA_NAMES
    # Of an enumeration, its members by value and the like.
    return not (
        issubclass(class_, enum.Enum) and name.startswith("_") and name.endswith("_")
    )


def _field_content(field: Any) -> list[Any]:
    """Return what counts of a field of a dataclass."""
    default = [] if field.default is dataclasses.MISSING else [field.default]
    factory = (
        [] if field.default_factory is dataclasses.MISSING else [field.default_factory]
    )
    flags = [field.init, field.repr, field.hash, field.compare, field.kw_only]
    return [field.name, field.type, default, factory, flags, field.metadata]


def _pydantic_content(class_: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a pydantic model, how it is configured, and what its
    validators are for.

    The validators themselves are methods of the class.
    """
    fields = getattr(class_, "__pydantic_fields__", None) or class_.model_fields
    yield "pydantic fields", [[name, field] for name, field in fields.items()]
    kinds = class_.__pydantic_decorators__
    for field in dataclasses.fields(kinds):
        decorators = getattr(kinds, field.name)
        # Not the decorator as a whole: it refers to its class by its address in memory.
        # no mutant: empty ones are alike
        if isinstance(decorators, dict) and decorators:
            yield field.name, [[name, each.info] for name, each in decorators.items()]
