"""A digest of the meaning of a function: its code, and all that the code refers to.

The function, and each function, class and constant to which it refers directly or
indirectly, is a *unit*. The *meaning* of a unit is a string that represents its code or
its content. The digest is computed from the meanings of all units, in the order in
which they are reached, and from the links between units. Only definitions of the
function's own package or folder are read. A definition of another package is
represented by its name. `reader` has the details.

A digest is computed again only if a name in the code refers to a different object: see
`bindings`. A value that a program changes in place, such as a list that its
tasks fill, is state: changing the value does not change the digest.

============================================  =========================================
a change in                                   the digest
============================================  =========================================
the body, the defaults or the cells           changes
a helper or a class that the body uses        changes
a global constant that is bound to a new      changes
value
comments, docstrings, layout, annotations     stays
and local names of a function
a definition of another package               stays
a container that is changed in place          stays
a task or a graph that the body calls         changes, but stays with `code_of`
============================================  =========================================
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

from flowpregel._code.bindings import Bindings
from flowpregel._code.reader import CodeDigest, CodeReader
from flowpregel._code.values import cells_of, is_ours

__all__ = ["CodeDigest", "KeptDigest", "code_digest", "code_of", "tasks_named_by"]

_BODY_DIGESTS: WeakKeyDictionary[types.FunctionType, CodeDigest] = WeakKeyDictionary()
_MOST_BODIES = 1_000
_bindings_of: Final = attrgetter("bindings")


class KeptDigest:
    """The digest of a function, computed again when a name in its code refers to a
    different object.

    Args:
        function: Any object that `code_digest` accepts.
        note: A function that is called with each newly computed digest.
    """

    def __init__(self, function: Any, note: Callable[[CodeDigest], None]) -> None:
        self._function = function
        self._note = note
        self._known: CodeDigest | None = None

    def now(self) -> CodeDigest:
        """Return the digest of the code in its present state."""
        known = self._known
        if known is None or not known.bindings.hold():
            known = self._known = code_digest(self._function, earlier=known)
            self._note(known)
        return known


def code_digest(
    function: Any, *, through_tasks: bool = True, earlier: CodeDigest | None = None
) -> CodeDigest:
    """Return a digest of the meaning of *function*.

    The digest is the same in every process and every version of Python. It does not
    depend on layout, comments, docstrings, annotations or the names of locals.

    Args:
        function: A function, method, partial, class, task or callable object.
        through_tasks: True to represent the tasks and graphs that *function* refers to
            by their functions, False to represent them by their names.
        earlier: The digest that the new digest replaces. A constant that is still the
            same object keeps the meaning that it has in the earlier digest, even if its
            content has changed.
    """
    return CodeReader(function, through_tasks=through_tasks, earlier=earlier).read()


def code_of(function: Any) -> CodeDigest:
    """Return the digest of a body, such as the function of an entrypoint.

    Tasks are represented by their names, because the code of each task that the body
    calls is compared separately. The digest of a function (a ``def`` or a lambda) is
    computed again only when a name in its code refers to another object.
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
    """Return True if the names in the code of all these digests refer to the same
    objects as before.
    """
    return all(map(Bindings.hold, map(_bindings_of, codes)))


def tasks_named_by(function: Any) -> list[Any]:
    """Return the tasks and graphs to which the code of *function* refers, directly or
    through helpers.

    The code of a body that flowpregel itself defines, as for `map`, is not read: such a
    body refers only to the tasks that it closes over.
    """
    if isinstance(function, types.FunctionType) and is_ours(function):
        cells = cells_of(function).values()
        return [value for value in cells if is_ours(value) and callable(value)]
    reader = CodeReader(function, through_tasks=False)
    reader.read()
    return reader.tasks()
