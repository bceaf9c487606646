"""The lists of runs that were sent last, so that the next answer contains only the
differences.

::

    GET api/runs                 -> version 7, all rows, and their order
    GET api/runs?...&known=7     -> version 8, the rows that changed, and the order

A page asks again at each change of the store, but most rows stay the same. If the
server has forgotten the version that the page knows, the page gets all rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

Rows: TypeAlias = dict[str, dict[str, Any]]
"""The rows of a list, by key, in the order of the list."""
_MOST_LISTS: Final = 16
"""The maximum number of answers that are remembered: about one for each open tab."""


class SentLists:
    """The lists that were sent in the last answers. A later answer contains only the
    rows that have changed since the answer that the page has.

    Example:
        >>> lists = SentLists()
        >>> first = lists.answer({"runs": {"a": {"failed": 0}, "b": {"failed": 0}}})
        >>> first["runs"], first["order"]
        ([{'failed': 0}, {'failed': 0}], {'runs': ['a', 'b']})
        >>> rows = {"b": {"failed": 1}, "a": {"failed": 0}}
        >>> second = lists.answer({"runs": rows}, first["version"])
        >>> second["runs"], second["order"]
        ([{'failed': 1}], {'runs': ['b', 'a']})
    """

    def __init__(self) -> None:
        # The versions of answers begin at the present time in microseconds. Each answer
        # adds 1, and takes longer than a microsecond. So a later server begins with a
        # greater version than any answer of this server has.
        begin = time.time_ns() // 1_000
        self._versions = count(begin)
        self._sent: dict[str, Mapping[str, Rows]] = {}
        """The lists that were sent, by the version of the answer, the oldest first."""

    def answer(
        self,
        lists: Mapping[str, Rows],
        known: str = "",
    ) -> dict[str, Any]:
        """Return the rows that a page lacks, by the name of the list, the keys of all
        rows in order, and the version of the answer.

        Args:
            lists: The rows of each present list, by the name of the list.
            known: The version that the page has, or an empty string.
        """
        former_lists = self._sent.get(known, {})
        number = next(self._versions)
        version = str(number)
        self._sent[version] = lists
        while len(self._sent) > _MOST_LISTS:
            versions = iter(self._sent)
            oldest = next(versions)
            del self._sent[oldest]
        order: dict[str, Sequence[str]] = {}
        changed: dict[str, list[dict[str, Any]]] = {}
        for name, rows in lists.items():
            former = former_lists.get(name, {})
            order[name] = list(rows)
            changed[name] = []
            for key, row in rows.items():
                if former.get(key) != row:
                    changed[name].append(row)
        return {
            **changed,
            "order": order,
            "version": version,
        }
