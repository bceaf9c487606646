"""The units that a digest of code is made of: functions, classes and constants."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

from flowpregel._code import values
from flowpregel._code.classes import is_importable
from flowpregel._code.modules import Modules

_MOST_CLASSES = 200
"""The greatest number of classes that are not importable and whose content is read for
one digest.
"""


@dataclass(slots=True, eq=False)
class Unit:
    """A function, class or constant that code refers to, and its meaning: the text that
    represents it in a digest.
    """

    name: str
    value: Any
    number: int
    """The position of the unit in the order in which units were reached."""
    tokens: list[str] = field(default_factory=list)
    """The meaning of the unit, as a list of strings. A link to another unit contains
    the number of that unit.
    """
    source: str | None = None
    """The source code of the unit, which messages about a changed unit show. If it is
    None, they show the strings of `tokens` instead, and if it is empty, nothing.
    """


class Units:
    """All units of a digest, once each, in the order in which they were reached.

    Args:
        modules: The modules of the digest, which decide which functions and classes
            are read.
    """

    def __init__(self, modules: Modules) -> None:
        self.order: list[Unit] = []
        self._by_key: dict[int | str, Unit] = {}
        """The units by key. The key of a function or class is its id. The key of a
        constant is its name, and not its id: whether two equal constants are one object
        may differ between processes.
        """
        self._modules = modules
        self._unnamed_classes: set[type] = set()
        """The classes, among those reached so far, that are not importable, so that
        their content is read.
        """

    def add(self, key: int | str, name: str, value: Any) -> Unit:
        """Return the unit with this key. If there is none, add one."""
        if key not in self._by_key:
            self._by_key[key] = Unit(name, value, len(self.order))
            self.order.append(self._by_key[key])
        return self._by_key[key]

    def of_definition(self, value: Any) -> Unit | None:
        """Return the unit of a function or class whose code is read, or None for any
        other value, such as a function of another package.
        """
        if not isinstance(value, types.FunctionType | type):
            return None
        module = values.module_of(value)
        if not self._modules.is_near(module) and not self._is_unnamed_class(value):
            return None
        self._modules.note_definition(value)
        return self.add(id(value), f"{module}:{values.qualname(value)}", value)

    def is_constant(self, unit: Unit) -> bool:
        """Return True if the unit is a constant, not a function or class whose code is
        read.
        """
        return self._by_key.get(id(unit.value)) is not unit

    def _is_unnamed_class(self, value: Any) -> bool:
        """Return whether *value* is a class that is not importable. After
        `_MOST_CLASSES` such classes, return False for any further class.
        """
        if not isinstance(value, type) or is_importable(value):
            return False
        # The number of classes that are not importable is limited, because reading a
        # mock would otherwise never end: it creates a new class for each attribute of a
        # class.
        self._unnamed_classes.add(value)
        return len(self._unnamed_classes) <= _MOST_CLASSES
