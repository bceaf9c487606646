"""The contract of a cache: results that tasks with the same input share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias, TypeVar

from flowpregel._core.copies import Resident

__all__ = ["BaseCache", "FullKey", "Namespace"]

Namespace: TypeAlias = tuple[str, ...]
FullKey: TypeAlias = tuple[Namespace, str]
"""(namespace, key): a task's function and the digest of its input."""
Answer = TypeVar("Answer")


class BaseCache(Resident, ABC):
    """Keeps values for a time; it may forget any of them earlier.

    A subclass gives `get`, `set` and `clear`; the ``a...`` methods are given here.
    """

    answers_at_once: ClassVar[bool] = False
    """Whether a call costs less than handing it to an OS thread."""

    @abstractmethod
    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of those *keys* that have one."""

    @abstractmethod
    def set(self, pairs: Mapping[FullKey, tuple[Any, float | None]]) -> None:
        """Keep values, each with the seconds it may be used (None: for ever).

        Raises:
            ValueEncodingError: A value cannot be kept; then none is.
        """

    @abstractmethod
    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Forget everything, or what is in exactly these *namespaces*."""

    def claim(self, key: FullKey) -> AbstractContextManager[bool]:
        """Claim to compute the value of *key* while the context is open.

        Returns:
            A context whose value is False if somebody else has claimed it. Without a
            claim of its own, a cache lets everybody compute.
        """
        return nullcontext(True)

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """`get`, without blocking the event loop."""
        return await self._off_loop(lambda: self.get(keys))

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, float | None]]) -> None:
        """`set`, without blocking the event loop."""
        await self._off_loop(lambda: self.set(pairs))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """`clear`, without blocking the event loop."""
        await self._off_loop(lambda: self.clear(namespaces))

    async def _off_loop(self, function: Callable[[], Answer]) -> Answer:
        """Run *function* where it does not block the event loop."""
        if self.answers_at_once:
            return function()
        import asyncio  # noqa: PLC0415 - 44 ms, for those who have it anyway

        return await asyncio.to_thread(function)
