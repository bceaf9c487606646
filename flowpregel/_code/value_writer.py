"""A writer of the content of values into the meanings of units (functions, classes and
constants in a digest of code).

A value is written as its type followed by its parts. A function or class in it is
written as a link to its unit. If the content of a value cannot be read, only its type
is written, and the value is listed as unseen.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sized
from contextlib import suppress
from typing import Any

from flowpregel._code import values
from flowpregel._code.bindings import Bindings
from flowpregel._code.classes import is_importable
from flowpregel._code.modules import Modules
from flowpregel._code.parts import package_of
from flowpregel._code.tree import constant_text
from flowpregel._code.units import Unit, Units

_MOST_REDUCTIONS = 20_000
"""The greatest number of objects of other packages whose content is read for one
unit.
"""
_DEEPEST = 100
"""The depth of nesting at which the reading of a constant stops."""


class ValueWriter:
    """A writer of values as text, for the meanings of units.

    Args:
        units: The units that links refer to. A link may add a unit.
        modules: The modules of the digest, which decide which classes are read.
        bindings: The bindings in which functions of other packages are recorded too,
            since they may be wrappers whose closure cells contain functions that are
            read.
        own_state: The names of the attributes that a call of an object sets, by the id
            of the object. These attributes are left out.
        through_tasks: True to represent tasks and graphs by their functions, False to
            represent them by their names.
    """

    def __init__(
        self,
        units: Units,
        modules: Modules,
        bindings: Bindings,
        own_state: Mapping[int, frozenset[str]],
        *,
        through_tasks: bool,
    ) -> None:
        self._units = units
        self._modules = modules
        self._bindings = bindings
        self._own_state = own_state
        self._through_tasks = through_tasks
        self._open: set[int] = set()
        """The ids of the values that contain the value which is being written, to
        notice a value that contains itself.
        """
        self._reductions = 0  # no mutant: `begin_unit` sets the number first.
        """The number of objects of other packages that were read for the present
        unit.
        """
        self.tasks: list[Any] = []
        """The tasks and graphs that were written so far."""
        self.unseen: dict[str, None] = {}
        """The values whose content is not in the digest, by name and type."""
        self.packages: dict[str, None] = {}
        """The packages whose modules, classes or functions were written by name."""
        self.is_fixed = True
        """True if no value that was written can change in place."""

    def begin_unit(self) -> None:
        """Restart the count of objects that are read, because a new unit begins."""
        self._reductions = 0

    def write(self, value: Any, unit: Unit) -> None:
        """Write a value into *unit*, with a link for each function and class in it."""
        if type(value) in values.ATOMS:
            unit.tokens.append(f"{constant_text(value)};")
            return
        written = len(unit.tokens)
        # A user's object may raise any error when its attributes are read. Then only
        # its type is written.
        with suppress(Exception):
            self._write_value(self._unwrapped(value), unit)
            return
        del unit.tokens[written:]
        unit.tokens.append(
            f"{type(value).__qualname__}: by type only, it raised an error;"
        )
        self._note_unseen(type(value), unit)

    def write_named(self, value: Any, unit: Unit, name: str) -> None:
        """Write the value of a global name, an attribute or a cell.

        Args:
            value: The value to write.
            unit: The unit whose code refers to it.
            name: The full name: ``module:name``.
        """
        unit.tokens.append(f"|{name.rpartition(':')[2]}=")
        with suppress(Exception):
            value = self._unwrapped(value)
        # The type is checked with `type`, because `isinstance` could run code of the
        # value's class.
        if issubclass(type(value), types.FunctionType | type | types.ModuleType):
            self.write(value, unit)
        else:
            unit.tokens.append(f"->{self._units.add(name, name, value).number};")

    def write_code(self, code: types.CodeType, unit: Unit) -> set[str]:
        """Write bytecode and its constants, and return the names that it uses."""
        unit.tokens.append(f"{code.co_code.hex()} {code.co_varnames} {code.co_names}")
        names = {*code.co_names, *code.co_freevars}
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self.write_code(constant, unit)
            else:
                self.write(constant, unit)
        return names

    def _unwrapped(self, value: Any) -> Any:
        if type(value) in values.ATOMS:
            return value
        if values.is_ours(value) and not self._through_tasks:
            return value
        return values.peeled(value)

    def _note_unseen(self, kind: type, unit: Unit) -> None:
        """Add the name of *unit*, and the type of a value in it, to the list of values
        whose content is not in the digest.
        """
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        self.unseen[f"`{unit.name.rpartition(':')[2]}` ({name})"] = None

    def _write_value(self, value: Any, unit: Unit) -> None:
        if id(value) in self._open:
            unit.tokens.append("^")
            return
        definition = self._units.of_definition(value)
        if definition is not None:
            unit.tokens.append(f"->{definition.number};")
            return
        self._open.add(id(value))
        try:
            self._write_content(value, unit)
        finally:
            self._open.remove(id(value))

    def _write_content(self, value: Any, unit: Unit) -> None:
        self.is_fixed &= isinstance(value, values.FIXED)
        if isinstance(value, types.ModuleType | type | types.FunctionType):
            self._write_outside(value, unit)
            return
        form = values.type_form(value)
        if form is not None:
            name, types_in_form = form
            unit.tokens.append(name)
            self._write_all(types_in_form, unit)
            return
        kind = type(value)
        self.write(kind, unit)
        if values.is_ours(value) and callable(value):
            self._write_task(value, unit)
            return
        content = values.content_of(value)
        if content is not None and not self._is_outside_method(value):
            self._write_all(content, unit)
            return
        digest_of_value = getattr(kind, "__flowpregel_digest__", None)
        if digest_of_value is not None:
            unit.tokens.append(f"{digest_of_value(value)};")
        elif values.has_no_content(value) and not dataclasses.is_dataclass(kind):
            unit.tokens.append(f"{values.outside_name(kind)}: by type only;")
        else:
            self._write_object(value, unit)

    def _write_all(self, parts: list[Any], unit: Unit) -> None:
        """Write the number of parts, and then each part."""
        unit.tokens.append(f"{len(parts)}(")
        for part in parts:
            self.write(part, unit)
        unit.tokens.append(")")

    def _write_outside(self, value: Any, unit: Unit) -> None:
        """Write the name of a module, class or function whose code is not read. For a
        wrapper, write the functions inside it too.
        """
        unit.tokens.append(f"{values.outside_name(value)};")
        self.packages[package_of(value)] = None
        if isinstance(value, type) and not is_importable(value):
            self._note_unseen(value, unit)
        if isinstance(value, types.FunctionType):
            self._bindings.note_function(value)
        for inner in values.wrapped_by(value):
            self.write(inner, unit)

    def _write_task(self, value: Any, unit: Unit) -> None:
        """Write the name of a task or a graph, and the functions in it if tasks are
        represented by their functions.
        """
        self.tasks.append(value)
        steps = values.steps_of(value) if self._through_tasks else []
        if value is unit.value:
            # This unit consists of the task's name alone, and the source of the calling
            # code shows this name already. So the unit shows no source.
            unit.source = ""
        self.write([str(getattr(value, "name", "")), *steps], unit)

    def _is_outside_method(self, value: Any) -> bool:
        """Return whether *value* is a bound method that another package offers as a
        function of a module, such as `random.randint`.
        """
        if not isinstance(value, types.MethodType):
            return False
        if not values.is_known_by_name(value):
            return False
        return not self._modules.is_near(type(value.__self__).__module__)

    # ------------------------------------------------------------ objects

    def _write_object(self, value: Any, unit: Unit) -> None:
        """Write the parts of *value* that pickle would store."""
        kind = type(value)
        if values.is_record(value) and (
            self._modules.is_near(kind.__module__) or dataclasses.is_dataclass(value)
        ):
            state = object.__getstate__(value)
            self.write(self._without_own_state(value, state), unit)
            return
        is_named = isinstance(value, values.NAMED) and not values.is_bound(value)
        if is_named or isinstance(value, types.MethodType):
            unit.tokens.append(f"{values.outside_name(value)};")
            return
        parts = self._parts_of(value)
        if parts is None:
            size = f", {len(value)} items" if isinstance(value, Sized) else ""
            unit.tokens.append(f"{values.outside_name(kind)}{size}: by type only;")
            self._note_unseen(kind, unit)
        elif isinstance(parts, str):
            unit.tokens.append(f"{parts};")
        else:
            self._write_parts(self._parts_without_own_state(value, parts), unit)

    def _parts_of(self, value: Any) -> Any:
        """Return the parts of *value* that pickle would store, or None if its content
        cannot be read.
        """
        if values.changes_when_used(value) or values.is_too_large(value):
            return None
        # Some objects create new objects each time they are read, so that reading them
        # would never end. So the number of read objects is limited.
        self._reductions += 1 if len(self._open) < _DEEPEST else _MOST_REDUCTIONS
        if self._reductions > _MOST_REDUCTIONS:
            return None
        with suppress(Exception):
            return values.reduced(value)
        return None

    def _write_parts(self, parts: tuple[Any, ...], unit: Unit) -> None:
        """Write a function, its arguments and the state, as `values.reduced` returns
        them.
        """
        unit.tokens.append(f"{len(parts)}<")
        function, arguments, *states = parts
        self.write(function, unit)
        self.write(arguments, unit)
        for state in states:
            is_iterator = hasattr(type(state), "__next__")
            self.write(list(state) if is_iterator else state, unit)
        unit.tokens.append(">")

    def _parts_without_own_state(self, value: Any, parts: Any) -> Any:
        """Return *parts* without the attributes that a call of *value* sets."""
        if id(value) not in self._own_state:
            return parts
        states = [self._without_own_state(value, part) for part in parts[2:]]
        return (*parts[:2], *states)

    def _without_own_state(self, value: Any, state: Any) -> Any:
        """Return *state* without the attributes that a call of *value* sets.

        An empty state is returned as None, which is the state of an object without
        attributes. An object may have none before its first call.
        """
        names = self._own_state.get(id(value))
        if names is None or not isinstance(state, dict | tuple):
            return state
        if isinstance(state, dict):
            others = {name: state[name] for name in state if name not in names}
            return others or None
        parts = tuple(self._without_own_state(value, part) for part in state)
        # The state of an object with slots is a pair of dicts: its attributes, and its
        # slots. If no slots are left, the state consists of the attributes alone.
        return parts[0] if parts[1:] == (None,) else parts
