"""The import of a package's names on their first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any


def import_name(
    package: dict[str, Any], homes: Mapping[str, Collection[str]], name: str
) -> Any:
    """Import a name of a package, and store it in the package for its next use.

    Args:
        package: The globals of the package.
        homes: For each module below ``flowpregel``, the names that are imported from
            it.
        name: The name to import.

    Raises:
        AttributeError: The package does not have the name.
    """
    for home, names in homes.items():
        if name in names:
            value = package[name] = getattr(import_module(f"flowpregel.{home}"), name)
            return value
    raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
