"""The annotations and signatures of classes and functions.

Python 3.14 evaluates annotations only when they are read, and a name in them may be
undefined while a program runs: one that is imported under ``if TYPE_CHECKING``. So
annotations that need not be resolved are read in a form that leaves such names
unresolved.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Collection
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib

    _UNRESOLVED = annotationlib.Format.FORWARDREF


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
        return dict.fromkeys(annotations_of(target), Any)


def annotations_of(target: Any) -> dict[str, Any]:
    """Return the annotations of a class or a function itself, without those of base
    classes. The result is empty if *target* is any other object.
    """
    try:
        if sys.version_info >= (3, 14):
            return annotationlib.get_annotations(target, format=_UNRESOLVED)
        return inspect.get_annotations(target)
    except TypeError:
        return {}


def annotation_sources(function: Any) -> dict[str, str]:
    """Return the annotations of a function as source text. Before Python 3.14, only
    those that are written as text are returned as text.
    """
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(
            function, format=annotationlib.Format.STRING
        )
    return inspect.get_annotations(function)


def copy_annotations(function: Any, copy: Any) -> None:
    """Give *copy* the annotations of *function*."""
    try:
        copy.__annotations__ = function.__annotations__
    except NameError:
        copy.__annotate__ = function.__annotate__


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable.

    Raises:
        TypeError: *function* is not callable.
        ValueError: *function* is written in C, and its signature is not known.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=_UNRESOLVED)
    return inspect.signature(function)
