"""The checks of a store's operations, and the filters and the ranking of a search."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
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


def check_op(op: Op) -> None:
    """Raise an error unless a store can perform *op*.

    Raises:
        InvalidNamespaceError: A label is empty, is not a string, or contains ``.`` or
            NUL; or the namespace of a put is empty, or begins with ``"langgraph"``.
        ConfigurationError: A value is not a dict, a limit or an offset is negative, or
            a filter has an unknown comparison.
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
                _check_condition(condition)
            _check_bounds(op.limit, op.offset)
        case _:
            raise ConfigurationError(f"{op!r} is not an operation of a store")


def check_labels(namespace: Any) -> None:
    """Raise `InvalidNamespaceError` unless *namespace* consists of valid labels."""
    if not isinstance(namespace, tuple | list):
        raise InvalidNamespaceError(
            f"a namespace is a tuple of texts, not {namespace!r}; "
            f"write ({namespace!r},)"
        )
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"label {label!r} of namespace {tuple(namespace)!r} cannot be used; "
                "a label is a text that is not empty and has no '.' and no NUL in it"
            )


def _check_condition(condition: MatchCondition) -> None:
    check_labels(condition.path)
    if condition.match_type not in ("prefix", "suffix"):
        raise ConfigurationError(
            f"match_type is {condition.match_type!r}; use 'prefix' or 'suffix'"
        )


def _check_put(op: PutOp) -> None:
    check_labels(op.namespace)
    if not op.namespace or op.namespace[0] == "langgraph":
        raise InvalidNamespaceError(
            f"no item can be put under namespace {op.namespace!r}; use at least one "
            "label, the first other than 'langgraph'"
        )
    if not isinstance(op.key, str):
        raise ConfigurationError(f"a key is a text, not {op.key!r}")
    if op.value is not None and not isinstance(op.value, dict):
        raise ConfigurationError(
            f"the value of {op.key!r} is a {type(op.value).__name__}; "
            "put a dict, or delete it"
        )
    ttl: Any = op.ttl
    if ttl is None:
        return
    if not isinstance(ttl, int | float) or not ttl > 0:
        raise ConfigurationError(
            f"ttl is {ttl!r} minutes; use more than 0, or None to keep items forever"
        )


def _check_bounds(limit: Any, offset: Any) -> None:
    for bound in (limit, offset):
        if not isinstance(bound, int) or bound < 0:
            raise ConfigurationError(
                f"limit is {limit!r} and offset {offset!r}; "
                "both are numbers of at least 0"
            )


def passes(value: Any, condition: Any) -> bool:
    """Return whether *value* passes a filter.

    Args:
        value: The value of an item, or None if there is no value.
        condition: A value that must be equal, a dict of conditions for the fields, or a
            dict of comparisons (``$eq $ne $gt $gte $lt $lte``) that must all be true. A
            comparison of two values that have no order is false. The filter must have
            passed `check_filter`.
    """
    if not isinstance(condition, Mapping):
        return bool(value == condition)
    if _has_comparison(condition):
        return all(_compares(value, sign, other) for sign, other in condition.items())
    if not isinstance(value, Mapping):
        return False
    return all(passes(value.get(key), inner) for key, inner in condition.items())


def _compares(
    value: Any,
    sign: str,
    other: Any,
) -> bool:
    try:
        return bool(_COMPARISONS[sign](value, other))
    except TypeError:
        return False


def check_filter(condition: Any) -> None:
    """Raise `ConfigurationError` if a filter has an unknown comparison."""
    if not isinstance(condition, Mapping):
        return
    if not _has_comparison(condition):
        for inner in condition.values():
            check_filter(inner)
        return
    for sign in condition:
        if sign not in _COMPARISONS:
            raise ConfigurationError(
                f"a filter has {sign!r}; the comparisons are {', '.join(_COMPARISONS)}"
            )


def _has_comparison(condition: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and key.startswith("$") for key in condition)


def matches(namespace: Sequence[str], condition: MatchCondition) -> bool:
    """Return whether *namespace* begins with the path of *condition*, or, for a suffix,
    ends with it.
    """
    length = len(condition.path)
    if len(namespace) < length:
        return False
    if condition.match_type == "prefix":
        part = namespace[:length]
    else:
        part = namespace[-length:]
    pairs = zip(condition.path, part, strict=True)
    return all(pattern in ("*", label) for pattern, label in pairs)


def texts_at(value: Any, path: str) -> list[str]:
    """Return the strings at *path* in a value, for an embedding.

    Args:
        value: A dict.
        path: ``"$"`` for the whole value, or the names of fields with dots between
            them, and ``[2]``, ``[-1]`` or ``[*]`` for items of a list.

    Example:
        >>> texts_at({"parts": [{"text": "a"}, {"text": "b"}]}, "parts[*].text")
        ['a', 'b']
    """
    if path == "$":
        return [_embedding_text(value)]
    values = [value]
    for field, index in _STEP.findall(path):
        inner_values: list[Any] = []
        for outer in values:
            inner_values += _below(outer, field, index)
        values = inner_values
    return [_embedding_text(inner) for inner in values if inner is not None]


