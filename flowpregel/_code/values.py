"""What a digest of code asks about a value: whose it is, what it wraps, what it is made
of.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import hashlib
import random
import re
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar
from copy import deepcopy
from pathlib import PurePath
from pickle import PickleBuffer
from typing import Any

from flowpregel._code.tree import constant_text

LIBRARY = __name__.partition(".")[0]
ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...)})
_PLAIN = (type, types.FunctionType, functools.partial, types.MethodType)
"""Kinds of what can be called that nothing is wrapped in."""
IN_ENVIRONMENT = re.compile(r"\b(site|dist)-packages\b")
"""What is in the path of a file of an installed package."""
_SHOWN = frozenset({"datetime", "decimal", "fractions", "uuid", "zoneinfo"})
"""Modules of small values that `repr` shows in full."""
MOST_ITEMS = 1_000_000
"""A container with more is not looked into."""
NAMED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
"""Kinds of functions and attributes in C code, which count by their names."""
FIXED = (
    *NAMED,
    type,
    tuple,
    frozenset,
    types.ModuleType,
    types.FunctionType,
    functools.partial,
    types.MethodType,
    property,
    staticmethod,
    classmethod,
    enum.Enum,
    re.Pattern,
    PurePath,
    range,
    slice,
)
"""Kinds of objects that do not change in place, whatever is in them; classes but for
those that are looked into.
"""
_WITHOUT_CONTENT = frozenset(
    {
        "thread",
        "threading",
        "asyncio",
        "multiprocessing",
        "concurrent",
        "queue",
        "weakref",
        "weakrefset",
        "selectors",
        "logging",
        "structlog",
        "loguru",
    }
)
"""Modules of locks, threads, events, queues, weak references and loggers: of what a
program works with, and no result is made of. An edit has nothing in them to change.
"""


def top_package(module: str) -> str:
    """Return the first part of a module's name."""
    return module.partition(".")[0]


def module_of(value: Any) -> str:
    """Return the module in which *value* was defined, whatever a wrapper says."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__"))
    if isinstance(value, types.ModuleType):
        return value.__name__
    owner = getattr(value, "__self__", None)
    known = getattr(value, "__module__", None) or type(owner).__module__
    return known if isinstance(known, str) else ""


def qualname(value: Any) -> str:
    """Return the name of a definition in its module, or that of a value's type."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_qualname
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def outside_name(value: Any) -> str:
    """Return a name that does not depend on where in its package something is
    defined.
    """
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{top_package(module_of(value)).lstrip('_')}:{qualname(value)}"


def is_outside(class_: type) -> bool:
    """Return whether a class is of the standard library, of this one, or of an
    installed package.

    Its name is all that counts then, and never the version that is installed.
    """
    package = top_package(class_.__module__)
    if package in sys.stdlib_module_names or package == LIBRARY:
        return True
    file = getattr(sys.modules.get(class_.__module__), "__file__", None) or ""
    return IN_ENVIRONMENT.search(file) is not None


def is_ours(value: Any) -> bool:
    """Return whether *value* is defined by this library, or an instance of what is."""
    return LIBRARY in (
        top_package(module_of(value)),
        top_package(type(value).__module__),
    )


def peeled(value: Any) -> Any:
    """Return the function that a task, a method's descriptor or a cache stands for."""
    for _ in range(20):
        if isinstance(value, _PLAIN):
            break
        inner = getattr(value, "__dict__", {}).get("__wrapped__")
        if isinstance(value, staticmethod | classmethod):
            inner = value.__func__
        elif is_ours(value):
            inner = getattr(value, "func", None)
        if not callable(inner):
            break
        value = inner
    return value


def steps_of(graph: Any) -> list[Any]:
    """Return the nodes of a graph: the name of each, and what it calls."""
    nodes = getattr(graph, "nodes", None)
    nodes = nodes if isinstance(nodes, Mapping) else {}
    return [
        part
        for name, node in nodes.items()
        for part in (name, *getattr(node, "steps", ()))
    ]


