"""The earlier names of classes that have moved, by which recorded arguments know them.

The digest of an instance has the name of its class in it. Where the class has another
name now, a recorded call is found by the digest with the earlier name. That stands in a
store's renames, or the module where the class was still has it, as in ``from pages
import Page`` behind the move.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

Home: TypeAlias = tuple[str, str]
"""A module and a qualified name in it."""
MOST_HOMES = 8
"""The number of modules that are tried for the classes of one call."""
_RENAMED: dict[str, str] = {}
"""The new names by the old ones, of the stores that are open in this process."""


def note_renames(names: Mapping[str, str]) -> None:
    """Note the new names by the old ones: of classes, or of the modules around them."""
    _RENAMED.update(names)


def earlier_homes(classes: Collection[type]) -> Iterator[Mapping[type, Home]]:
    """Yield what *classes* may have been called before, the likely names first."""
    renamed = {
        class_: home
        for class_ in classes
        if (home := _renamed_home(class_)) is not None
    }
    if renamed:
        yield renamed
    modules = [name for name in [*sys.modules] if _has_any(name, classes)]
    for module in islice(modules, MOST_HOMES):
        yield {
            class_: (module, class_.__qualname__)
            for class_ in classes
            if _is_alias(module, class_)
        }


def _renamed_home(class_: type) -> Home | None:
    """Return where a class was before it was renamed; None: it was not."""
    name = f"{class_.__module__}.{class_.__qualname__}"
    for old, new in _RENAMED.items():
        if name == new or name.startswith(f"{new}."):
            earlier = old + name[len(new) :]
            # A nested class stays as deep in its module as it is.
            parts = earlier.rsplit(".", class_.__qualname__.count(".") + 1)
            return parts[0], ".".join(parts[1:])
    return None


def _has_any(module: str, classes: Collection[type]) -> bool:
    return any(_is_alias(module, class_) for class_ in classes)


def _is_alias(module: str, class_: type) -> bool:
    """Return whether a module that is not its own has a class under its name."""
    if module == class_.__module__:
        return False
    variables = getattr(sys.modules.get(module), "__dict__", {})
    return variables.get(class_.__qualname__) is class_
