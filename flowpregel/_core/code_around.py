"""The code that runs after nodes: the conditions of edges, and the reducers of
channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import Any, TypeAlias

from flowpregel._code.digest import code_of
from flowpregel._code.sources import note_code
from flowpregel._code.values import home_of, is_outside
from flowpregel._core.files import NOT_A_TASK
from flowpregel._core.ids import UsedResults
from flowpregel._core.program import Program
from flowpregel._core.records import Node

_OLD_BEGINNINGS = ("condition ", "reducer of channel ")
"""The prefixes of the names of conditions and reducers in older records, in which the
names lack `NOT_A_TASK`.
"""
_Key: TypeAlias = tuple[str, frozenset[str]]


@dataclass(slots=True, eq=False)
class CodeAround:
    """The digests of the users' functions that run after the nodes of a program: the
    conditions of edges, and the reducers of channels.
    """

    program: Program
    _used: dict[_Key, tuple[UsedResults, ...]] = field(default_factory=dict)
    """The digests of the functions that ran after a node, by the name of the node and
    the channels that it wrote to.
    """

    def used_by(
        self,
        node: Node,
        channels: frozenset[str],
    ) -> tuple[UsedResults, ...]:
        """Return the digests of the functions that ran after *node*: conditions of the
        node's edges, and reducers of the channels that it wrote to. Each digest is in a
        `UsedResults` (name, digest, count), the form in which the used results of tasks
        are recorded. The count is 1.

        Args:
            node: The node that ran.
            channels: The channels that the node has written to.
        """
        key = node.name, channels
        used = self._used.get(key)
        if used is None:
            used = tuple(self._look_up(node, channels))
            self._used[key] = used
        return used

    def _look_up(
        self,
        node: Node,
        channels: Iterable[str],
    ) -> Iterator[UsedResults]:
        for name, function in self._functions(node, channels):
            digest = _digest_of_users(function)
            if digest:
                yield NOT_A_TASK + name, digest, 1

    def _functions(
        self,
        node: Node,
        channels: Iterable[str],
    ) -> Iterator[tuple[str, Any]]:
        number = 0
        for writer in node.writers:
            path = getattr(writer, "path", None)
            if path is None:
                continue
            number += 1
            which = "condition" if number == 1 else f"condition {number}"
            yield f"{which} of node {node.name}", path.func or path.coroutine
        for channel in sorted(channels):
            reducer = self.program.reducers.get(channel)
            if reducer is not None:
                yield f"reducer of channel {channel}", reducer


def marked_name(name: str) -> str:
    """Return a recorded name with the prefix `NOT_A_TASK`, if it belongs to a condition
    or a reducer. Older records lack the prefix.
    """
    return NOT_A_TASK + name if name.startswith(_OLD_BEGINNINGS) else name


def _digest_of_users(function: Any) -> str:
    """Return a digest of a user's function, or an empty string for a function that is
    not the user's (a built-in, or a function of an installed package).
    """
    if isinstance(function, BuiltinFunctionType | type):
        return ""
    if is_outside(home_of(function)):
        return ""
    code = code_of(function)
    note_code(code.digest, [code])
    return code.digest