def home_of(value: Any) -> Any:
    """Return the function or class that says whose code *value* is."""
    value = peeled(value)
    if isinstance(value, types.FunctionType | type):
        return value
    if isinstance(value, functools.partial | types.MethodType):
        return home_of(
            value.func if isinstance(value, functools.partial) else value.__func__
        )
    steps = (
        [step for step in steps_of(value) if callable(step)] if is_ours(value) else []
    )
    return home_of(steps[0]) if steps else type(value)


def cells_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function closes over, by name; None for what is not
    there yet.
    """
    found = {}
    for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = None
    return found


def class_of(code: types.CodeType, variables: Mapping[str, Any]) -> Any:
    """Return the class that a method is defined in, whose other methods it may call."""
    first, *others = code.co_qualname.split(".")
    found = variables.get(first) if others and "<locals>" not in others else None
    for name in others[:-1]:
        found = getattr(found, name, None)
    return found


def wrapped_by(value: Any) -> list[Any]:
    """Return the functions that a wrapper from elsewhere calls."""
    if not isinstance(value, types.FunctionType):
        return []
    inner, registry = vars(value).get("__wrapped__"), vars(value).get("registry")
    found = [inner] if inner is not None else [*cells_of(value).values()]
    found = [each for each in found if isinstance(each, types.FunctionType)]
    # of `functools.singledispatch`, by the type of the argument
    if isinstance(registry, Mapping):
        found += _items(registry)
    return found


def content_of(value: Any) -> list[Any] | None:
    """Return what *value* is made of, besides its type; None if that is not known."""
    kind = type(value)
    for kinds, made_of in _CONTENTS:
        if isinstance(value, kinds):
            return made_of(value)
    if kind in _CONTAINERS:
        return None if len(value) > MOST_ITEMS else _CONTAINERS[kind](value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(value)
    return [repr(value)] if top_package(kind.__module__).lstrip("_") in _SHOWN else None


_first_contents: OrderedDict[tuple[str, int], tuple[Any, Any]] = OrderedDict()
_MOST_CONTENTS = 256


def first_content(name: str, value: Any) -> Any:
    """Return a list, dict or set as it was when it was first asked for under *name*.

    Code that fills a container does not become other code by that.
    """
    if type(value) not in (list, dict, set, deque, defaultdict, Counter, OrderedDict):
        return value
    key = name, id(value)
    known = _first_contents.get(key)
    if known is None or known[0] is not value:
        content = value
        with suppress(Exception):
            content = deepcopy(value)
        # It holds the container, as another one could have the same id.
        known = _first_contents[key] = value, content
        while len(_first_contents) > _MOST_CONTENTS:
            _first_contents.popitem(last=False)
    return known[1]


def reduced(value: Any) -> str | tuple[Any, ...]:
    """Return what pickle would make of an object: how it is made, and what that is
    given.

    Raises:
        Exception: The object has no content that could be pickled.
    """
    kind = type(value)
    if getattr(getattr(value, "flags", None), "c_contiguous", True) is False:
        value = value.copy()  # how an array lies in memory is not its content
    if issubclass(kind, set | frozenset):
        # Pickle has a list in its place, in an order that depends on `hash`.
        return kind, (frozenset(value),), getattr(value, "__dict__", None)
    if isinstance(value, BaseException):
        return _reduced_error(value)
    reduce = copyreg.dispatch_table.get(kind)
    parts: str | tuple[Any, ...] = (
        value.__reduce_ex__(5) if reduce is None else reduce(value)
    )
    return parts


def _reduced_error(error: BaseException) -> str | tuple[Any, ...]:
    """Return what pickle would make of an error, without what is noted in it when it is
    raised.
    """
    # Not by `copyreg`: `tblib`, which Dask imports, has errors pickle causes and
    # tracebacks too.
    parts: str | tuple[Any, ...] = error.__reduce_ex__(5)
    if len(parts) != 3 or not isinstance(parts[2], dict):
        return parts
    state = {name: each for name, each in parts[2].items() if not name.startswith("__")}
    return (*parts[:2], state) if state else parts[:2]


def buffer_text(value: Any) -> str:
    """Return the size and a digest of the bytes of a buffer, such as that of an
    array.
    """
    with memoryview(value) as view:
        data = view if view.c_contiguous else view.tobytes()
        return f"{view.nbytes} bytes {hashlib.sha256(data).hexdigest()}"


def is_record(value: Any) -> bool:
    """Return whether the attributes of an object are all that pickle would keep of
    it.
    """
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind):
        return True
    plain: Any = object
    return (
        kind.__reduce_ex__ is plain.__reduce_ex__
        and kind.__reduce__ is plain.__reduce__
        and kind.__getstate__ is plain.__getstate__
        and kind not in copyreg.dispatch_table
        # A subclass of `dict` or `str` has a content beside its attributes.
        and all(
            base.__module__ != "builtins" or base is object for base in kind.__mro__
        )
    )


def has_no_content(value: Any) -> bool:
    """Return whether *value* is a tool, such as a lock or a logger: no result is made
    of it.
    """
    if any(value is stream for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return True
    packages = {
        top_package(base.__module__).lstrip("_") for base in type(value).__mro__
    }
    logs = all(
        hasattr(type(value), name) for name in ("debug", "info", "warning", "error")
    )
    return logs or LIBRARY in packages or not packages.isdisjoint(_WITHOUT_CONTENT)


def is_too_large(value: Any) -> bool:
    """Return whether *value* is a container with more items than are looked into."""
    return type(value) in _CONTAINERS and len(value) > MOST_ITEMS


def changes_when_used(value: Any) -> bool:
    """Return whether the content of *value* is state: of a file, a generator, random
    numbers.
    """
    kind = type(value)
    return (
        hasattr(kind, "__next__")
        or isinstance(value, random.Random)
        or kind.__module__.startswith(("numpy.random", "io", "_io"))
    )


def is_bound(value: Any) -> bool:
    """Return whether *value* is a method in C code of an object, such as
    ``table.get``.
    """
    if not isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return False
    owner = value.__self__
    return not isinstance(
        owner, types.ModuleType | type | None
    ) and not is_known_by_name(value)


def is_known_by_name(value: Any) -> bool:
    """Return whether a bound method is one of its module's functions, such as
    `random.randint`.
    """
    name = getattr(value, "__name__", "")
    module = sys.modules.get(type(getattr(value, "__self__", None)).__module__)
    return bool(getattr(module, "__dict__", {}).get(name) == value)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Return values of all kinds in an order that depends on nothing else."""
    return sorted(values, key=_sort_text)


