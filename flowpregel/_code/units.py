"""The units that a digest of code is made of: functions, classes and constants."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

from flowpregel._code import values
from flowpregel._code.classes import is_importable
from flowpregel._code.modules import Modules

_MOST_CLASSES = 200
"""The most classes that are not importable whose content is read for one digest."""


@dataclass(slots=True, eq=False)
class Unit:
    """A function, a class or a constant."""

    name: str
    value: Any
    number: int
    """The position of the unit in the order in which units were reached."""
    tokens: list[str] = field(default_factory=list)
    """The meaning, in parts. Another unit appears in it by its number."""
    source: str | None = None
    """The source; None if there is none, so that the meaning is shown instead."""


class Units:
    """The units in the order in which they were reached, each once.

    Args:
        modules: Decides which functions and classes are read.
    """

    def __init__(self, modules: Modules) -> None:
        self.order: list[Unit] = []
        self._by_key: dict[int | str, Unit] = {}
        """Functions and classes by identity; constants by name, because equal constants
        may or may not be one object.
        """
        self._modules = modules
        self._unnamed_classes: set[type] = set()
        """The classes that are not importable."""

    def add(self, key: int | str, name: str, value: Any) -> Unit:
        """Return the unit with this key, and make it if there is none."""
        if key not in self._by_key:
            self._by_key[key] = Unit(name, value, len(self.order))
            self.order.append(self._by_key[key])
        return self._by_key[key]

    def of_definition(self, value: Any) -> Unit | None:
        """Return the unit of a function or class that is read; otherwise None."""
        if not isinstance(value, types.FunctionType | type):
            return None
        module = values.module_of(value)
        if not self._modules.is_near(module) and not self._is_unnamed_class(value):
            return None
        self._modules.note_definition(value)
        return self.add(id(value), f"{module}:{values.qualname(value)}", value)

    def is_constant(self, unit: Unit) -> bool:
        """Return whether a unit is neither a function nor a class that is read."""
        return self._by_key.get(id(unit.value)) is not unit

    def _is_unnamed_class(self, value: Any) -> bool:
        """Return whether *value* is a class that no name leads to."""
        if not isinstance(value, type) or is_importable(value):
            return False
        # The limit is for mocks, which make a class for each attribute of a class.
        self._unnamed_classes.add(value)
        return len(self._unnamed_classes) <= _MOST_CLASSES
