"""The new names of classes and functions that recorded values name.

A pickle names a class by its module and its name. Where the class was moved or renamed
since, its new name stands in ``StoreOptions(renamed=...)``, or in the store itself: a
record in ``meta``, which `flowpregel rename` writes. No value is written again for it,
so nothing can be lost on the way, and values are found whatever encodes, compresses or
encrypts them.
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
"""The key of the record in ``meta``."""
_GLOBAL = b"\x93"
"""The pickle opcode before which a class is named; a pickle without it names none."""


class Renames:
    """The present names of classes and functions, by their recorded names.

    Args:
        names: The new names by the old ones, from the user; they come before those of
            the store. A name may be that of a module: all in it have moved.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._given = dict(names or {})
        note_renames(self._given)
        self._of_store: Mapping[str, str] | None = None
        self.load: Callable[[], bytes | None] = lambda: None
        """Reads the record of the store."""

    def matter(self, data: bytes) -> bool:
        """Return whether *data*, a pickle and what is around it, may name what is
        renamed.
        """
        return _GLOBAL in data and bool(self._given or self.of_store)

    @property
    def of_store(self) -> Mapping[str, str]:
        """The new names by the old ones that the store keeps: read once for each
        opening.
        """
        if self._of_store is None:
            self._of_store = names_in(self.load())
            note_renames(self._of_store)
        return self._of_store

    def forget(self) -> None:
        """Read the record of the store again when it is needed next."""
        self._of_store = None

    def find(self, name: str) -> Any:
        """Return what has the recorded *name* now; None: it is not renamed.

        Raises:
            ConfigurationError: The store has a new name for it, and there is another
                class or function of the old one.
            ImportError: There is nothing of the new name.
        """
        if (new := _new_name(self._given, name)) is not None:
            return resolve_name(new)
        if (new := _new_name(self.of_store, name)) is None:
            return None
        renamed = resolve_name(new)
        if (old := importable(name)) is not None and old is not renamed:
            raise ConfigurationError(
                f"{name} was renamed to {new} in this store, and there is another "
                f"{name} now: which one a value means cannot be told; give the new one "
                f"another name, or pass StoreOptions(renamed={{{name!r}: ...}})"
            )
        return renamed


def names_in(data: bytes | None) -> dict[str, str]:
    """Return the new names, by the old ones, that the record of a store holds."""
    return {} if data is None else dict(json.loads(data))


def with_rename(
    names: Mapping[str, str],
    old: str,
    new: str,
) -> bytes:
    """Return the record of a store in which *old* was renamed to *new* after all other
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


def importable(name: str) -> Any:
    """Return what is found under the full *name*, None: nothing is."""
    try:
        return resolve_name(name)
    except Exception as error:
        if is_from_handler(error):
            raise
        return None  # a module may raise anything while it is imported


def _new_name(names: Mapping[str, str], name: str) -> str | None:
    """Return the new name of *name*, by its own or by that of what it is in."""
    prefix, rest = name, ""
    while prefix:
        if prefix in names:
            return names[prefix] + rest
        prefix, dot, last = prefix.rpartition(".")
        rest = f"{dot}{last}{rest}"
    return None