def _sort_text(value: Any) -> str:
    kind = type(value).__qualname__
    if type(value) in ATOMS:
        return f"{kind} {constant_text(value)}"
    if isinstance(value, types.FunctionType | type | types.ModuleType):
        return f"{kind} {qualname(value)}"
    content = content_of(value)
    if content is None and is_record(value):
        content = [object.__getstate__(value)]
    return (
        f"{kind} {qualname(value) if content is None else [*map(_sort_text, content)]}"
    )


def _items(value: Mapping[Any, Any]) -> list[Any]:
    return [part for key in _sorted(value) for part in (key, value[key])]


def _default_of(variable: ContextVar[Any]) -> list[Any]:
    try:
        return [Context().run(variable.get)]
    except LookupError:
        return []


_CONTENTS: list[tuple[Any, Callable[[Any], list[Any]]]] = [
    (functools.partial, lambda value: [value.func, value.args, value.keywords]),
    (types.MethodType, lambda value: [value.__func__, value.__self__]),
    (property, lambda value: [value.fget, value.fset, value.fdel]),
    (functools.cached_property, lambda value: [value.func]),
    (enum.Enum, lambda value: [value.name, value.value]),
    (re.Pattern, lambda value: [value.pattern, int(value.flags)]),
    (PurePath | range | slice | bytearray, lambda value: [str(value)]),
    (ContextVar, lambda value: [value.name, _default_of(value)]),
    (memoryview | PickleBuffer, lambda value: [buffer_text(value)]),
]
_CONTAINERS: dict[type, Callable[[Any], list[Any]]] = {
    list: list,
    tuple: list,
    deque: lambda value: [
        *value,
        *([] if value.maxlen is None else [{"maxlen": value.maxlen}]),
    ],
    dict: _items,
    types.MappingProxyType: _items,
    set: _sorted,
    frozenset: _sorted,
}
"""Kinds whose subclasses may hold more than their items."""
