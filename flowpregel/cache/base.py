"""The contract of a cache: results that tasks with the same input share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias, TypeVar

from flowpregel._pickling.process_bound import ProcessBound

__all__ = ["BaseCache", "FullKey", "Namespace"]

Namespace: TypeAlias = tuple[str, ...]
"""The labels under which results are kept, such as the name of a task."""
FullKey: TypeAlias = tuple[Namespace, str]
"""The namespace of a result, which identifies the task's function, and the key of the
result, which is the digest of the input.
"""
Entries: TypeAlias = Mapping[FullKey, tuple[Any, float | None]]
"""Values, each with the time to live in seconds, or None if the value does not expire.
"""
Answer = TypeVar("Answer")


class BaseCache(ProcessBound, ABC):
    """A store of values for a limited time; it may delete any of them earlier.

    A subclass defines `get`, `set` and `clear`; the ``a...`` methods call these.
    """

    answers_at_once: ClassVar[bool] = False
    """True if a call of a method takes less time than passing the call to another OS
    thread.
    """

    @abstractmethod
    def get(
        self,
        keys: Sequence[FullKey],
    ) -> dict[FullKey, Any]:
        """Return the stored values by key. Those *keys* that have no value are left
        out.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> cache = InMemoryCache()
            >>> cache.set({(("lengths",), "ada"): (3, None)})
            >>> cache.get([(("lengths",), "ada"), (("lengths",), "bob")])
            {(('lengths',), 'ada'): 3}
        """

    @abstractmethod
    def set(self, pairs: Entries) -> None:
        """Store the value of each key in *pairs*, for its time to live.

        Raises:
            ValueEncodingError: A value cannot be stored; then none of the values is
                stored.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> cache = InMemoryCache()
            >>> cache.set({(("lengths",), "ada"): (3, 60)})  # for 60 seconds
        """

    @abstractmethod
    def clear(
        self,
        namespaces: Sequence[Namespace] | None = None,
    ) -> None:
        """Delete all values, or only the values in exactly these *namespaces*.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> cache = InMemoryCache()
            >>> cache.set({(("lengths",), "ada"): (3, None)})
            >>> cache.clear([("lengths",)])
            >>> cache.get([(("lengths",), "ada")])
            {}
        """

    def claim(
        self,
        key: FullKey,
    ) -> AbstractContextManager[bool]:
        """Claim the computation of the value of *key* while the context is open.

        Returns:
            A context whose value is False if another caller has claimed the key. A
            cache that does not override this method lets all callers compute.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> with InMemoryCache().claim((("lengths",), "ada")) as is_ours:
            ...     is_ours
            True
        """
        return nullcontext(True)

    def codes_of(self, task: Namespace) -> dict[Namespace, str]:
        """Return the latest code versions of a task that `note_code` has recorded.

        The keys are namespaces with a label for the code, oldest first. Each value
        describes the parts of that code.

        The default returns an empty dict. Messages then do not explain why a result is
        missing.

        Args:
            task: The labels of the task, without the labels of code.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> cache = InMemoryCache()
            >>> cache.note_code(("double",), ("double", "1f3a"), "")
            >>> cache.codes_of(("double",))
            {('double', '1f3a'): ''}
        """
        return {}

    def note_code(self, task: Namespace, namespace: Namespace, parts: str) -> None:
        """Record the code of a task whose results are stored. The default does nothing.

        Args:
            task: The labels of the task, without the labels of code.
            namespace: The namespace of the results.
            parts: A record of the parts of the code, which messages compare.

        Example:
            >>> from flowpregel.cache.memory import InMemoryCache
            >>> cache = InMemoryCache()
            >>> cache.note_code(("double",), ("double", "1f3a"), "")
        """

    async def aget(
        self,
        keys: Sequence[FullKey],
    ) -> dict[FullKey, Any]:
        """Call `get` without blocking the event loop."""
        return await self._off_loop(lambda: self.get(keys))

    async def aset(self, pairs: Entries) -> None:
        """Call `set` without blocking the event loop."""
        await self._off_loop(lambda: self.set(pairs))

    async def aclear(
        self,
        namespaces: Sequence[Namespace] | None = None,
    ) -> None:
        """Call `clear` without blocking the event loop."""
        await self._off_loop(lambda: self.clear(namespaces))

    async def _off_loop(self, function: Callable[[], Answer]) -> Answer:
        """Run *function* on another OS thread, so that it does not block the event
        loop. If the cache answers at once, run it on this OS thread.
        """
        if self.answers_at_once:
            return function()
        # asyncio is imported only here, because its import takes 44 ms. If the caller
        # runs on an event loop, asyncio has already been imported.
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(function)
