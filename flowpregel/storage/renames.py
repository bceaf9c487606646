"""The new names of classes and functions that recorded values refer to.

A pickle refers to a class by its module and its name. If the class has been moved or
renamed since, its new name is in ``StoreOptions(renamed=...)``, or in the store itself,
in a record in ``meta`` that `flowpregel rename` writes. No value is rewritten for a
rename. So no value can be lost, and it does not matter which codec encodes, compresses
or encrypts the values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from flowpregel._interrupts import is_from_handler
from flowpregel._pickling.moved_classes import note_renames
from flowpregel.errors import ConfigurationError

RENAMED = b"renamed"
"""The key in ``meta`` of the record of renames."""
_GLOBAL = b"\x93"
"""The pickle opcode that loads a class. A pickle without it refers to no class."""


class Renames:
    """The present names of classes and functions, by their recorded names.

    Args:
        names: The user's new names, by the old names. They take precedence over the
            names in the store. The name of a module renames all classes in the module.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._given = dict(names or {})
        note_renames(self._given)
        self._of_store: Mapping[str, str] | None = None
        self.load: Callable[[], bytes | None] = lambda: None
        """A function that reads the record of renames from the store."""

    def matter(self, data: bytes) -> bool:
        """Return whether the pickle in *data* may refer to a renamed class.

        Other bytes may surround the pickle.
        """
        return _GLOBAL in data and bool(self._given or self.of_store)

    @property
    def of_store(self) -> Mapping[str, str]:
        """The store's new names, by the old names. They are read once each time the
        store is opened.
        """
        if self._of_store is None:
            self._of_store = names_in(self.load())
            note_renames(self._of_store)
        return self._of_store

    def forget(self) -> None:
        """Discard the new names that were read from the store, so that they are read
        again when needed.
        """
        self._of_store = None

    def find(self, name: str) -> Any:
        """Return the class or function with the recorded *name*, under its new name.

        Return None if *name* is not renamed.

        Raises:
            ConfigurationError: The store has a new name for *name*, and another class
                or function with the old name exists.
            ImportError: The new name cannot be imported.
        """
        if (new := _new_name(self._given, name)) is not None:
            return resolve_name(new)
        if (new := _new_name(self.of_store, name)) is None:
            return None
        renamed = resolve_name(new)
        if (old := importable(name)) is not None and old is not renamed:
            raise ConfigurationError(
                f"{name} was renamed to {new} in this store, but a new {name} exists, "
                "so values that name it are ambiguous; give the new one another "
                f"name, or pass StoreOptions(renamed={{{name!r}: ...}})"
            )
        return renamed


def names_in(data: bytes | None) -> dict[str, str]:
    """Return the new names, by the old names, in the record of a store."""
    return {} if data is None else dict(json.loads(data))


def with_rename(
    names: Mapping[str, str],
    old: str,
    new: str,
) -> bytes:
    """Return the record of a store after *old* is renamed to *new*, given the earlier
    renames.

    Example:
        >>> names_in(with_rename({"a.A": "b.B"}, "b", "c"))
        {'a.A': 'c.B', 'b': 'c'}
    """
    renamed = {
        key: _new_name({old: new}, value) or value for key, value in names.items()
    }
    renamed[old] = new
    changed = {key: value for key, value in renamed.items() if key != value}
    return json.dumps(changed, sort_keys=True).encode()


def with_renames_of(
    names: Mapping[str, str],
    others: Mapping[str, str],
) -> bytes:
    """Return the record of a store that also gets the renames of another store. A name
    that both stores have renamed keeps the new name of the first.

    Example:
        >>> names_in(with_renames_of({"b": "c"}, {"a": "b", "b": "x"}))
        {'a': 'c', 'b': 'c'}
    """
    merged = dict(names)
    for old, new in others.items():
        present = _new_name(names, new) or new
        merged.setdefault(old, present)
    changed = {key: value for key, value in merged.items() if key != value}
    return json.dumps(changed, sort_keys=True).encode()


def importable(name: str) -> Any:
    """Return the object with the full *name*, or None if it cannot be imported."""
    try:
        return resolve_name(name)
    except Exception as error:
        if is_from_handler(error):
            raise
        # A module may raise any error while it is imported, and then it has no such
        # class.
        return None


def _new_name(names: Mapping[str, str], name: str) -> str | None:
    """Return the new name of *name*, if *name* or an enclosing class or module is
    renamed.
    """
    prefix = name
    rest = ""
    while prefix:
        if prefix in names:
            return names[prefix] + rest
        prefix, dot, last = prefix.rpartition(".")
        rest = f"{dot}{last}{rest}"
    return None
