"""Which items a search finds, and how well each fits: functions without a store."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flowpregel.errors import ConfigurationError
from flowpregel.store.ops import MatchCondition

_ORDERED: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_WORD = re.compile(r"\w+")
_STEP = re.compile(r"([^.\[\]]+)|\[(\*|-?\d+)\]")


def passes(value: Any, wanted: Any) -> bool:
    """Return whether *value* is what a filter wants.

    Args:
        value: What an item has; None where it has nothing.
        wanted: A value that it equals, a dict whose fields its own pass, or a dict of
            comparisons (``$eq $ne $gt $gte $lt $lte``), all of which hold. A
            comparison of two things that have no order does not hold.

    Raises:
        ConfigurationError: A comparison is unknown.
    """
    if not isinstance(wanted, Mapping):
        return bool(value == wanted)
    if any(isinstance(key, str) and key.startswith("$") for key in wanted):
        return all(_compares(value, sign, other) for sign, other in wanted.items())
    if not isinstance(value, Mapping):
        return False
    return all(passes(value.get(key), each) for key, each in wanted.items())


def _compares(value: Any, sign: str, other: Any) -> bool:
    if sign == "$eq":
        return bool(value == other)
    if sign == "$ne":
        return bool(value != other)
    if sign not in _ORDERED:
        raise ConfigurationError(
            f"a filter has {sign!r}; the comparisons are $eq, $ne, {', '.join(_ORDERED)}"
        )
    try:
        return bool(_ORDERED[sign](value, other))
    except TypeError:
        return False


def matches(namespace: Sequence[str], condition: MatchCondition) -> bool:
    """Return whether *namespace* begins, or ends, as *condition* says."""
    length = len(condition.path)
    if len(namespace) < length:
        return False
    part = namespace[:length] if condition.match_type == "prefix" else namespace[-length:]
    return all(wanted in ("*", label) for wanted, label in zip(condition.path, part, strict=True))


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


def words_at(value: Any, path: str) -> frozenset[str]:
    """Return the words of the texts at *path* of a value, in lower case; no field names."""
    texts = _leaves(value) if path == "$" else texts_at(value, path)
    return frozenset(word for text in texts for word in words_of(text))


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


def shared_words(query: frozenset[str], words: frozenset[str]) -> float:
    """Return which part of the query's words are among *words*: 0 to 1."""
    return len(query & words) / len(query) if query else 0.0


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one has no length."""
    lengths = math.hypot(*one) * math.hypot(*other)
    if not lengths:
        return 0.0
    return float(sum(map(operator.mul, one, other)) / lengths)
