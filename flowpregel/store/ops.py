"""What a store is asked (operations), and the items it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel.errors import ConfigurationError, InvalidNamespaceError

NamespacePath: TypeAlias = tuple[str, ...]
"""A namespace, or a pattern of one in which ``"*"`` is any label."""


class NotProvided(Enum):
    """The type of `NOT_PROVIDED`: None is a time to live, for ever."""

    NOT_PROVIDED = "NOT_PROVIDED"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "NOT_PROVIDED"


NOT_PROVIDED: Final = NotProvided.NOT_PROVIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A value under its namespace and key; changing the value changes nothing stored."""

    value: dict[str, Any]
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

    def __hash__(self) -> int:
        return hash((self.namespace, self.key))


@dataclass(frozen=True, slots=True, kw_only=True, unsafe_hash=False)
class SearchItem(Item):
    """An item that a search found."""

    score: float | None = None
    """How well it fits the query; None where that was not asked or is not known."""

    def dict(self) -> dict[str, Any]:
        """Return the item as JSON has it, with its score."""
        # The arguments: in a class with slots, plain super() finds the class before them.
        return {**Item.dict(self), "score": self.score}

    def __hash__(self) -> int:
        return hash((self.namespace, self.key))


class GetOp(NamedTuple):
    """Read one item; the answer is an `Item` or None."""

    namespace: tuple[str, ...]
    key: str
    refresh_ttl: bool | None = None
    """Whether the item's time to live starts again; None is what the store is set to."""


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
    """The paths a query looks at; None: those of the store; False: it is not looked at."""
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


def check(op: Op) -> None:
    """Raise unless a store can do *op*.

    Raises:
        InvalidNamespaceError: A label is empty, no text, or has a ``.`` or NUL in it;
            or what is put has no namespace, or one that begins with ``"langgraph"``.
        ConfigurationError: A value is no dict, or a bound is negative.
    """
    match op:
        case GetOp():
            check_labels(op.namespace)
        case PutOp():
            _check_put(op)
        case SearchOp():
            check_labels(op.namespace_prefix)
            _check_bounds(op.limit, op.offset)
        case ListNamespacesOp():
            for condition in op.match_conditions or ():
                check_labels(condition.path)
                if condition.match_type not in ("prefix", "suffix"):
                    raise ConfigurationError(
                        f"match_type is {condition.match_type!r}; use 'prefix' or 'suffix'"
                    )
            _check_bounds(op.limit, op.offset)
        case _:
            raise ConfigurationError(f"{op!r} is no operation of a store")


def check_labels(namespace: Any) -> None:
    """Raise `InvalidNamespaceError` unless *namespace* consists of possible labels."""
    if not isinstance(namespace, tuple | list):
        raise InvalidNamespaceError(
            f"a namespace is a tuple of texts, not {namespace!r}; write ({namespace!r},)"
        )
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"label {label!r} of namespace {tuple(namespace)!r} cannot be used; a label is "
                "a text that is not empty and has no '.' and no NUL in it"
            )


def _check_put(op: PutOp) -> None:
    check_labels(op.namespace)
    if not op.namespace or op.namespace[0] == "langgraph":
        raise InvalidNamespaceError(
            f"nothing can be put under namespace {op.namespace!r}; use at least one label, "
            "the first other than 'langgraph'"
        )
    if not isinstance(op.key, str):
        raise ConfigurationError(f"a key is a text, not {op.key!r}")
    if op.value is not None and not isinstance(op.value, dict):
        raise ConfigurationError(
            f"the value of {op.key!r} is a {type(op.value).__name__}; put a dict, or delete it"
        )
    ttl: Any = op.ttl
    if ttl is not None and not (isinstance(ttl, int | float) and ttl > 0):
        raise ConfigurationError(f"ttl is {ttl!r} minutes; use more than 0, or None for ever")


def _check_bounds(limit: Any, offset: Any) -> None:
    if not (isinstance(limit, int) and isinstance(offset, int)):
        raise ConfigurationError(f"limit is {limit!r} and offset {offset!r}; both are numbers")
    if limit < 0 or offset < 0:
        raise ConfigurationError(f"limit is {limit} and offset {offset}; neither can be negative")
