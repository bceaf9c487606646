"""The contract of a long-term store: dicts under a namespace and a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)

from flowpregel._async_forms import async_form
from flowpregel._pickling.process_bound import ProcessBound
from flowpregel.errors import ConfigurationError, InvalidNamespaceError

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

NamespacePath: TypeAlias = tuple[str, ...]
"""A namespace, or a pattern of namespaces in which ``"*"`` matches any label."""


class NotProvided(Enum):
    """The type of `NOT_PROVIDED`, the default for a time to live. (None cannot be the
    default, because it means that an item never expires.)

    Example:
        >>> from flowpregel.store.base import NOT_PROVIDED
        >>> NOT_PROVIDED is NotProvided.NOT_PROVIDED
        True
    """

    NOT_PROVIDED = "NOT_PROVIDED"

    def __bool__(self) -> bool:
        return False


NOT_PROVIDED: Final = NotProvided.NOT_PROVIDED
"""The default value of the parameter for a time to live: it means the setting of the
store.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A value with its namespace and key; the value is a copy of the stored one."""

    value: dict[str, Any] = field(hash=False)
    """The stored dict."""
    key: str
    """The key of the item in the namespace."""
    namespace: tuple[str, ...]
    """The labels under which the item is stored."""
    created_at: datetime
    """The time at which the item was first stored."""
    updated_at: datetime
    """The time at which the item was last stored."""

    def dict(self) -> dict[str, Any]:
        """Return the item in the form of JSON, with times as ISO 8601 strings."""
        return {
            "namespace": list(self.namespace),
            "key": self.key,
            "value": self.value,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchItem(Item):
    """An item that a search found."""

    score: float | None = None
    """The similarity to the query; None without a query, or if it is unknown."""

    def dict(self) -> dict[str, Any]:
        """Return the item in the form of JSON, with its score."""
        # `super()` without arguments does not work here, because a dataclass with slots
        # is a new class, and `super()` would refer to the class without slots.
        return {**Item.dict(self), "score": self.score}


class GetOp(NamedTuple):
    """Read one item; the answer is an `Item` or None.

    Example:
        >>> from flowpregel.store.base import PutOp
        >>> from flowpregel.store.memory import InMemoryStore
        >>> store = InMemoryStore()
        >>> store.batch([PutOp(("users",), "ada", {"age": 36})])
        [None]
        >>> store.batch([GetOp(("users",), "ada")])[0].value
        {'age': 36}
    """

    namespace: tuple[str, ...]
    """The namespace of the item."""
    key: str
    """The key of the item."""
    refresh_ttl: bool | None = None
    """True to restart the item's time to live. None means the store's setting."""


class SearchOp(NamedTuple):
    """Find items; the answer is a list of `SearchItem`.

    Example:
        >>> from flowpregel.store.base import PutOp
        >>> from flowpregel.store.memory import InMemoryStore
        >>> store = InMemoryStore()
        >>> store.batch([PutOp(("users",), "ada", {"age": 36})])
        [None]
        >>> [items] = store.batch([SearchOp(("users",), filter={"age": 36})])
        >>> [item.key for item in items]
        ['ada']
    """

    namespace_prefix: tuple[str, ...]
    """The labels with which the namespaces of the items begin."""
    filter: dict[str, Any] | None = None
    """The conditions on the fields of values, or None."""
    limit: int = 10
    """The greatest number of items."""
    offset: int = 0
    """The number of items to skip."""
    query: str | None = None
    """The text by which the found items are ranked, or None."""
    refresh_ttl: bool | None = None
    """True to restart the time to live of the found items. None means the store's
    setting.
    """


class PutOp(NamedTuple):
    """Store a value, or delete it (None); the answer is None.

    Example:
        >>> from flowpregel.store.memory import InMemoryStore
        >>> store = InMemoryStore()
        >>> store.batch([PutOp(("users",), "ada", {"age": 36})])
        [None]
        >>> store.get(("users",), "ada").value
        {'age': 36}
    """

    namespace: tuple[str, ...]
    """The namespace of the item."""
    key: str
    """The key of the item."""
    value: dict[str, Any] | None
    """The value to store, or None to delete the item."""
    # LangGraph uses the name ``index``, so this class uses it too, although it hides
    # the method `tuple.index`.
    index: Literal[False] | Sequence[str] | None = None  # type: ignore[assignment]
    """The paths of the fields to index. None means the paths in the store's setting,
    False means no paths.
    """
    ttl: float | None = None
    """The minutes until the item is deleted. None means never."""


class MatchCondition(NamedTuple):
    """A pattern of the beginning or end of a namespace; ``"*"`` matches any label."""

    match_type: Literal["prefix", "suffix"]
    """The part of a namespace that *path* describes."""
    path: NamespacePath
    """The labels of the beginning or end of a namespace, in order."""


class ListNamespacesOp(NamedTuple):
    """List namespaces that have items; the answer is a sorted list of tuples."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    """The patterns, or None. A namespace must match all of them."""
    max_depth: int | None = None
    """The number of labels to which longer namespaces are cut."""
    limit: int = 100
    """The greatest number of namespaces."""
    offset: int = 0
    """The number of namespaces to skip."""


Op: TypeAlias = GetOp | SearchOp | PutOp | ListNamespacesOp
"""An operation of `BaseStore.batch`."""
Result: TypeAlias = Item | list[Item] | list[SearchItem] | list[tuple[str, ...]] | None
"""The answer to an operation of `BaseStore.batch`."""


class TTLConfig(TypedDict, total=False):
    """The settings for the time to live of items that are put without one."""

    default_ttl: float | None
    """The minutes until an item expires. None means that items never expire."""
    refresh_on_read: bool
    """True if reading an item starts its time to live again (the default)."""


Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class BaseStore(ProcessBound, ABC):
    """A store of dicts under a namespace (a tuple of labels) and a key.

    A subclass defines `batch`; all other methods call it. The ``a...`` methods do the
    same without blocking the event loop.
    """

    supports_ttl: ClassVar[bool] = False
    answers_at_once: ClassVar[bool] = False
    """True if `batch` takes less time than passing the call to another OS thread."""
    ttl_config: TTLConfig | None = None

    @abstractmethod
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Perform all of *ops* and return an answer for each, in their order.

        All reads see the state before the batch. Then all values are put; of two puts
        to the same key, the last one takes effect.

        Raises:
            InvalidNamespaceError: A namespace has an invalid label.
            ConfigurationError: An operation is invalid; then none is performed.
        """

    @async_form(batch)
    async def abatch(self, *args: Any, **kwargs: Any) -> Any:
        """`batch`, without blocking the event loop."""
        return await self._off_loop(self.batch, *args, **kwargs)

    def get(
        self,
        namespace: tuple[str, ...],
        key: str,
        *,
        refresh_ttl: bool | None = None,
    ) -> Item | None:
        """Return the item under *key*, or None.

        Args:
            namespace: The labels of the item's namespace.
            key: The key of the item.
            refresh_ttl: True to start the item's time to live again; None for the
                store's setting.

        Example:
            >>> from flowpregel.store.memory import InMemoryStore
            >>> store = InMemoryStore()
            >>> store.put(("users", "ada"), "food", {"likes": "pizza"})
            >>> store.get(("users", "ada"), "food").value
            {'likes': 'pizza'}
        """
        op = GetOp(_labels(namespace), key, refresh_ttl)
        return cast("Item | None", self.batch([op])[0])

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
            namespace_prefix: The beginning of the items' namespaces; ``()`` means all.
            query: A text by which the items are ranked: by the similarity of embeddings
                if the store has an index, otherwise by the words that it shares with
                the items' texts.
            filter: The conditions for fields: a value, a dict of nested fields, or a
                comparison such as ``{"$gte": 3}`` (``$eq $ne $gt $gte $lt $lte``).
            limit: The greatest number of items.
            offset: The number of items to skip.
            refresh_ttl: The option of `get`, for each item that is returned.

        Example:
            >>> from flowpregel.store.memory import InMemoryStore
            >>> store = InMemoryStore()
            >>> store.put(("users", "ada"), "food", {"likes": "pizza", "since": 2020})
            >>> store.put(("users", "bob"), "food", {"likes": "soup", "since": 2024})
            >>> items = store.search(("users",), filter={"since": {"$gt": 2022}})
            >>> [item.value["likes"] for item in items]
            ['soup']
            >>> items = store.search(("users",), query="who likes pizza?", limit=1)
            >>> [item.namespace for item in items]
            [('users', 'ada')]
        """
        op = SearchOp(
            _labels(namespace_prefix),
            filter,
            limit,
            offset,
            query,
            refresh_ttl,
        )
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
        """Store *value* under *key*, and replace the earlier value.

        Args:
            namespace: The labels of the item's namespace, at least one.
            key: The key of the item.
            value: A dict; the store keeps a copy.
            index: The paths of the fields to index (``"title"``, ``"parts[*].text"``);
                None means the store's setting, False means none.
            ttl: Minutes until the item is deleted; None means never.

        Raises:
            NotImplementedError: A *ttl* is given to a store that does not support it.

        Example:
            >>> from flowpregel.store.memory import InMemoryStore
            >>> store = InMemoryStore()
            >>> store.put(("users", "ada"), "food", {"likes": "pizza"})
            >>> store.put(("users", "ada"), "food", {"likes": "soup"})
            >>> store.get(("users", "ada"), "food").value
            {'likes': 'soup'}
        """
        if isinstance(ttl, NotProvided):
            minutes = (self.ttl_config or {}).get("default_ttl")
        elif self.supports_ttl:
            minutes = ttl
        else:
            raise NotImplementedError(
                f"{type(self).__name__} does not support ttl: it keeps items forever; "
                "leave ttl out"
            )
        if value is None:
            raise ConfigurationError(
                f"the value of {key!r} is None; put a dict, or delete it"
            )
        self.batch(
            [
                PutOp(
                    _labels(namespace),
                    key,
                    value,
                    index,
                    minutes,
                )
            ]
        )

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Delete the item under *key*, if there is one.

        Args:
            namespace: The namespace of the item.
            key: The key of the item.

        Example:
            >>> from flowpregel.store.memory import InMemoryStore
            >>> store = InMemoryStore()
            >>> store.put(("users", "ada"), "food", {"likes": "pizza"})
            >>> store.delete(("users", "ada"), "food")
            >>> store.get(("users", "ada"), "food") is None
            True
        """
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
            prefix: The beginning of the namespaces; ``"*"`` matches any label.
            suffix: The end of the namespaces.
            max_depth: The number of labels to which longer namespaces are cut.
            limit: The greatest number of namespaces.
            offset: The number of namespaces to skip.

        Example:
            >>> from flowpregel.store.memory import InMemoryStore
            >>> store = InMemoryStore()
            >>> for user in ("ada", "bob"):
            ...     store.put(("users", user, "notes"), "1", {"text": "hello"})
            >>> store.list_namespaces(prefix=("users",), max_depth=2)
            [('users', 'ada'), ('users', 'bob')]
        """
        conditions = []
        if prefix:
            conditions.append(MatchCondition("prefix", _labels(prefix)))
        if suffix:
            conditions.append(MatchCondition("suffix", _labels(suffix)))
        op = ListNamespacesOp(
            tuple(conditions),
            max_depth,
            limit,
            offset,
        )
        return cast("list[tuple[str, ...]]", self.batch([op])[0])

    @async_form(get)
    async def aget(self, *args: Any, **kwargs: Any) -> Any:
        """`get`, without blocking the event loop."""
        return await self._off_loop(self.get, *args, **kwargs)

    @async_form(search)
    async def asearch(self, *args: Any, **kwargs: Any) -> Any:
        """`search`, without blocking the event loop."""
        return await self._off_loop(self.search, *args, **kwargs)

    @async_form(put)
    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        """`put`, without blocking the event loop."""
        return await self._off_loop(self.put, *args, **kwargs)

    @async_form(delete)
    async def adelete(self, *args: Any, **kwargs: Any) -> Any:
        """`delete`, without blocking the event loop."""
        return await self._off_loop(self.delete, *args, **kwargs)

    @async_form(list_namespaces)
    async def alist_namespaces(self, *args: Any, **kwargs: Any) -> Any:
        """`list_namespaces`, without blocking the event loop."""
        return await self._off_loop(self.list_namespaces, *args, **kwargs)

    async def _off_loop(
        self,
        method: Callable[Parameters, Answer],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Answer:
        """Call *method* on another OS thread, so that it does not block the event loop.
        If the store answers at once, call it on this OS thread.
        """
        if self.answers_at_once:
            return method(*args, **kwargs)
        # asyncio is imported only here, because its import takes 44 ms. If the caller
        # runs on an event loop, asyncio has already been imported.
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(method, *args, **kwargs)


def _labels(namespace: Any) -> Any:
    # Only a list is converted. A namespace that is a string must reach `check_op`
    # unchanged, which raises an error for it; `tuple` would split it into letters.
    return tuple(namespace) if isinstance(namespace, list) else namespace
