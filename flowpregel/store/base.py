"""The contract of a long-term store: dicts under a namespace and a key, for all
threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import wraps
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)

from flowpregel._core.copies import Resident
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
"""A namespace, or a pattern of one in which ``"*"`` is any label."""


class NotProvided(Enum):
    """The type of `NOT_PROVIDED`: None is a time to live, for ever."""

    NOT_PROVIDED = "NOT_PROVIDED"

    def __bool__(self) -> bool:
        return False


NOT_PROVIDED: Final = NotProvided.NOT_PROVIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A value under its namespace and key; changing the value changes nothing
    stored.
    """

    value: dict[str, Any] = field(hash=False)
    key: str
    namespace: tuple[str, ...]
    created_at: datetime
    """When the key was put first."""
    updated_at: datetime
    """When it was put last."""

    def dict(self) -> dict[str, Any]:
        """Return the item as JSON has it, the times as ISO 8601 texts."""
        return {
            "namespace": [*self.namespace],
            "key": self.key,
            "value": self.value,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchItem(Item):
    """An item that a search found."""

    score: float | None = None
    """How well it fits the query; None where that was not asked or is not known."""

    def dict(self) -> dict[str, Any]:
        """Return the item as JSON has it, with its score."""
        # The arguments: in a class with slots, plain super() finds the class before
        # them.
        return {**Item.dict(self), "score": self.score}


class GetOp(NamedTuple):
    """Read one item; the answer is an `Item` or None."""

    namespace: tuple[str, ...]
    key: str
    refresh_ttl: bool | None = None
    """Whether the item's time to live starts again; None is what the store is set
    to.
    """


class SearchOp(NamedTuple):
    """Find items; the answer is a list of `SearchItem`."""

    namespace_prefix: tuple[str, ...]
    filter: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class PutOp(NamedTuple):
    """Keep a value, or forget it (None); the answer is None."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any] | None
    index: Literal[False] | Sequence[str] | None = None  # type: ignore[assignment] # as LangGraph
    """The paths a query looks at; None: those of the store; False: it is not looked
    at.
    """
    ttl: float | None = None
    """Minutes until it is forgotten; None is never."""


class MatchCondition(NamedTuple):
    """A pattern that a namespace begins or ends with; ``"*"`` stands for any label."""

    match_type: Literal["prefix", "suffix"]
    path: NamespacePath


class ListNamespacesOp(NamedTuple):
    """List namespaces that have items; the answer is a sorted list of tuples."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    max_depth: int | None = None
    """Longer ones are cut to this many labels."""
    limit: int = 100
    offset: int = 0


Op: TypeAlias = GetOp | SearchOp | PutOp | ListNamespacesOp
Result: TypeAlias = Item | list[Item] | list[SearchItem] | list[tuple[str, ...]] | None


class TTLConfig(TypedDict, total=False):
    """How long a store keeps items that do not say so themselves."""

    default_ttl: float | None
    """Minutes; None is for ever."""
    refresh_on_read: bool
    """Whether reading an item starts its time again (default: yes)."""


Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


def _async_form(
    method: Callable[Concatenate[Any, Parameters], Answer],
) -> Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Answer]]:
    """Return the method of this name as a coroutine function that blocks no event
    loop.
    """

    async def call(
        self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Answer:
        function: Callable[Parameters, Answer] = getattr(self, method.__name__)
        if self.answers_at_once:
            return function(*args, **kwargs)
        import asyncio  # noqa: PLC0415 - 44 ms, for those who have it anyway

        return await asyncio.to_thread(function, *args, **kwargs)

    # Without its attributes, which say that `batch` is abstract.
    wraps(method, updated=())(call).__name__ = f"a{method.__name__}"
    call.__doc__ = f"`{method.__name__}`, without blocking the event loop."
    return call


class BaseStore(Resident, ABC):
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

    abatch = _async_form(batch)

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
        return cast(
            "Item | None", self.batch([GetOp(_labels(namespace), key, refresh_ttl)])[0]
        )

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
        op = SearchOp(
            _labels(namespace_prefix), filter, limit, offset, query, refresh_ttl
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
        if isinstance(ttl, NotProvided):
            minutes = (self.ttl_config or {}).get("default_ttl")
        elif self.supports_ttl:
            minutes = ttl
        else:
            raise NotImplementedError(
                f"{type(self).__name__} keeps items for ever; leave ttl out"
            )
        if value is None:
            raise ConfigurationError(
                f"the value of {key!r} is None; put a dict, or delete it"
            )
        self.batch([PutOp(_labels(namespace), key, value, index, minutes)])

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
        conditions = []
        if prefix:
            conditions.append(MatchCondition("prefix", _labels(prefix)))
        if suffix:
            conditions.append(MatchCondition("suffix", _labels(suffix)))
        op = ListNamespacesOp(tuple(conditions), max_depth, limit, offset)
        return cast("list[tuple[str, ...]]", self.batch([op])[0])

    aget = _async_form(get)
    asearch = _async_form(search)
    aput = _async_form(put)
    adelete = _async_form(delete)
    alist_namespaces = _async_form(list_namespaces)


def _labels(namespace: Any) -> Any:
    # A bare text is left for `check` to refuse: as a tuple it would be its letters.
    return tuple(namespace) if isinstance(namespace, list) else namespace
