"""Functions that read the parts of a value for a digest of code.

They find the module in which the value is defined, the functions that it wraps, and its
content.
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
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar
from copy import deepcopy
from functools import partial
from pathlib import PurePath
from pickle import PickleBuffer
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from flowpregel._code.tree import constant_text

LIBRARY = __name__.partition(".")[0]
ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...)})
_PLAIN = (type, types.FunctionType, functools.partial, types.MethodType)
"""The types of callables that wrap no other function."""
_ALIAS: Any = getattr(typing, "TypeAliasType", ())
"""The type of ``type`` statements, which Python 3.12 has introduced."""
_TYPE_FORMS: dict[Any, str] = {
    Union: "Union",
    types.UnionType: "Union",
    Literal: "Literal",
    Annotated: "Annotated",
}
IN_ENVIRONMENT = re.compile(r"\b(site|dist)-packages\b")
"""A pattern for paths of files of installed packages, all of which are in a directory
such as ``site-packages``.
"""
_SHOWN = frozenset({"datetime", "decimal", "fractions", "uuid", "zoneinfo"})
"""The modules of types, such as `decimal.Decimal`, whose `repr` shows the whole content
of a value.
"""
MOST_ITEMS = 1_000_000
"""The greatest length of a container whose content is read."""
NAMED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
"""The types of functions and attributes that are written in C. They are represented by
their names.
"""
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
"""The types of objects that cannot be changed in place, although their items may be.
There is one exception: a class whose content is read counts as changeable (see
`CodeReader`), although the type of classes is listed.
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
"""The modules of locks, OS threads, events, queues, weak references and loggers. The
result of a function does not depend on the content of such objects.
"""


def top_package(module: str) -> str:
    """Return the first part of a module's name."""
    return module.partition(".")[0]


def module_of(value: Any) -> str:
    """Return the name of the module in which *value* was defined.

    The `__module__` of a function is not read, because a wrapper may have set it.
    """
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__"))
    if isinstance(value, types.ModuleType):
        return value.__name__
    owner = getattr(value, "__self__", None)
    known = getattr(value, "__module__", None) or type(owner).__module__
    return known if isinstance(known, str) else ""


def qualname(value: Any) -> str:
    """Return the qualified name of a definition, or of the type of another value."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_qualname
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def outside_name(value: Any) -> str:
    """Return the top-level package and the qualified name of *value*, without the
    submodules between them.
    """
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{top_package(module_of(value)).lstrip('_')}:{qualname(value)}"


def is_outside(class_: type) -> bool:
    """Return whether a class belongs to the standard library, to flowpregel or to an
    installed package.

    Such a class is represented by its name, whatever version is installed.
    """
    package = top_package(class_.__module__)
    if package in sys.stdlib_module_names or package == LIBRARY:
        return True
    file = getattr(sys.modules.get(class_.__module__), "__file__", None) or ""
    return IN_ENVIRONMENT.search(file) is not None


def is_ours(value: Any) -> bool:
    """Return whether *value* is defined by flowpregel, or is an instance of a class
    that flowpregel defines.
    """
    return LIBRARY in (
        top_package(module_of(value)),
        top_package(type(value).__module__),
    )


def peeled(value: Any) -> Any:
    """Return the function inside a task, a static or class method, or a wrapper such as
    `functools.lru_cache`.
    """
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
    """Return the names of the nodes of a graph, each followed by the functions of the
    node.
    """
    nodes = getattr(graph, "nodes", None)
    steps: list[Any] = []
    if isinstance(nodes, Mapping):
        for name, node in nodes.items():
            steps += [name, *getattr(node, "steps", ())]
    return steps


def home_of(value: Any) -> Any:
    """Return the function or class whose module is regarded as the module of
    *value*.
    """
    value = peeled(value)
    if isinstance(value, types.FunctionType | type):
        return value
    if isinstance(value, functools.partial):
        return home_of(value.func)
    if isinstance(value, types.MethodType):
        return home_of(value.__func__)
    if is_ours(value):
        for step in steps_of(value):
            if callable(step):
                return home_of(step)
    return type(value)


def cells_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function closes over, by name.

    The value of an empty cell is None.
    """
    names = function.__code__.co_freevars
    contents: dict[str, Any] = {}
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:
            contents[name] = None
    return contents


