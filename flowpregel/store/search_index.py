"""What a store can be asked, and which items a search finds: by filters, words or
vectors.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from flowpregel.errors import ConfigurationError, InvalidNamespaceError
from flowpregel.store.base import (
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_WORD = re.compile(r"\w+")
_STEP = re.compile(r"([^.\[\]]+)|\[(\*|-?\d+)\]")


def check(op: Op) -> None:
    """Raise unless a store can do *op*.

    Raises:
        InvalidNamespaceError: A label is empty, no text, or has a ``.`` or NUL in it;
            or what is put has no namespace, or one that begins with ``"langgraph"``.
        ConfigurationError: A value is no dict, a bound is negative, or a filter has an
            unknown comparison.
    """
    match op:
        case GetOp():
            check_labels(op.namespace)
        case PutOp():
            _check_put(op)
        case SearchOp():
            check_labels(op.namespace_prefix)
            _check_bounds(op.limit, op.offset)
            check_filter(op.filter)
        case ListNamespacesOp():
            for condition in op.match_conditions or ():
                check_labels(condition.path)
                if condition.match_type not in ("prefix", "suffix"):
                    raise ConfigurationError(
                        f"match_type is {condition.match_type!r}; use 'prefix' or "
                        "'suffix'"
                    )
            _check_bounds(op.limit, op.offset)
        case _:
            raise ConfigurationError(f"{op!r} is no operation of a store")


def check_labels(namespace: Any) -> None:
    """Raise `InvalidNamespaceError` unless *namespace* consists of possible labels."""
    if not isinstance(namespace, tuple | list):
        raise InvalidNamespaceError(
            f"a namespace is a tuple of texts, not {namespace!r}; write "
            f"({namespace!r},)"
        )
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"label {label!r} of namespace {tuple(namespace)!r} cannot be used; a "
                "label is "
                "a text that is not empty and has no '.' and no NUL in it"
            )


def _check_put(op: PutOp) -> None:
    check_labels(op.namespace)
    if not op.namespace or op.namespace[0] == "langgraph":
        raise InvalidNamespaceError(
            f"nothing can be put under namespace {op.namespace!r}; use at least one "
            "label, "
            "the first other than 'langgraph'"
        )
    if not isinstance(op.key, str):
        raise ConfigurationError(f"a key is a text, not {op.key!r}")
    if op.value is not None and not isinstance(op.value, dict):
        raise ConfigurationError(
            f"the value of {op.key!r} is a {type(op.value).__name__}; put a dict, or "
            "delete it"
        )
    ttl: Any = op.ttl
    if ttl is not None and not (isinstance(ttl, int | float) and ttl > 0):
        raise ConfigurationError(
            f"ttl is {ttl!r} minutes; use more than 0, or None for ever"
        )


def _check_bounds(*bounds: Any) -> None:
    if not all(isinstance(each, int) and each >= 0 for each in bounds):
        raise ConfigurationError(
            f"limit is {bounds[0]!r} and offset {bounds[1]!r}; both are numbers of at "
            "least 0"
        )


def passes(value: Any, wanted: Any) -> bool:
    """Return whether *value* is what a filter wants.

    Args:
        value: What an item has; None where it has nothing.
        wanted: A value that it equals, a dict whose fields its own pass, or a dict of
            comparisons (``$eq $ne $gt $gte $lt $lte``), all of which hold. A
            comparison of two things that have no order does not hold. The whole
            filter has passed `check_filter`.
    """
    if not isinstance(wanted, Mapping):
        return bool(value == wanted)
    if _has_comparison(wanted):
        return all(_compares(value, sign, other) for sign, other in wanted.items())
    if not isinstance(value, Mapping):
        return False
    return all(passes(value.get(key), each) for key, each in wanted.items())


def _compares(value: Any, sign: str, other: Any) -> bool:
    try:
        return bool(_COMPARISONS[sign](value, other))
    except TypeError:
        return False


def check_filter(wanted: Any) -> None:
    """Raise `ConfigurationError` if a filter has an unknown comparison."""
    if not isinstance(wanted, Mapping):
        return
    if not _has_comparison(wanted):
        for each in wanted.values():
            check_filter(each)
    elif unknown := [sign for sign in wanted if sign not in _COMPARISONS]:
        raise ConfigurationError(
            f"a filter has {unknown[0]!r}; the comparisons are "
            f"{', '.join(_COMPARISONS)}"
        )


def _has_comparison(wanted: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and key.startswith("$") for key in wanted)


def matches(namespace: Sequence[str], condition: MatchCondition) -> bool:
    """Return whether *namespace* begins, or ends, as *condition* says."""
    length = len(condition.path)
    if len(namespace) < length:
        return False
    part = (
        namespace[:length] if condition.match_type == "prefix" else namespace[-length:]
    )
    return all(
        wanted in ("*", label)
        for wanted, label in zip(condition.path, part, strict=True)
    )


def texts_at(value: Any, path: str) -> list[str]:
    """Return the texts at *path* of a value, for an embedding.

    Args:
        value: A dict.
        path: ``"$"`` is the whole value; else fields with dots between them, and
            ``[2]``, ``[-1]`` or ``[*]`` for items of a list.

    Example:
        >>> texts_at({"parts": [{"text": "a"}, {"text": "b"}]}, "parts[*].text")
        ['a', 'b']
    """
    if path == "$":
        return [_as_text(value)]
    found = [value]
    for field, index in _STEP.findall(path):
        found = [below for each in found for below in _below(each, field, index)]
    return [_as_text(each) for each in found if each is not None]


def _below(value: Any, field: str, index: str) -> Iterable[Any]:
    if field:
        return [value[field]] if isinstance(value, Mapping) and field in value else []
    if not isinstance(value, list | tuple):
        return []
    if index == "*":
        return value
    number = int(index)
    return [value[number]] if -len(value) <= number < len(value) else []


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    import json  # noqa: PLC0415 - only an index of what is no text needs it

    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def words_of(text: str) -> frozenset[str]:
    """Return the words of *text*, in lower case."""
    return frozenset(_WORD.findall(text.casefold()))


def _leaves(value: Any) -> Iterator[str]:
    """Yield what is at the ends of nested dicts and lists, as texts."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            waiting.extend(each)
        else:
            yield str(each)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one has no length."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return float(sum(map(operator.mul, one, other)) / lengths) if lengths else 0.0


