"""The objects to which the names in code referred when a digest of the code was
computed.

The digest includes the values of globals, module attributes, closure cells and
defaults. It is valid as long as each of these still refers to the same object. Objects
are compared by identity, so that comparing a large table takes no longer than comparing
a number. A change *inside* an object is not detected.

`Bindings.hold` runs before each call of a task. For speed, it compares whole tuples of
object ids with functions written in C, and has no Python loop over names.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, compress, repeat
from operator import attrgetter
from typing import Any, NamedTuple

_MISSING = object()
_VARIABLES = attrgetter("__dict__")
_GLOBALS = attrgetter("__globals__")
_PARTS = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CONTENT = attrgetter("cell_contents")


def weak_reference_to(value: Any) -> Callable[[], Any]:
    """Return a function without arguments that returns *value*.

    It is a weak reference to *value* if the type of *value* supports that.
    """
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


class Bindings:
    """The objects to which names, closure cells and parts of functions referred when a
    digest was computed.
    """

    __slots__ = ("_functions", "_names", "_owners", "_reads")

    def __init__(self) -> None:
        self._owners: dict[int, Any] = {}
        """The module, or a function of it, to which a dict of variables belongs, by the
        id of the dict.
        """
        self._names: dict[int, dict[str, _NamedValue]] = {}
        """The names that the code reads from a dict of variables, each with its value,
        by the id of the dict.
        """
        self._functions: dict[int, types.FunctionType] = {}
        self._reads: list[_Read] = []

    def note_name(
        self, owner: Any, variables: Mapping[str, Any], name: str, text: str
    ) -> None:
        """Record the object that *name* refers to in *variables*.

        Args:
            owner: The module that has these variables, or a function of that module.
            variables: The variables of the module.
            name: The name of one of the variables.
            text: The name as the code writes it: ``settings.factor``.
        """
        self._owners.setdefault(id(variables), owner)
        names = self._names.setdefault(id(variables), {})
        names[name] = _NamedValue(variables.get(name, _MISSING), text)

    def note_attributes(self, class_: type, names: Iterable[str]) -> None:
        """Record the objects to which the attributes *names* of a class refer."""
        variables = vars(class_)
        values = {name: variables.get(name, _MISSING) for name in names}
        if values:
            self._reads.append(
                _Read(class_, _VARIABLES, values.values(), names=tuple(values))
            )

    def note_function(self, function: types.FunctionType) -> None:
        """Record the code, the defaults and the closure cells of *function*."""
        self._functions[id(function)] = function

    def close(self, state: Iterable[str]) -> None:
        """Keep the ids of all recorded objects, and drop the objects themselves.

        Args:
            state: The names that the code itself rebinds while it runs, in the form of
                `Definition.rebound`. They are left out, because they may refer to
                another object at any time.
        """
        state = frozenset(state)
        for key, names in self._names.items():
            self._close_names(self._owners[key], names, state)
        for function in self._functions.values():
            self._close_function(function, state)
        self._owners, self._names, self._functions = {}, {}, {}

    def _close_names(
        self, owner: Any, names: Mapping[str, _NamedValue], state: frozenset[str]
    ) -> None:
        values = {}
        for name, named in names.items():
            if named.text not in state:
                values[name] = named.value
        if not values:
            return
        read_variables = _VARIABLES
        if isinstance(owner, types.FunctionType):
            read_variables = _GLOBALS
        self._reads.append(
            _Read(owner, read_variables, values.values(), names=tuple(values))
        )

    def _close_function(
        self, function: types.FunctionType, state: frozenset[str]
    ) -> None:
        names = function.__code__.co_freevars
        cells = tuple(f"nonlocal {name}" not in state for name in names)
        contents = compress(_cell_contents(function), cells)
        parts = [*_PARTS(function), *contents]
        self._reads.append(_Read(function, _PARTS, parts, cells=cells))

    def hold(self) -> bool:
        """Return True if all names, cells and function parts refer to the same objects
        as before.
        """
        try:
            for read in self._reads:
                owner = read.owner()
                if owner is None or read.is_lost:
                    return False
                objects = read.read(owner)
                if read.names:
                    objects = map(objects.get, read.names, repeat(_MISSING))
                elif read.cells:
                    cells = compress(owner.__closure__, read.cells)
                    objects = chain(objects, map(_CONTENT, cells))
                if tuple(map(id, objects)) != read.before:
                    return False
        except (ValueError, TypeError):
            # A cell has become empty, or the closure is None, so the digest is no
            # longer valid.
            return False
        return True

    def names_hold(self) -> bool:
        """Return True if all names refer to the same objects as before.

        Closure cells and the parts of functions are not compared, nor the names of a
        module or class that no longer exists.
        """
        names = Bindings()
        for read in self._reads:
            if read.names and read.owner() is not None:
                names._reads.append(read)
        return names.hold()


class _NamedValue(NamedTuple):
    """The object that a name referred to when the digest was computed."""

    value: Any
    text: str
    """The name as the code writes it: ``settings.factor``."""


class _Read:
    """The ids of the objects that were read from one owner: a module, a class or a
    function.

    The references to the owner and to the objects are weak where the type supports
    that, so that a digest that is kept does not keep these objects alive.

    Args:
        owner: A module, class or function.
        read: A function that takes *owner* and returns its variables, or the parts of
            a function.
        objects: The objects that were read.
        names: The names of the objects, if *read* returns variables.
        cells: For a function, one flag for each closure cell: True if the content of
            the cell was read.
    """

    __slots__ = (
        "__weakref__",
        "_references",
        "before",
        "cells",
        "is_lost",
        "names",
        "owner",
        "read",
    )

    def __init__(
        self,
        owner: Any,
        read: Callable[[Any], Any],
        objects: Iterable[Any],
        *,
        names: tuple[str, ...] = (),
        cells: tuple[bool, ...] = (),
    ) -> None:
        objects = list(objects)
        self.owner = weakref.ref(owner)
        self.read = read
        self.names = names
        self.cells = cells
        self.before = tuple(map(id, objects))
        """The ids of the objects when they were read."""
        self.is_lost = False
        """True if one of the objects was freed. A new object may then get the same id,
        so equal ids prove nothing any more.
        """
        itself = weakref.ref(self)

        def note_lost(_: Any) -> None:
            if (read := itself()) is not None:
                read.is_lost = True

        self._references: list[Any] = []
        for value in objects:
            try:
                self._references.append(weakref.ref(value, note_lost))
            except TypeError:
                self._references.append(value)


def _cell_contents(function: types.FunctionType) -> list[Any]:
    """Return the contents of the closure cells of *function*.

    The content of an empty cell is `_MISSING`.
    """
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(_MISSING)
    return contents