def class_of(code: types.CodeType, variables: Mapping[str, Any]) -> Any:
    """Return the class whose body defines a method, or None for any other function.

    A method depends on its class, because it may call other methods of the class.

    Args:
        code: The code of a function.
        variables: The variables of the module.
    """
    outer, *names = code.co_qualname.split(".")
    if not names or "<locals>" in names:
        return None
    class_ = variables.get(outer)
    for name in names[:-1]:
        class_ = getattr(class_, name, None)
    return class_


def wrapped_by(value: Any) -> list[Any]:
    """Return the functions that *value*, a wrapper from another package, calls."""
    if not isinstance(value, types.FunctionType):
        return []
    attributes = vars(value)
    inner = attributes.get("__wrapped__")
    candidates = [inner]
    if inner is None:
        candidates = list(cells_of(value).values())
    functions: list[Any] = [
        candidate
        for candidate in candidates
        if isinstance(candidate, types.FunctionType)
    ]
    # The functions in the registry of a `functools.singledispatch` function belong to
    # it too.
    registry = attributes.get("registry")
    if isinstance(registry, Mapping):
        functions += _items(registry)
    return functions


def type_form(value: Any) -> tuple[str, list[Any]] | None:
    """Return the name and the parts of a union, ``Literal[...]``, ``Annotated[...]`` or
    alias (``type Number = int``), or None for any other value.

    The versions of Python represent such a type by objects of different classes. Pickle
    would store the name of an alias only.
    """
    # The module is checked first, because `get_origin` may run code of other objects.
    if type(value).__module__ not in {"types", "typing"}:
        return None
    if isinstance(value, _ALIAS):
        # The value of a `type` statement is evaluated when it is read, which raises a
        # NameError if a name in it is undefined.
        with suppress(NameError):
            return "TypeAlias", [value.__value__]
        return None
    name = _TYPE_FORMS.get(get_origin(value))
    return None if name is None else (name, list(get_args(value)))


def content_of(value: Any) -> list[Any] | None:
    """Return the parts of *value* that are its content, or None if no rule of this
    module, such as `_CONTAINERS`, fits its type.

    The type itself is not among the parts.
    """
    kind = type(value)
    for kinds, parts_of in _CONTENTS:
        if isinstance(value, kinds):
            return parts_of(value)
    if kind in _CONTAINERS:
        return None if is_too_large(value) else _CONTAINERS[kind](value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(value)
    if top_package(kind.__module__).lstrip("_") in _SHOWN:
        return [repr(value)]
    return None


_first_contents: OrderedDict[tuple[str, int], tuple[Any, Any]] = OrderedDict()
_MOST_CONTENTS = 256


def first_content(name: str, value: Any) -> Any:
    """Return a copy of *value*, if it is a container: the copy that was made at the
    first call with this *name* and this object.

    Code may add items to a list, dict or set of its own. This must not change the
    digest of the code, so the copy is digested. Any other value is returned itself.
    """
    if type(value) not in (list, dict, set, deque, defaultdict, Counter, OrderedDict):
        return value
    key = name, id(value)
    known = _first_contents.get(key)
    if known is None or known[0] is not value:
        content = value
        with suppress(Exception):
            content = deepcopy(value)
        # The cache entry keeps a reference to the container. So no other object can get
        # its id, which is the key.
        known = _first_contents[key] = value, content
        while len(_first_contents) > _MOST_CONTENTS:
            _first_contents.popitem(last=False)
    return known[1]


def reduced(value: Any) -> str | tuple[Any, ...]:
    """Return the parts of an object that pickle would store: a function that creates
    the object, the arguments of this function, and the state.

    Raises:
        Exception: The object cannot be pickled.
    """
    kind = type(value)
    if getattr(getattr(value, "flags", None), "c_contiguous", True) is False:
        # The memory layout of an array is not content, so a contiguous copy is read.
        value = value.copy()
    if issubclass(kind, set | frozenset):
        # The items of a set are returned as a frozenset, which is later written in a
        # fixed order. Pickle would write a set as a list, in an order that depends on
        # `hash`.
        return kind, (frozenset(value),), getattr(value, "__dict__", None)
    if isinstance(value, BaseException):
        return _reduced_error(value)
    reduce = copyreg.dispatch_table.get(kind)
    parts: str | tuple[Any, ...]
    parts = value.__reduce_ex__(5) if reduce is None else reduce(value)
    return parts


def _reduced_error(error: BaseException) -> str | tuple[Any, ...]:
    """Return the parts of an error that pickle would store, except its traceback, cause
    and notes.
    """
    # Reducers in `copyreg` are not used. Those of `tblib`, which Dask imports, include
    # causes and tracebacks, which would make the digests of equal errors differ.
    parts: str | tuple[Any, ...] = error.__reduce_ex__(5)
    if len(parts) != 3 or not isinstance(parts[2], dict):
        return parts
    state = {
        name: value for name, value in parts[2].items() if not name.startswith("__")
    }
    if not state:
        return parts[:2]
    return (*parts[:2], state)


def buffer_text(value: Any) -> str:
    """Return a string with the size and a digest of the bytes of a buffer."""
    with memoryview(value) as view:
        data = view if view.c_contiguous else view.tobytes()
        return f"{view.nbytes} bytes {hashlib.sha256(data).hexdigest()}"


def is_record(value: Any) -> bool:
    """Return whether pickle would store nothing of an object but its attributes."""
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind):
        return True
    plain: Any = object
    return (
        kind.__reduce_ex__ is plain.__reduce_ex__
        and kind.__reduce__ is plain.__reduce__
        and kind.__getstate__ is plain.__getstate__
        and kind not in copyreg.dispatch_table
        # An instance of a subclass of a type such as `dict` or `str` has content in
        # addition to its attributes.
        and all(
            base.__module__ != "builtins" or base is object for base in kind.__mro__
        )
    )