def _below(
    value: Any,
    field: str,
    index: str,
) -> Iterable[Any]:
    """Return the parts of *value* to which one step of a path leads: the value of a
    field, an item of a list or, for the index ``*``, all items of a list.
    """
    if field:
        if isinstance(value, Mapping) and field in value:
            return [value[field]]
        return []
    if not isinstance(value, list | tuple):
        return []
    if index == "*":
        return value
    number = int(index)
    if -len(value) <= number < len(value):
        return [value[number]]
    return []


def _embedding_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    import json  # noqa: PLC0415 - only an index of other values than texts needs it

    return json.dumps(
        value,
        sort_keys=True,
        ensure_ascii=False,
        default=str,
    )


def words_of(text: str) -> frozenset[str]:
    """Return the words of *text*, in lower case."""
    return frozenset(_WORD.findall(text.casefold()))


def _leaves(value: Any) -> Iterator[str]:
    """Yield the innermost values of nested dicts and lists, as strings."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            waiting.extend(item)
        else:
            yield str(item)


def cosine(vector: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors, or 0 if a vector has the
    length 0.
    """
    lengths = math.hypot(*vector) * math.hypot(*other)
    if not lengths:
        return 0.0
    product = sum(map(operator.mul, vector, other))
    return float(product / lengths)


Words: TypeAlias = frozenset[str]
Vector: TypeAlias = tuple[float, ...]


class IndexConfig(TypedDict, total=False):
    """An index of embeddings, with which a store ranks items by their similarity to a
    query.
    """

    embed: Any
    """A function that takes a list of texts and returns a vector for each.

    Or an object with LangChain's methods ``embed_documents`` and ``embed_query``.
    """
    dims: int
    """The length that each vector must have."""
    fields: Sequence[str]
    """The paths of the fields to index if `put` names none; ``["$"]`` is everything."""


class SearchIndex:
    """A maker of the vectors, or without an index the words, by which items are
    compared with a query.

    Args:
        index: The index, or None to rank items by the words that they share with a
            query.

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
        """Return the words and the vectors of each put: vectors if there is an index,
        otherwise words. The words are None if there is an index, or if the put must not
        be indexed.
        """
        texts_of_puts = [self._texts(op) for op in puts]
        terms: list[tuple[Words | None, tuple[Vector, ...]]] = []
        if self._index is not None:
            vectors = self._embedded(chain.from_iterable(texts_of_puts))
            for texts in texts_of_puts:
                vectors_of_put = tuple(vectors[text] for text in texts)
                terms.append((None, vectors_of_put))
            return terms
        for op, texts in zip(puts, texts_of_puts, strict=True):
            words = None
            if op.index is not False:
                words = words_of(" ".join(texts))
            terms.append((words, ()))
        return terms

    def of_queries(self, queries: Iterable[str]) -> Mapping[str, Words | Vector]:
        """Return the words of each query, or its vector if there is an index."""
        if self._index is None:
            return {query: words_of(query) for query in queries}
        return self._embedded(queries, as_queries=True)

    def _texts(self, op: PutOp) -> list[str]:
        paths = self._fields if op.index is None else (op.index or ())
        if self._index is None and "$" in paths:
            # Only the values of fields count: the names of fields must not match a
            # query.
            return list(_leaves(op.value))
        texts: list[str] = []
        for path in paths:
            texts += texts_at(op.value, path)
        return texts

    def _embedded(
        self, texts: Iterable[str], *, as_queries: bool = False
    ) -> dict[str, Vector]:
        """Return the vector of each text, all embedded in one call.

        Raises:
            ConfigurationError: The number or the length of the vectors is wrong.
        """
        index: Any = self._index
        embed = index["embed"]
        dims = index.get("dims")
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        if as_queries and hasattr(embed, "embed_query"):
            embeddings = [embed.embed_query(text) for text in distinct]
        else:
            embed_all = getattr(embed, "embed_documents", embed)
            embeddings = list(embed_all(distinct))
        vectors = [tuple(map(float, embedding)) for embedding in embeddings]
        lengths = {len(vector) for vector in vectors}
        has_wrong_length = dims is not None and lengths != {dims}
        if len(vectors) != len(distinct) or has_wrong_length:
            raise ConfigurationError(
                f"embed returned {len(vectors)} vectors of {sorted(lengths)} numbers "
                f"for {len(distinct)} texts; the index has dims={dims}"
            )
        return dict(zip(distinct, vectors, strict=True))


def score(
    query: Words | Vector,
    words: Words | None,
    vectors: Iterable[Vector],
) -> float | None:
    """Return the similarity of an item to a query, or None for an unindexed item."""
    if isinstance(query, tuple):
        return max((cosine(query, vector) for vector in vectors), default=None)
    if words is None:
        return None
    if not query:
        return 0.0
    return len(query & words) / len(query)
