"""The objects that a function's code refers to, and the check whether it still refers
to the same objects.

If a function is pickled by value, the pickle contains more than the function: the
globals that it names, the values that it closes over, the functions among these values
with their own globals, and the state of instances. `References` is a list of all these
objects, made when the function is pickled. The pickle may be used again as long as
`References.hold` finds that each name, cell, attribute and item still refers to the
same object. The search does not enter immutable objects, or objects that are pickled by
name. A container is compared item by item, by identity: `1`, `1.0` and `True` are
equal, but not the same object.

This check cannot see a change inside an object such as an array, or one that defines
``__reduce__`` or ``__getstate__``. Code that refers to such an object, or to a
container with too many items to compare, has no `References`, and is pickled for each
call.

A worker makes the same list for the code that it has unpickled. If a call has changed
anything in the list, the code is unpickled again for the next call.
"""

from __future__ import annotations

import copyreg
import datetime
import functools
import operator
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields
from enum import Enum, EnumMeta
from itertools import repeat
from logging import Logger
from operator import is_
from pathlib import PurePath
from pickle import PickleBuffer
from types import CellType
from typing import Any, Final, TypeAlias
from uuid import UUID

from flowpregel._pickling.crossing import wrapper_of
from flowpregel._pickling.process_bound import Placeholder, ProcessBound
from flowpregel._pickling.sent_modules import is_sent_by_value
from flowpregel.executors.shared import Shared

