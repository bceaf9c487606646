"""A digest of the meaning of a function: its code, and all that the code refers to.

Each function, class and constant that the function leads to is a *unit*, which has a
meaning. The digest of the function is made of the meanings of all units, in the
order in which they are reached, and of the links between them. Only units of the
function's own package or folder are read; a definition of another package counts by its
name. `reader` has the details.

A digest is taken again only if a name in the code refers to another object than before:
see `bindings`. A value that a program changes in place, such as a list that its tasks
fill, is state, and does not make it other code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from flowpregel._code.reader import CodeDigest, CodeReader

__all__ = ["CodeDigest", "KeptDigest", "code_digest", "code_of", "tasks_named_by"]

_BODY_DIGESTS: WeakKeyDictionary[types.FunctionType, CodeDigest] = WeakKeyDictionary()
_MOST_BODIES = 1_000


class KeptDigest:
    """The digest of a function, taken again when a name in its code refers to another
    object.

    Args:
        function: Any argument of `code_digest`.
        note: Called with each digest that is taken.
    """

    def __init__(self, function: Any, note: Callable[[CodeDigest], None]) -> None:
        self._function = function
        self._note = note
        self._known: CodeDigest | None = None

    def now(self) -> CodeDigest:
        """Return the digest of the current code."""
        known = self._known
        if known is None or not known.bindings.hold():
            known = self._known = code_digest(self._function, earlier=known)
            self._note(known)
        return known


def code_digest(
    function: Any, *, through_tasks: bool = True, earlier: CodeDigest | None = None
) -> CodeDigest:
    """Return a digest of the meaning of *function*.

    It is the same in every process and every version of Python. Layout, comments,
    docstrings, annotations and the names of locals do not change it.

    Args:
        function: A function, method, partial, class, task or callable object.
        through_tasks: Whether the tasks and graphs that it refers to count by their
            functions; otherwise they count by name.
        earlier: The digest that the new one replaces. A constant that is the same
            object as then has the meaning that it had then, though its content may have
            changed.
    """
    return CodeReader(function, through_tasks=through_tasks, earlier=earlier).read()


def code_of(function: Any) -> CodeDigest:
    """Return the digest of a body, in which tasks count by name: a body's calls are
    compared one by one.

    The digest of a plain function is taken again only when a name in it refers to
    another object.
    """
    if not isinstance(function, types.FunctionType):
        return code_digest(function, through_tasks=False)
    known = _BODY_DIGESTS.get(function)
    if known is None or not known.bindings.hold():
        known = code_digest(function, through_tasks=False, earlier=known)
        _BODY_DIGESTS[function] = known
        if len(_BODY_DIGESTS) > _MOST_BODIES:
            del _BODY_DIGESTS[next(iter(_BODY_DIGESTS))]
    return known


def codes_hold(codes: Iterable[CodeDigest]) -> bool:
    """Return True if each name in *codes* still refers to the same object."""
    return all(code.bindings.hold() for code in codes)


def tasks_named_by(function: Any) -> list[Any]:
    """Return the tasks and graphs that the code of *function*, or of a helper, refers
    to.
    """
    reader = CodeReader(function, through_tasks=False)
    reader.read()
    return reader.tasks()