Words: TypeAlias = frozenset[str]
Vector: TypeAlias = tuple[float, ...]


class IndexConfig(TypedDict, total=False):
    """How a store finds items by meaning."""

    embed: Any
    """A function of a list of texts that returns a vector for each, or an object with
    ``embed_documents`` and ``embed_query`` as LangChain has them."""
    dims: int
    """The length of a vector; what `embed` returns is checked against it."""
    fields: Sequence[str]
    """The paths that are looked at where `put` names none; ``["$"]`` is everything."""


class SearchIndex:
    """Makes the vectors, or the words, that a query is compared with.

    Args:
        index: How to make vectors; None: a query ranks by shared words.

    Raises:
        ConfigurationError: The index has no ``embed``.
    """

    def __init__(self, index: IndexConfig | None) -> None:
        if index is not None and not index.get("embed"):
            raise ConfigurationError(
                "an index needs 'embed', a function from texts to vectors"
            )
        self._index = index
        self._fields: Sequence[str] = (index or {}).get("fields") or ("$",)

    def of_puts(
        self, puts: Sequence[PutOp]
    ) -> list[tuple[Words | None, tuple[Vector, ...]]]:
        """Return the words (None: not looked at) and the vectors of each put."""
        texts = [self._texts(op) for op in puts]
        if self._index is not None:
            vectors = self._embedded(text for each in texts for text in each)
            return [(None, tuple(vectors[text] for text in each)) for each in texts]
        return [
            (None if op.index is False else words_of(" ".join(each)), ())
            for op, each in zip(puts, texts, strict=True)
        ]

    def of_queries(self, queries: Iterable[str]) -> Mapping[str, Words | Vector]:
        """Return the words of each query, or its vector where there is an index."""
        if self._index is None:
            return {query: words_of(query) for query in queries}
        return self._embedded(queries, as_queries=True)

    def _texts(self, op: PutOp) -> list[str]:
        paths = self._fields if op.index is None else (op.index or ())
        if self._index is None and "$" in paths:
            return [*_leaves(op.value)]  # the names of fields are no words of a value
        return [text for path in paths for text in texts_at(op.value, path)]

    def _embedded(
        self, given: Iterable[str], *, as_queries: bool = False
    ) -> dict[str, Vector]:
        """Return the vector of each text, all embedded in one call.

        Raises:
            ConfigurationError: These are not the vectors that the index says.
        """
        index: Any = self._index
        embed, dims = index["embed"], index.get("dims")
        if not (texts := [*dict.fromkeys(given)]):
            return {}
        if as_queries and hasattr(embed, "embed_query"):
            found = [embed.embed_query(text) for text in texts]
        else:
            found = [*getattr(embed, "embed_documents", embed)(texts)]
        vectors = [tuple(map(float, vector)) for vector in found]
        lengths = {len(vector) for vector in vectors}
        if len(vectors) != len(texts) or (dims is not None and lengths != {dims}):
            raise ConfigurationError(
                f"embed returned {len(vectors)} vectors of {sorted(lengths)} numbers "
                "for "
                f"{len(texts)} texts; the index has dims={dims}"
            )
        return dict(zip(texts, vectors, strict=True))


def score(
    query: Words | Vector, words: Words | None, vectors: Iterable[Vector]
) -> float | None:
    """Return how well an item fits a query; None if a query does not look at it."""
    if isinstance(query, tuple):
        return max((cosine(query, each) for each in vectors), default=None)
    if words is None:
        return None
    return len(query & words) / len(query) if query else 0.0
