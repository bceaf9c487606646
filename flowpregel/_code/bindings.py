"""What names referred to when a digest of code was taken, and whether they still do.

A digest is used again as long as each global, attribute of a module, cell and default
that it was made of refers to the same object. Objects are told apart by identity, which
takes no longer for a large table than for a number; what changes *inside* of an object
is not looked for.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, compress, repeat
from operator import attrgetter
from typing import Any

_MISSING = object()
_VARIABLES = attrgetter("__dict__")
_PARTS = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_CONTENT = attrgetter("cell_contents")


def weak_reference_to(value: Any) -> Callable[[], Any]:
    """Return what returns *value*, and does not keep it alive if that can be."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


class Bindings:
    """Names, cells and the parts of functions, with the objects that each referred
    to.
    """

    __slots__ = ("_functions", "_names", "_owners", "_reads")

    def __init__(self) -> None:
        self._owners: dict[int, Any] = {}
        """By the identity of variables, the module or the function that they are those
        of.
        """
        self._names: dict[int, dict[str, tuple[Any, str]]] = {}
        """By the same, what the names in them refer to, and how the code writes
        them.
        """
        self._functions: dict[int, types.FunctionType] = {}
        self._reads: list[_Read] = []

    def note_name(
        self, owner: Any, variables: Mapping[str, Any], name: str, text: str
    ) -> None:
        """Note what *name* refers to in *variables*.

        Args:
            owner: The module, or a function of it, that has these variables.
            text: How the code writes it: ``settings.factor``.
        """
        self._owners.setdefault(id(variables), owner)
        found = variables.get(name, _MISSING)
        self._names.setdefault(id(variables), {})[name] = found, text

    def note_attributes(self, class_: type, names: Iterable[str]) -> None:
        """Note what the attributes *names* of a class refer to."""
        variables = vars(class_)
        values = {}
        for name in names:
            values[name] = variables.get(name, _MISSING)
        if not values:
            return
        read = _Read(
            class_,
            _VARIABLES,
            values.values(),
            names=tuple(values),
        )
        self._reads.append(read)

    def note_function(self, function: types.FunctionType) -> None:
        """Note the code, the defaults and the cells of *function*."""
        self._functions[id(function)] = function

    def close(self, state: Iterable[str]) -> None:
        """End the noting.

        Args:
            state: What code binds while it runs, as a `Found` has it: that is left out.
        """
        is_state = {*state}.__contains__
        for key, found in self._names.items():
            values = {
                name: value
                for name, (value, text) in found.items()
                if not is_state(text)
            }
            if values:
                owner = self._owners[key]
                is_function = isinstance(owner, types.FunctionType)
                read = attrgetter("__globals__" if is_function else "__dict__")
                self._reads.append(
                    _Read(owner, read, values.values(), names=(*values,))
                )
        for function in self._functions.values():
            names = function.__code__.co_freevars
            cells = tuple(not is_state(f"nonlocal {name}") for name in names)
            parts = [*_PARTS(function), *compress(_values_in(function), cells)]
            self._reads.append(_Read(function, _PARTS, parts, cells=cells))
        self._owners, self._names, self._functions = {}, {}, {}

    def hold(self) -> bool:
        """Return whether each of them still refers to the same object.

        It is asked for each call: what it does is done by functions in C code.
        """
        try:
            for read in self._reads:
                owner = read.owner()
                if owner is None or read.is_lost:
                    return False
                found = read.read(owner)
                if read.names:
                    found = map(found.get, read.names, repeat(_MISSING))
                elif read.cells:
                    found = chain(
                        found, map(_CONTENT, compress(owner.__closure__, read.cells))
                    )
                if tuple(map(id, found)) != read.before:
                    return False
        except (ValueError, TypeError):  # a cell is empty, or there are none any more
            return False
        return True

    def names_hold(self) -> bool:
        """Return whether the names do; those of a module that is gone are not asked
        for.
        """
        names = Bindings()
        names._reads = [
            each for each in self._reads if each.names and each.owner() is not None
        ]
        return names.hold()


class _Read:
    """Objects that were read from one owner, told apart by their identities.

    Neither the owner nor the objects are kept alive by it, where they can be referred
    to weakly: what a digest is kept for may be among them.
    """

    __slots__ = (
        "__weakref__",
        "_kept",
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
        found: Iterable[Any],
        *,
        names: tuple[str, ...] = (),
        cells: tuple[bool, ...] = (),
    ) -> None:
        objects = [*found]
        self.owner = weakref.ref(owner)
        self.read = read
        """Reads the variables of a module, if there are names; otherwise parts of a
        function.
        """
        self.names = names
        self.cells = cells
        """Of each cell of the function whether its content counts."""
        self.before = tuple(map(id, objects))
        self.is_lost = False
        """Whether one of them is gone: another object may have its identity by now."""
        itself = weakref.ref(self)

        def note_lost(_: Any) -> None:
            if (read := itself()) is not None:
                read.is_lost = True

        self._kept: list[Any] = []
        for each in objects:
            try:
                self._kept.append(weakref.ref(each, note_lost))
            except TypeError:
                self._kept.append(each)


def _values_in(function: types.FunctionType) -> list[Any]:
    """Return what is in the cells of *function*, and something else for those with
    nothing.
    """
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(_MISSING)
    return found
