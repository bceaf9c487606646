"""The resolved annotations of classes and functions, and their outer wrappers."""

from __future__ import annotations

import typing
from collections.abc import Collection
from typing import Any


def without(
    wrappers: Collection[Any],
    typ: Any,
) -> Any:
    """Return *typ* without the outer *wrappers*, such as ``Required``."""
    while typing.get_origin(typ) in wrappers:
        typ = typing.get_args(typ)[0]
    return typ


def hints_of(
    target: Any,
    *,
    extras: bool = False,
) -> dict[str, Any]:
    """Return the resolved annotations of a class or a function.

    If one annotation cannot be resolved (because it names a class that is local to a
    function, or an import is missing), all annotations are `Any`.

    Args:
        target: Any object. The result is empty if the object has no annotations.
        extras: Whether to keep the metadata of `Annotated`.
    """
    try:
        return typing.get_type_hints(target, include_extras=extras)
    except Exception:  # noqa: BLE001 - annotations may be any text
        return dict.fromkeys(getattr(target, "__annotations__", {}), Any)
