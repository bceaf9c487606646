"""The contract of a long-term store: dicts under a namespace and a key, for all threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, TypedDict, cast

from flowpregel.errors import ConfigurationError, InvalidNamespaceError
from flowpregel.store.ops import (
    NOT_PROVIDED,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    NamespacePath,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)

__all__ = [
    "NOT_PROVIDED",
    "BaseStore",
    "GetOp",
    "InvalidNamespaceError",
    "Item",
    "ListNamespacesOp",
    "MatchCondition",
    "NamespacePath",
    "NotProvided",
    "Op",
    "PutOp",
    "Result",
    "SearchItem",
    "SearchOp",
    "TTLConfig",
]


class TTLConfig(TypedDict, total=False):
    """How long a store keeps items that do not say so themselves."""

    default_ttl: float | None
    """Minutes; None is for ever."""
    refresh_on_read: bool
    """Whether reading an item starts its time again (default: yes)."""


class BaseStore(ABC):
    """Keeps dicts under a namespace (a tuple of labels) and a key.

    A subclass gives `batch`; everything else is given here in terms of it. The
    ``a...`` methods do the same without blocking the event loop.
    """

    supports_ttl: ClassVar[bool] = False
    answers_at_once: ClassVar[bool] = False
    """Whether `batch` costs less than handing it to an OS thread."""
    ttl_config: TTLConfig | None = None

    @abstractmethod
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do all of *ops* and return an answer for each, in their order.

        What is read is what was there before; then everything is put, and of two
        puts of one key the last one stays.

        Raises:
            InvalidNamespaceError: A namespace has a label it cannot have.
            ConfigurationError: An operation cannot be done; then none is.
        """

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch`, without blocking the event loop."""
        if self.answers_at_once:
            return self.batch(ops)
        import asyncio  # noqa: PLC0415 - 44 ms, for those who have it anyway

        return await asyncio.to_thread(self.batch, ops)

    def get(
        self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """Return the item under *key*, or None.

        Args:
            namespace: Its labels.
            key: Its key.
            refresh_ttl: Whether its time to live starts again; None is what the
                store is set to.

        Example:
            >>> from flowpregel.store.memory import InMemoryStore
            >>> store = InMemoryStore()
            >>> store.put(("users", "ada"), "food", {"likes": "pizza"})
            >>> store.get(("users", "ada"), "food").value
            {'likes': 'pizza'}
        """
        return cast("Item | None", self.batch([_get(namespace, key, refresh_ttl)])[0])

    def search(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return the items below a namespace, the best first if there is a *query*.

        Args:
            namespace_prefix: What their namespaces begin with; ``()`` is all.
            query: A text to rank them by: by meaning where the store has an index,
                else by the words it shares with their texts.
            filter: What fields have to be: a value, a dict of nested fields, or a
                comparison such as ``{"$gte": 3}`` (``$eq $ne $gt $gte $lt $lte``).
            limit: At most this many.
            offset: Leave out this many.
            refresh_ttl: As for `get`, for each item that is returned.
        """
        op = SearchOp(_labels(namespace_prefix), filter, limit, offset, query, refresh_ttl)
        return cast("list[SearchItem]", self.batch([op])[0])

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: dict[str, Any],
        index: Literal[False] | Sequence[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Keep *value* under *key*, in the place of what was there.

        Args:
            namespace: Its labels, at least one.
            key: Its key.
            value: A dict; a copy of it is kept.
            index: The paths that a query looks at (``"title"``, ``"parts[*].text"``);
                None is what the store is set to, False is none.
            ttl: Minutes until it is forgotten; None is never.

        Raises:
            NotImplementedError: A *ttl* is given, and the store has none.
        """
        self.batch([self._put(namespace, key, value, index, ttl)])

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Forget what is under *key*, if there is something."""
        self.batch([PutOp(_labels(namespace), key, None)])

    def list_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """Return the namespaces that have items, sorted.

        Args:
            prefix: What they begin with; ``"*"`` is any label.
            suffix: What they end with.
            max_depth: Cut longer ones to this many labels.
            limit: At most this many.
            offset: Leave out this many.
        """
        op = ListNamespacesOp(_conditions(prefix, suffix), max_depth, limit, offset)
        return cast("list[tuple[str, ...]]", self.batch([op])[0])

    async def aget(
        self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """`get`, without blocking the event loop."""
        return cast("Item | None", (await self.abatch([_get(namespace, key, refresh_ttl)]))[0])

    async def asearch(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """`search`, without blocking the event loop."""
        op = SearchOp(_labels(namespace_prefix), filter, limit, offset, query, refresh_ttl)
        return cast("list[SearchItem]", (await self.abatch([op]))[0])

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: dict[str, Any],
        index: Literal[False] | Sequence[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """`put`, without blocking the event loop."""
        await self.abatch([self._put(namespace, key, value, index, ttl)])

    async def adelete(self, namespace: tuple[str, ...], key: str) -> None:
        """`delete`, without blocking the event loop."""
        await self.abatch([PutOp(_labels(namespace), key, None)])

    async def alist_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """`list_namespaces`, without blocking the event loop."""
        op = ListNamespacesOp(_conditions(prefix, suffix), max_depth, limit, offset)
        return cast("list[tuple[str, ...]]", (await self.abatch([op]))[0])

    def _put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: dict[str, Any],
        index: Literal[False] | Sequence[str] | None,
        ttl: float | NotProvided | None,
    ) -> PutOp:
        if isinstance(ttl, NotProvided):
            minutes = (self.ttl_config or {}).get("default_ttl")
        else:
            minutes = ttl
            if not self.supports_ttl:
                raise NotImplementedError(
                    f"{type(self).__name__} keeps items for ever; leave ttl out"
                )
        if value is None:
            raise ConfigurationError(f"the value of {key!r} is None; put a dict, or delete it")
        return PutOp(_labels(namespace), key, value, index, minutes)


def _labels(namespace: Any) -> Any:
    # A bare text is left for `check` to refuse: as a tuple it would be its letters.
    return tuple(namespace) if isinstance(namespace, list) else namespace


def _get(namespace: Any, key: str, refresh_ttl: bool | None) -> GetOp:
    return GetOp(_labels(namespace), key, refresh_ttl)


def _conditions(
    prefix: NamespacePath | None, suffix: NamespacePath | None
) -> tuple[MatchCondition, ...]:
    conditions: list[MatchCondition] = []
    if prefix:
        conditions.append(MatchCondition("prefix", _labels(prefix)))
    if suffix:
        conditions.append(MatchCondition("suffix", _labels(suffix)))
    return tuple(conditions)