def has_no_content(value: Any) -> bool:
    """Return whether *value* is a lock, a standard stream, a logger or another such
    object, on whose content no result depends.
    """
    if any(value is stream for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return True
    kind = type(value)
    if all(hasattr(kind, method) for method in ("debug", "info", "warning", "error")):
        return True
    packages = {top_package(base.__module__).lstrip("_") for base in kind.__mro__}
    return LIBRARY in packages or not packages.isdisjoint(_WITHOUT_CONTENT)


def is_too_large(value: Any) -> bool:
    """Return whether *value* is a container with too many items to read."""
    return type(value) in _CONTAINERS and len(value) > MOST_ITEMS


def changes_when_used(value: Any) -> bool:
    """Return whether *value* changes when it is used: a file, generator or source of
    random numbers.
    """
    kind = type(value)
    return (
        hasattr(kind, "__next__")
        or isinstance(value, random.Random)
        or kind.__module__.startswith(("numpy.random", "io", "_io"))
    )


def is_bound(value: Any) -> bool:
    """Return whether *value* is a method written in C that is bound to an object, such
    as ``table.get``, and not a function of a module.
    """
    if not isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return False
    if isinstance(value.__self__, types.ModuleType | type | None):
        return False
    return not is_known_by_name(value)


def is_known_by_name(value: Any) -> bool:
    """Return whether a module offers a bound method under a name, as `random` does with
    `randint`.
    """
    name = getattr(value, "__name__", "")
    module = sys.modules.get(type(getattr(value, "__self__", None)).__module__)
    return bool(getattr(module, "__dict__", {}).get(name) == value)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Return values of any types, in an order that depends only on their content."""
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
    if content is None:
        return f"{kind} {qualname(value)}"
    return f"{kind} {[_sort_text(part) for part in content]}"


def _items(value: Mapping[Any, Any]) -> list[Any]:
    """Return the keys and values of a mapping, in the order of the keys' content."""
    items: list[Any] = []
    for key in _sorted(value):
        items += [key, value[key]]
    return items


def _deque_content(value: deque[Any]) -> list[Any]:
    if value.maxlen is None:
        return list(value)
    return [*value, {"maxlen": value.maxlen}]


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
    deque: _deque_content,
    dict: _items,
    types.MappingProxyType: _items,
    set: _sorted,
    frozenset: _sorted,
}
"""Functions that return the content of a container, by its type.

They apply to exactly these types, because an instance of a subclass may have attributes
in addition to its items.
"""


def target_of_partial(target: Any) -> Any:
    """Return the callable inside a `functools.partial`, or *target* itself if it is not
    a partial.

    Nested partials are unwrapped too.
    """
    while isinstance(target, partial):
        target = target.func
    return target
