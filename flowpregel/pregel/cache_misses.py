"""The reasons why a cache lacks a result: the cache has results, but earlier code of
the task computed them.

::

    a result is stored ──► the cache notes the code of the task, with its parts
    a key is missing   ──► is there a result of an earlier code with the same key?
                           then a notice at the end of the run names what changed
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from flowpregel._code.sources import SOURCES, parts_key
from flowpregel._core.provenance import VERSION
from flowpregel._inspection.code_changes import changes_text
from flowpregel.cache.base import BaseCache, Entries, FullKey, Namespace

OTHER_CODE: Final = "the results in the cache were computed by other code"
_MOST_LOOKUPS: Final = 100
"""The greatest number of missing keys for which the cache is searched for results of
earlier code, for each version of a task's code.
"""
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_TASK: Final = "task"
"""The first label (part) of the namespaces in which a cache stores the results of
`@task` functions. The other labels are the module, the qualified name, and the digest
or the version of the code.
"""
_TASK_LABELS: Final = 4
_UNNAMED: Final = "<"
"""A character that only unnamed functions have in their names: lambdas, and functions
inside other functions (``<lambda>``, ``<locals>``).
"""
_MOST_NAMESPACES: Final = 10_000
_OF_PROCESS: Final[dict[Namespace, None]] = {}
"""The cache namespaces in which this process has searched for results. They belong to
code of the present program, so a result in one of them is no result of earlier code.
Two functions of a program may have the same name, and then only the label for the code
distinguishes their namespaces.
"""


def miss_notices(changes: Mapping[str, str]) -> Iterator[str]:
    """Yield a notice for each task whose results were computed again.

    Args:
        changes: The changes that an `ExplainedCache` has found.
    """
    for name, change in changes.items():
        yield f"{name}: {OTHER_CODE}, and are computed again: {change}"


class ExplainedCache(BaseCache):
    """A cache that finds out why it lacks a key: which code has changed since the
    result was stored.

    Lambdas, and functions that another function creates, are left out: one name often
    stands for several functions with different code, so a difference does not mean that
    the code has changed.

    Args:
        cache: The cache of the results.
        changes: The dict to which the changes are added, by the name of the task.
    """

    def __init__(
        self,
        cache: BaseCache,
        changes: dict[str, str],
    ) -> None:
        self._cache = cache
        self._changes = changes
        self._lookups: dict[Namespace, int] = {}
        """The number of keys for which the cache was searched for results of earlier
        code, by namespace.
        """
        self._noted: set[Namespace] = set()
        """The namespaces whose code this object has recorded in the cache."""

    def get(
        self,
        keys: Sequence[FullKey],
    ) -> dict[FullKey, Any]:
        values = self._cache.get(keys)
        for key in keys:
            namespace = key[0]
            _note_namespace(namespace)
            if key in values or _UNNAMED in "".join(namespace):
                continue
            self._explain(key)
        return values

    def set(self, pairs: Entries) -> None:
        self._cache.set(pairs)
        for namespace, _ in pairs:
            if namespace in self._noted:
                continue
            self._noted.add(namespace)
            task, code = _parted(namespace)
            parts = SOURCES.get(parts_key(code), "")
            self._cache.note_code(
                task,
                namespace,
                parts,
            )

    def clear(
        self,
        namespaces: Sequence[Namespace] | None = None,
    ) -> None:
        self._cache.clear(namespaces)

    def claim(
        self,
        key: FullKey,
    ) -> AbstractContextManager[bool]:
        return self._cache.claim(key)

    def _explain(self, key: FullKey) -> None:
        """Find out whether the cache has a result of earlier code for the arguments of
        *key*. If it has, add the changes since that code to the changes that are
        reported.
        """
        namespace, _ = key
        name = _name_of(namespace)
        lookups = self._lookups.get(namespace, 0)
        if name in self._changes or lookups >= _MOST_LOOKUPS:
            return
        self._lookups[namespace] = lookups + 1
        change = earlier_change(
            self._cache,
            key,
            _OF_PROCESS,
        )
        if change:
            self._changes[name] = change


def earlier_change(
    cache: BaseCache,
    key: FullKey,
    excluded: Collection[Namespace],
) -> str:
    """Return the changes since the newest result of other code with the same arguments.

    Args:
        cache: The cache of the results.
        key: The key of a result of the present code.
        excluded: The namespaces whose results do not count as results of other code.

    Returns:
        The changes as text, or an empty string if the cache has no such result.
    """
    namespace, arguments = key
    task, code = _parted(namespace)
    codes = cache.codes_of(task)
    for earlier, parts in reversed(codes.items()):
        if earlier in excluded:
            continue
        earlier_key = earlier, arguments
        if not cache.get([earlier_key]):
            continue
        _, recorded = _parted(earlier)
        change = changes_text(
            recorded,
            parts,
            code,
        )
        return change or "the changes are not known"
    return ""


def noted_namespaces(cache: BaseCache, namespace: Namespace) -> list[Namespace]:
    """Return the namespaces (one for each version of the code) that a cache has
    recorded for a task, oldest code first.

    Args:
        cache: The cache of the results.
        namespace: The namespace of any code of the task.
    """
    task, _ = _parted(namespace)
    codes = cache.codes_of(task)
    return list(codes)


def _note_namespace(namespace: Namespace) -> None:
    """Record that this process uses a namespace."""
    _OF_PROCESS[namespace] = None
    if len(_OF_PROCESS) > _MOST_NAMESPACES:
        oldest = next(iter(_OF_PROCESS))
        _OF_PROCESS.pop(oldest, None)


def _parted(namespace: Namespace) -> tuple[Namespace, str]:
    """Return a namespace without the label for the code, and that label: a digest or a
    version.
    """
    is_task = namespace[0] == _TASK and len(namespace) == _TASK_LABELS
    if is_task and not _DIGEST.fullmatch(namespace[-1]):
        return namespace[:-1], VERSION + namespace[-1]
    codes: list[str] = []
    labels: list[str] = []
    for label in namespace:
        group = codes if _DIGEST.fullmatch(label) else labels
        group.append(label)
    code = codes[0] if codes else ""
    return tuple(labels), code


def _name_of(namespace: Namespace) -> str:
    """Return the name of a task or a node for a notice."""
    label = namespace[0]
    if label == _TASK and len(namespace) == _TASK_LABELS:
        label = namespace[2]
    return label.rpartition(".")[2]
