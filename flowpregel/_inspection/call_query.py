"""Queries for the calls of a run: a search text, states, a task, an order and a page.

::

    "depth:12 loss:<0.2 nan"        the text that a person types
         | parse_terms
         v
    Term(depth : 12)  Term(loss < 0.2)  Term(nan)     all must match
         | CallIndex.page
         v
    the calls that match, in the order, from `offset` on

`FIELDS` has the fields of every call. A call also has the fields of
`recorded_fields`, whose names the user's code chose.

A report (`flowpregel report`, a page in one file) has no server, so its page answers
queries itself, in ``query.js``. This module is the specification: a test gives both the
same calls and queries.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from flowpregel._inspection.call_previews import read_preview
from flowpregel._inspection.call_rows import NUMBER_FIELDS, NUMBER_NAMES, CallRow
from flowpregel.errors import ConfigurationError

FieldValue: TypeAlias = str | int | float | bool | None
"""The value of a field. None means that the call lacks the field."""

STATES: Final = ("failed", "waiting", "running", "unfinished", "done")
"""The states of calls, from the most urgent to the least."""
FIELDS: Final[Mapping[str, str]] = {
    "task": "name",
    "call": "text",
    "state": "state",
    "error": "error",
    "began": "began",
    "took": "seconds",
    **dict(zip(NUMBER_NAMES, NUMBER_FIELDS, strict=True)),
    "worker": "pid",
    "host": "host",
    "tries": "attempts",
    "step": "step",
    "path": "path",
}
"""The fields of `CallRow` that queries can name, by their names in queries."""
URGENCY: Final = "urgency"
"""The usual order: the most urgent state first, the newest call of a state first."""
MOST_ROWS: Final = 1_000
"""The greatest number of calls on a page."""
_TERM: Final = re.compile(r'(-?)(?:(\w[\w.]*):(<=|>=|<|>|=|))?("[^"]*"|\S+)')
_DURATION: Final = re.compile(r"([0-9.]+)(ms|s|m|h)$")
_BYTES: Final = re.compile(r"([0-9.]+)(k|m|g)b$")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_SIZES: Final = {"k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True, kw_only=True)
class CallQuery:
    """A request for some calls of a run."""

    text: str = ""
    """The terms that must all match, as `parse_terms` reads them."""
    states: Collection[str] = ()
    """The states of the calls; empty for all states."""
    task: str = ""
    """The name of the calls' task, or an empty string for all tasks."""
    order: str = URGENCY
    """A field, after a minus for the greatest value first, or `URGENCY`."""
    offset: int = 0
    """The number of calls to skip."""
    count: int = 100
    """The number of calls on the page, at most `MOST_ROWS`."""

    def __post_init__(self) -> None:
        """Check the numbers and the states of the query."""
        if self.offset < 0 or not 0 <= self.count <= MOST_ROWS:
            raise ConfigurationError(
                f"a page has 0 to {MOST_ROWS} calls and begins at 0 or later, not "
                f"{self.count} calls from {self.offset}"
            )
        for state in self.states:
            if state not in STATES:
                raise ConfigurationError(
                    f"{state!r} is no state of a call; use {', '.join(STATES)}"
                )


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on a call."""

    value: str
    """The value to compare with, in lower case."""
    field: str = ""
    """The name of the field, or an empty string if *value* is searched for in the text
    and the error of the call.
    """
    comparison: str = ""
    """The comparison: ``<``, ``<=``, ``>``, ``>=`` or ``=``. An empty string means that
    a number must be equal, and a string must contain the value.
    """
    is_negated: bool = False
    """True if the calls that match the condition are left out."""

    def matches(self, value: FieldValue) -> bool:
        """Return whether the condition is true for a value of the field.

        A call that lacks the field matches only a negated condition.
        """
        return self._is_true_of(value) != self.is_negated

    def _is_true_of(self, value: FieldValue) -> bool:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = parse_number(self.value)
            if number is None or not math.isfinite(value):
                return self.value == str(value).lower()
            return _COMPARISONS[self.comparison](value, number)
        if value is None:
            return False
        text = str(value).lower()
        if self.comparison:
            return _COMPARISONS[self.comparison](text, self.value)
        return self.value in text


def _equals(value: Any, other: Any) -> bool:
    return bool(value == other)


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "": _equals,
    "=": _equals,
    "<": lambda value, other: value < other,
    "<=": lambda value, other: value <= other,
    ">": lambda value, other: value > other,
    ">=": lambda value, other: value >= other,
}


def parse_terms(
    text: str,
    fields: Collection[str] = (),
) -> list[Term]:
    """Return the conditions in a string that a person has typed.

    A word is searched for in the text of a call and in its error. ``field:value``
    compares a field; ``<``, ``<=``, ``>``, ``>=`` or ``=`` may precede the value. A
    minus negates a condition, and quotation marks enclose spaces. If no field has that
    name, the colon is part of a word.

    Args:
        text: The string to parse.
        fields: The names of the fields that the user's code has named, in addition to
            `FIELDS`.

    Example:
        >>> for term in parse_terms('took:>2 -state:done "out of memory"'):
        ...     print(term.field, term.comparison, term.value, term.is_negated)
        took > 2 False
        state  done True
          out of memory False
    """
    terms: list[Term] = []
    for match in _TERM.finditer(text):
        minus, field, comparison, value = match.groups()
        if field in FIELDS or field in fields:
            term = Term(
                value=value.strip('"').lower(),
                field=field,
                comparison=comparison,
                is_negated=bool(minus),
            )
        else:
            word = match[0].removeprefix(minus)
            term = Term(
                value=word.strip('"').lower(),
                is_negated=bool(minus),
            )
        terms.append(term)
    return terms


def parse_number(text: str) -> float | None:
    """Return the number in a string, or None if there is none.

    A number with a unit of time is returned in seconds, and one with a unit of memory
    in bytes.

    Example:
        >>> parse_number("1e-3"), parse_number("250ms"), parse_number("2mb")
        (0.001, 0.25, 2000000.0)
    """
    duration = _DURATION.match(text)
    size = _BYTES.match(text)
    try:
        if duration:
            return float(duration[1]) * _SECONDS[duration[2]]
        if size:
            return float(size[1]) * _SIZES[size[2]]
        return float(text)
    except ValueError:
        return None


def recorded_fields(row: CallRow) -> Mapping[str, FieldValue]:
    """Return the fields of a call whose names the user's code chose: the
    arguments and their fields, the metrics, and the result or the fields of the result.

    The name of an argument's field is the part after the last dot, if this part is
    different for each field of the arguments. Arguments get their names first, then
    metrics, then results. A name that is taken by then, or that is in `FIELDS`, is
    preceded by the kind, as in ``result.loss``.

    Args:
        row: The call.
    """
    if not row.preview:
        return {}
    preview = read_preview(row.preview)
    result = preview.result
    if not isinstance(result, dict):
        result = {} if result is None else {"result": result}
    fields: dict[str, FieldValue] = {}
    parts = {
        "argument": _with_short_names(preview.arguments),
        "metric": preview.metrics,
        "result": result,
    }
    for kind, values in parts.items():
        for name, value in values.items():
            is_taken = name in fields or name in FIELDS
            if is_taken:
                name = f"{kind}.{name}"
            fields[name] = value
    return fields


def _with_short_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of arguments by the last parts of their names, if all these
    parts are different.
    """
    short_names = Counter(map(_last_part, arguments))
    fields: dict[str, Any] = {}
    for name, value in arguments.items():
        short_name = _last_part(name)
        is_unique = short_names[short_name] == 1
        if is_unique:
            name = short_name
        fields[name] = value
    return fields


def _last_part(name: str) -> str:
    _, _, part = name.rpartition(".")
    return part
