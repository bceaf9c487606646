"""The earlier names of classes that were moved or renamed.

The name of a class is part of the digest of each instance. After a class has moved, a
recorded call with an instance as argument is found only by a digest with the earlier
name. This name is known from the renames that a store has recorded, or because the
earlier module still imports the class, as in ``from pages import Page``.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

Home: TypeAlias = tuple[str, str]
"""The place of a class: a module, and a qualified name in it."""
Homes: TypeAlias = dict[type, Home]
MOST_HOMES = 8
"""The maximum number of earlier modules that are tried for the classes of one call."""
_RENAMED: dict[str, str] = {}
"""The new names of renamed classes or modules by their old names, as recorded in the
stores that this process has opened.
"""


def note_renames(names: Mapping[str, str]) -> None:
    """Remember the new names of classes or modules, by their old names."""
    _RENAMED.update(names)


def earlier_homes(classes: Collection[type]) -> Iterator[Homes]:
    """Yield possible earlier names of *classes*, the likely names first."""
    renamed: Homes = {}
    for class_ in classes:
        home = _renamed_home(class_)
        if home is not None:
            renamed[class_] = home
    if renamed:
        yield renamed
    count = 0
    for module in list(sys.modules):
        aliases = _aliases_in(module, classes)
        if not aliases:
            continue
        yield aliases
        count += 1
        if count == MOST_HOMES:
            return


def _renamed_home(class_: type) -> Home | None:
    """Return the earlier module and name of a class, or None if the class was not
    renamed.
    """
    name = f"{class_.__module__}.{class_.__qualname__}"
    for old, new in _RENAMED.items():
        if name == new:
            rest = ""
        elif name.startswith(f"{new}."):
            rest = name.removeprefix(new)
        else:
            continue
        # The old and the new qualified name of a class have the same number of parts.
        # So this number shows where the module's name ends in the old full name.
        depth = class_.__qualname__.count(".") + 1
        module, *qualname = (old + rest).rsplit(".", depth)
        return module, ".".join(qualname)
    return None


def _aliases_in(module: str, classes: Collection[type]) -> Homes:
    """Return the classes among *classes* that *module* has imported under their own
    names, each with *module* as its earlier home.
    """
    aliases: Homes = {}
    variables = getattr(sys.modules.get(module), "__dict__", None)
    if not variables:
        return aliases
    for class_ in classes:
        name = class_.__qualname__
        if class_.__module__ == module:
            continue
        if variables.get(name) is class_:
            aliases[class_] = (module, name)
    return aliases
