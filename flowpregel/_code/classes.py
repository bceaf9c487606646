"""The content of a class: bases, annotations, fields, members and methods.

A class is *importable* if its module has it under its qualified name. In a digest, an
importable class is represented by its source, or, if it belongs to another package, by
its name. A class that a call or a function creates (`create_model`, `namedtuple`,
``Enum("Color", ...)``, a `class` statement in a function) is not importable. Two such
classes may have the same name and mean different things, so they are represented by
their content.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ForwardRef
from weakref import WeakSet

IMPORTABLE_ELSEWHERE: WeakSet[type] = WeakSet()
"""The classes that another process has sent by value, because they belong to its main
program (``__main__``). In that process they are importable.
"""
_HEAP_TYPE = 1 << 9
_IMMUTABLE_TYPE = 1 << 8
"""`_HEAP_TYPE` and this are flags in ``__flags__`` of a class. A class that is defined
in Python has the first and lacks the second.
"""
_DERIVED = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
    types.DynamicClassAttribute,
)
"""The types of class attributes that are derived from ``__slots__`` or from fields, or
come from C code.
"""
_DATA_NAMES = frozenset(
    {
        "__slots__",
        "__attrs_attrs__",
        "__orig_bases__",
        "__total__",
        "__required_keys__",
        "__optional_keys__",
        "__private_attributes__",
    }
)
"""The special attributes, such as ``__slots__``, that are part of the content of a
class. All others are derived from the content, or serve as documentation.
"""
_SKIPPED = frozenset(
    {
        "_abc_impl",
        "_is_protocol",
        "_is_runtime_protocol",
        # Python 3.14 computes the annotations with this function. It is left out,
        # because the annotations themselves are content.
        "__annotate_func__",
    }
)
_GENERATED_BY = frozenset({"dataclasses", "reprlib", "enum", "collections", "typing"})
"""The modules that generate methods for classes. A method from one of these modules is
derived from the fields, members or bases of the class.
"""
_DATACLASS_OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
"""The options of `dataclass` that are content. Python 3.12 stores more of them, but
those are derived from the fields and from `__slots__`.
"""


def is_importable(class_: type) -> bool:
    """Return whether the module of a class has the class under its qualified name."""
    if class_.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) != _HEAP_TYPE:
        return True
    if class_ in IMPORTABLE_ELSEWHERE:
        return True
    value: Any = sys.modules.get(class_.__module__)
    for name in class_.__qualname__.split("."):
        value = getattr(value, "__dict__", {}).get(name)
    return value is class_


def class_of_main(make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """Unpickle a class of another process's main program: return ``make(*arguments)``,
    and remember that the class is importable there.
    """
    class_ = make(*arguments)
    IMPORTABLE_ELSEWHERE.add(class_)
    return class_


def class_content(class_: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each part of a class, in a fixed order.

    Parts that are derived from other parts are left out, such as the methods that
    `dataclass` generates.
    """
    yield "bases", [type(class_), *class_.__bases__]
    yield "annotations", _annotations(class_)
    variables = vars(class_)
    members: Mapping[str, Any] = {}
    if issubclass(class_, enum.Enum):
        members = class_.__members__
        yield "members", [[name, member._value_] for name, member in members.items()]
    if "__dataclass_fields__" in variables:
        yield from _dataclass_content(class_)
    if "__pydantic_decorators__" in variables:
        yield from _pydantic_content(class_)
    for name, value in sorted(variables.items()):
        if name not in members and is_content(class_, name, value):
            # The type of the member is added to its name, because an ordinary method, a
            # static method and a class method may contain the same function.
            yield f"{name} {type(value).__qualname__}", value


def _annotations(class_: type) -> list[Any]:
    """Return the names and annotations of a class, in the order of the fields."""
    try:
        annotations = inspect.get_annotations(class_)
    except NameError:
        # Python 3.14 evaluates annotations only when they are read, which fails if a
        # name in them is undefined. They can then be left out, because the fields of
        # the class are part of the content too.
        return []
    return [[name, _annotation(value)] for name, value in annotations.items()]


def _annotation(value: Any) -> Any:
    """Return an annotation. If it is a string that `typing` has wrapped in a
    `ForwardRef`, return the string.
    """
    return value.__forward_arg__ if isinstance(value, ForwardRef) else value


def is_content(class_: type, name: str, value: Any) -> bool:
    """Return whether an attribute is part of the content of a class.

    The docstring, and attributes that are derived from other parts, are not part of the
    content.

    Args:
        class_: The class.
        name: The name of the attribute.
        value: The value of the attribute in the variables of the class.
    """
    if isinstance(value, _DERIVED) or name in _SKIPPED:
        return False
    function = value
    if isinstance(value, staticmethod | classmethod):
        function = value.__func__
    if isinstance(function, types.FunctionType):
        return not _is_generated(class_, function)
    if name.startswith("__") and name.endswith("__"):
        return name in _DATA_NAMES
    if issubclass(class_, enum.Enum):
        # `_value2member_map_` and similar attributes of an enum are left out, because
        # they are derived from the members.
        return not (name.startswith("_") and name.endswith("_"))
    return True


def _is_generated(class_: type, method: types.FunctionType) -> bool:
    """Return whether a method was generated from the fields or members of a class."""
    module = str(method.__globals__.get("__name__"))
    if module.partition(".")[0] in _GENERATED_BY:
        return True
    if method.__code__.co_filename != "<string>":
        return False
    is_of_namedtuple = module.startswith("namedtuple_")
    return is_of_namedtuple or "__dataclass_params__" in vars(class_)


def _dataclass_content(class_: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields and the options of a dataclass."""
    yield "fields", [_field_content(field) for field in dataclasses.fields(class_)]
    options = class_.__dataclass_params__
    yield "options", [getattr(options, name) for name in _DATACLASS_OPTIONS]


def _field_content(field: Any) -> list[Any]:
    """Return the content of a dataclass field."""
    default: list[Any] = []
    if field.default is not dataclasses.MISSING:
        default.append(field.default)
    factory: list[Any] = []
    if field.default_factory is not dataclasses.MISSING:
        factory.append(field.default_factory)
    flags = [field.init, field.repr, field.hash, field.compare, field.kw_only]
    return [field.name, field.type, default, factory, flags, field.metadata]


def _pydantic_content(class_: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a pydantic model, and the settings of the validators.

    The validators themselves are methods of the class.
    """
    fields = getattr(class_, "__pydantic_fields__", None) or class_.model_fields
    yield "pydantic fields", [list(item) for item in fields.items()]
    kinds = class_.__pydantic_decorators__
    for field in dataclasses.fields(kinds):
        decorators = getattr(kinds, field.name)
        # Only `info` is read, because the `repr` of the decorator contains a memory
        # address, which differs in each process.
        # no mutant: Empty dicts, if they were included, would be alike in all classes.
        if isinstance(decorators, dict) and decorators:
            settings = []
            for name, decorator in decorators.items():
                settings.append([name, decorator.info])
            yield field.name, settings