_MOST_PARTS: Final = 1024
"""The greatest number of objects to compare. Comparing more would cost as much as
pickling the code again.
"""
_MISSING: Final = object()
_PICKLING: Final = (
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
"""The names of methods with which a class determines how its instances are pickled."""
_HEAP_TYPE: Final = 1 << 9
"""The flag of a class that was made by a ``class`` statement, not in C."""

_IMMUTABLE: Final[frozenset[type]] = frozenset(
    {
        int,
        float,
        complex,
        bool,
        str,
        bytes,
        type(None),
        type(...),
        type(NotImplemented),
        object,
        range,
        slice,
        re.Pattern,
        UUID,
        PickleBuffer,
        types.CodeType,
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        datetime.timezone,
        types.MemberDescriptorType,
        types.GetSetDescriptorType,
        types.WrapperDescriptorType,
        types.MethodDescriptorType,
        types.ClassMethodDescriptorType,
        types.GenericAlias,
        types.UnionType,
    }
)
_BY_NAME: Final = (
    types.ModuleType,
    Logger,
    ContextVar,
    ProcessBound,
    Placeholder,
    Shared,
    PurePath,
)
"""The types whose instances the search does not enter, because they are pickled by name
or never change.
"""
_IMMUTABLE_NAMES: Final = frozenset(
    {
        "decimal.Decimal",
        "fractions.Fraction",
        "zoneinfo.ZoneInfo",
        *(
            f"ipaddress.IPv{version}{kind}"
            for version in "46"
            for kind in ("Address", "Network")
        ),
    }
)
"""The names of immutable classes in modules that few programs import."""
_Read: TypeAlias = Callable[[Any], Iterable[Any]]
_NAMED_CALLS: Final = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


class _ChangesUnseenError(Exception):
    """The error that the code refers to an object that can change without any change of
    the references.
    """


class References:
    """The objects to which a function's code referred when they were recorded."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: list[tuple[_Read, Any, tuple[Any, ...]]] = []
        """Triples: a function that reads the references of an object, this object, and
        the references that the function found.
        """

    @classmethod
    def of(cls, code: Any) -> References | None:
        """Return the references of *code*, or None if it refers to an object that can
        change without any change of the references.
        """
        search = _Search()
        try:
            search.run(code)
        except Exception:  # noqa: BLE001 - a user's object may raise any error
            return None
        return search.references

    def add(self, read: _Read, source: Any) -> tuple[Any, ...]:
        """Record the objects that the function *read* finds in *source*, and return
        them.
        """
        objects = tuple(read(source))
        self._before.append((read, source, objects))
        return objects

    def hold(self) -> bool:
        """Return whether all references still refer to the same objects."""
        try:
            for read, source, before in self._before:
                now = tuple(read(source))
                if len(now) != len(before) or not all(map(is_, now, before)):
                    return False
        except RuntimeError:
            # Another OS thread is changing one of the containers, so the references are
            # regarded as changed.
            return False
        return True


def cell_content(cell: CellType) -> Any:
    """Return the value in the closure cell *cell*, or a unique object if it is
    empty.
    """
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def is_empty(cell: CellType) -> bool:
    """Return whether the closure cell *cell* is empty."""
    return cell_content(cell) is _MISSING


def _contents_of(cells: Iterable[CellType]) -> Iterable[Any]:
    return map(cell_content, cells)


def _parts_of_function(function: types.FunctionType) -> tuple[Any, ...]:
    """Return the parts of *function*, except its globals and its closure."""
    attributes = function.__dict__
    return (
        function.__code__,
        function.__defaults__,
        function.__kwdefaults__,
        attributes,
        *attributes,
        *attributes.values(),
    )


def _parts_of_mapping(mapping: Mapping[Any, Any]) -> tuple[Any, ...]:
    return (*mapping, *mapping.values())


def _globals_of(
    variables_and_names: tuple[Mapping[str, Any], Iterable[str]],
) -> Iterable[Any]:
    variables, names = variables_and_names
    return map(variables.get, names, repeat(_MISSING))


def _attributes_of(instance: Any) -> tuple[type, Any]:
    """Return the class of *instance*, and its ``__dict__`` if it has one."""
    try:
        return type(instance), object.__getattribute__(instance, "__dict__")
    except AttributeError:
        return type(instance), None


def _slots_of(instance: Any) -> Iterator[Any]:
    """Yield the values in the slots of *instance*, as `pickle` finds the slots."""
    for name in vars(copyreg)["_slotnames"](type(instance)):
        try:
            yield object.__getattribute__(instance, name)
        except AttributeError:
            yield _MISSING


class _Search:
    """A search for the references of one piece of code."""

    def __init__(self) -> None:
        self.references = References()
        self._seen: dict[int, Any] = {}
        """The objects that the search has reached, by id. The ids stay unique, because
        this dict keeps the objects alive.
        """
        self._pending: list[Any] = []

    def run(self, code: Any) -> None:
        """Find all references.

        Raises:
            _ChangesUnseenError: The code refers to an object that can change without
                any change of the references.
        """
        self._pending.append(code)
        while self._pending:
            value = self._pending.pop()
            if type(value) in _IMMUTABLE or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if len(self._seen) > _MOST_PARTS:
                raise _ChangesUnseenError
            self._visit(value)

    def _visit(self, value: Any) -> None:
        visit: Callable[[_Search, Any], None] | None = _VISIT_BY_KIND.get(type(value))
        if visit is not None:
            visit(self, value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, Enum):
            self._pending += (type(value), value._value_)
        elif not (isinstance(value, _BY_NAME) or _is_of_immutable_library(value)):
            self._visit_instance(value)

    # ------------------------------------------------ containers

    def _visit_items(self, value: Collection[Any]) -> None:
        if len(value) > _MOST_PARTS:
            raise _ChangesUnseenError
        self._pending += self.references.add(iter, value)

    def _visit_mapping(self, value: dict[Any, Any]) -> None:
        if len(value) > _MOST_PARTS:
            raise _ChangesUnseenError
        self._pending += self.references.add(_parts_of_mapping, value)

    def _visit_tuple(self, value: Iterable[Any]) -> None:
        self._pending += value

    # ------------------------------------------------ functions

    def _visit_function(self, function: types.FunctionType) -> None:
        if found_by_name(function) or wrapper_of(function) is not None:
            return
        # A function that is pickled by value is pickled by cloudpickle, so cloudpickle
        # will be imported in any case.
        from cloudpickle.cloudpickle import _extract_code_globals  # noqa: PLC0415

        # `_parts_of_function` reads the function's ``__dict__`` too, so the search need
        # not visit it.
        self._seen[id(function.__dict__)] = function.__dict__
        self._pending += self.references.add(_parts_of_function, function)
        # In Python 3.14 a name in an annotation may be undefined. The annotations are
        # then pickled as text.
        with suppress(NameError):
            if function.__annotations__:
                self._visit_mapping(function.__annotations__)
        if names := tuple(_extract_code_globals(function.__code__)):
            self._pending += self.references.add(
                _globals_of, (function.__globals__, names)
            )
        if function.__closure__:
            self._pending += self.references.add(_contents_of, function.__closure__)

    def _visit_method(self, method: types.MethodType) -> None:
        self._pending += (method.__func__, method.__self__)

    def _visit_builtin(self, function: types.BuiltinFunctionType) -> None:
        owner = function.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._pending.append(owner)

    def _visit_partial(self, value: functools.partial[Any]) -> None:
        self._pending += (value.func, value.args)
        self._visit_mapping(value.keywords)
        self._visit_mapping(value.__dict__)

    def _visit_wrapped(self, value: Any) -> None:
        self._pending.append(value.__func__)

    def _visit_property(self, value: property) -> None:
        self._pending += (value.fget, value.fset, value.fdel)

    def _visit_named_call(self, value: Any) -> None:
        self._pending += value.__reduce__()[1:]

    # ------------------------------------------------ classes and instances

    def _visit_class(self, kind: type) -> None:
        if not kind.__flags__ & _HEAP_TYPE or found_by_name(kind):
            return
        # `vars` returns a view of the class's present attributes, so those that are set
        # later are compared too.
        attributes = vars(kind)
        self.references.add(_parts_of_mapping, attributes)
        self._pending += (type(kind), *kind.__bases__)
        for name, value in [*attributes.items()]:
            is_of_language = name[:2] == "__" == name[-2:] or name == "_abc_impl"
            is_of_enum = isinstance(kind, EnumMeta) and name[:1] == "_" == name[-1:]
            if isinstance(value, types.FunctionType) or not (
                is_of_language or is_of_enum
            ):
                self._pending.append(value)
            elif type(value) is dict:
                # The contents of a dict of annotations or of dataclass fields are
                # recorded too, so that a change in it is noticed.
                self.references.add(_parts_of_mapping, value)

    def _visit_instance(self, value: Any) -> None:
        kind: Any = type(value)
        parts: Iterable[Any] | None = None
        if kind.__module__.partition(".")[0] == "flowpregel":
            parts = _parts_of_ours(value)
        if parts is None and _is_named_tuple(value):
            parts = (kind, *value)
        if parts is not None:
            self._pending += parts
        elif _is_plain(kind):
            self._visit_attributes(value)
        else:
            raise _ChangesUnseenError

    def _visit_attributes(self, value: Any) -> None:
        self._pending += self.references.add(_attributes_of, value)
        if slots := self.references.add(_slots_of, value):
            self._pending += slots


def found_by_name(value: Any) -> bool:
    """Return whether a function or class is pickled by name, so that another process
    imports it.
    """
    module_name = getattr(value, "__module__", None)
    module = sys.modules.get(module_name) if isinstance(module_name, str) else None
    if module is None or is_sent_by_value(module.__name__):
        return False
    resolved: Any = module
    for part in value.__qualname__.split("."):
        resolved = getattr(resolved, part, None)
    return resolved is value


def _parts_of_ours(value: Any) -> Iterable[Any] | None:
    """Return the parts of an instance of one of flowpregel's immutable classes, such as
    a policy or a task. Return None for an instance of any other class.
    """
    kind: Any = type(value)
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return [getattr(value, entry.name, None) for entry in fields(kind)]
    if "__reduce__" not in vars(kind):
        return None
    # `pickle` stores only what `__reduce__` returns, so only these parts are compared.
    reduced = kind.__reduce__(value)
    return () if isinstance(reduced, str) else reduced[1]


def _is_named_tuple(value: Any) -> bool:
    """Return whether *value* is a named tuple without further attributes."""
    kind: Any = type(value)
    return (
        isinstance(value, tuple)
        and hasattr(kind, "_fields")
        and not kind.__dictoffset__
    )


def _is_plain(kind: Any) -> bool:
    """Return whether `pickle` stores nothing but the class and the attributes of an
    instance of *kind*.
    """
    if kind in copyreg.dispatch_table:
        return False
    for name in _PICKLING:
        if getattr(kind, name, None) is not getattr(object, name, None):
            return False
    # An instance of a class written in C may have a hidden state, so only `object` may
    # be a base class written in C.
    return all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)


def _is_of_immutable_library(value: Any) -> bool:
    """Return whether *value* is an immutable object of `typing`, of a class in
    `_IMMUTABLE_NAMES`, or a scalar, dtype or ufunc of NumPy.
    """
    kind = type(value)
    full_name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "typing" or full_name in _IMMUTABLE_NAMES:
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, (numpy.generic, numpy.dtype, numpy.ufunc)
    )


_VISIT_BY_KIND: Final[dict[type, Callable[[_Search, Any], None]]] = {
    list: _Search._visit_items,  # noqa: SLF001 - the table belongs to the class
    set: _Search._visit_items,  # noqa: SLF001
    tuple: _Search._visit_tuple,  # noqa: SLF001
    frozenset: _Search._visit_tuple,  # noqa: SLF001
    staticmethod: _Search._visit_wrapped,  # noqa: SLF001
    classmethod: _Search._visit_wrapped,  # noqa: SLF001
    **dict.fromkeys(_NAMED_CALLS, _Search._visit_named_call),  # noqa: SLF001
    dict: _Search._visit_mapping,  # noqa: SLF001
    types.FunctionType: _Search._visit_function,  # noqa: SLF001
    types.MethodType: _Search._visit_method,  # noqa: SLF001
    types.BuiltinFunctionType: _Search._visit_builtin,  # noqa: SLF001
    functools.partial: _Search._visit_partial,  # noqa: SLF001
    property: _Search._visit_property,  # noqa: SLF001
}
