"""The digests that the arguments of a call had before a class among them gained fields.

A recorded call has a digest of the arguments. If a data class among them has gained a
field since, that digest is the digest of the same arguments without the field. But
fields that have their default value must not be left out of every digest. If a default
was edited, the call that was recorded with the old default would then be used for a
call with the new one. So such fields are left out only in a second look-up, after the
first one has found nothing::

    Params(n=1, deep=False) ──► digest of n and deep ──► nothing is recorded
                            └─► digest of n alone    ──► recorded before `deep` existed
"""

from __future__ import annotations

import copyreg
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, combinations, islice, product
from typing import Any, TypeAlias

from flowpregel._pickling.moved_classes import Home

MOST_DIGESTS = 32
"""The greatest number of digests that are tried for the arguments of one call."""
Reduced: TypeAlias = str | tuple[Any, ...]
"""The reduction that pickle would make of an object: the function that rebuilds it, the
arguments of this function, and the state of the object.
"""
Defaults: TypeAlias = Mapping[str, Callable[[], Any]]
"""Functions that return the default of a field, by the name of the field, in the order
of the fields.
"""


class LeftOutFields:
    """The fields of objects that a digest leaves out, and a record of those that it
    could have left out too.

    Args:
        left_out: The names of the fields to leave out, by class.
        are_equal: A function that returns whether a value has the same content as a
            default.
        homes: The earlier module and name of classes that have moved, by class.
    """

    def __init__(
        self,
        left_out: Mapping[type, frozenset[str]],
        are_equal: Callable[[Any, Any], bool],
        homes: Mapping[type, Home] | None = None,
    ) -> None:
        self._homes = homes or {}
        self.classes: set[type] = set()
        """The classes of the objects that were digested."""
        self._left_out = left_out
        self._are_equal = are_equal
        self.with_defaults: dict[type, list[str]] = {}
        """The names of the fields that have their default in all digested instances, by
        class.
        """

    def home_of(self, class_: type) -> Home | None:
        """Return the earlier module and name of a class, or None if there are none."""
        self.classes.add(class_)
        return self._homes.get(class_)

    def strip(self, value: Any, parts: Reduced) -> Reduced:
        """Return *parts*, the reduction of *value*, without the fields to leave out."""
        kind = type(value)
        if isinstance(parts, str) or not (defaults := defaults_of(kind)):
            return parts
        candidates = self.with_defaults.get(kind)
        if candidates is None:
            candidates = [*defaults]
        self.with_defaults[kind] = [
            name
            for name in candidates
            if self._has_default(value, name, defaults[name])
        ]
        names = self._left_out.get(kind)
        return parts if not names else _without(value, parts, names)

    def _has_default(
        self,
        value: Any,
        name: str,
        make_default: Callable[[], Any],
    ) -> bool:
        try:
            return self._are_equal(getattr(value, name), make_default())
        except Exception:  # noqa: BLE001 - a user's factory may raise anything
            return False


def defaults_of(kind: Any) -> Defaults:
    """Return the defaults of the fields of a data class, a named tuple, or a model of
    pydantic.
    """
    if dataclasses.is_dataclass(kind):
        return dict(_defaults_of_dataclass(kind))
    if issubclass(kind, tuple):
        return {
            name: _constant(default)
            for name, default in _mapping(kind, "_field_defaults").items()
        }
    fields = _mapping(kind, "__pydantic_fields__")
    return {
        name: partial(field.get_default, call_default_factory=True)
        for name, field in fields.items()
        if not field.is_required()
    }


def _defaults_of_dataclass(kind: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            yield field.name, _constant(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            yield field.name, field.default_factory


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _mapping(kind: type, name: str) -> Mapping[str, Any]:
    """Return the mapping in a class attribute, or an empty mapping if the attribute has
    another value.
    """
    mapping = getattr(kind, name, None)
    return mapping if isinstance(mapping, Mapping) else {}


def choices(
    with_defaults: Mapping[type, list[str]],
) -> Iterator[Mapping[type, frozenset[str]]]:
    """Yield sets of fields that the classes may have gained: the names of the fields,
    by class.

    The likely sets come first: single fields, then the last fields of a class.
    """
    options = []
    for kind, fields in with_defaults.items():
        # At most `MOST_DIGESTS` subsets are tried, because twenty fields have a million
        # subsets.
        subsets = islice(_subsets(fields), MOST_DIGESTS)
        options.append([(kind, names) for names in (frozenset[str](), *subsets)])
    combined = (dict(choice) for choice in product(*options))
    return islice(filter(lambda choice: any(choice.values()), combined), MOST_DIGESTS)


def _subsets(fields: list[str]) -> Iterator[frozenset[str]]:
    """Yield the subsets of *fields* that are not empty, the likely subsets first."""
    tried: set[frozenset[str]] = set()
    singles = (frozenset((name,)) for name in reversed(fields))
    ends = (frozenset(fields[start:]) for start in range(len(fields)))
    sizes = range(2, len(fields))
    others = (
        frozenset(subset) for size in sizes for subset in combinations(fields, size)
    )
    for names in chain(singles, ends, others):
        if names not in tried:
            tried.add(names)
            yield names


def _without(
    value: Any,
    parts: tuple[Any, ...],
    names: frozenset[str],
) -> tuple[Any, ...]:
    """Return *parts*, the reduction of *value*, without the fields *names*."""
    maker, arguments, *rest = parts
    kind: Any = type(value)
    newobj = copyreg.__newobj__  # type: ignore[attr-defined]
    if issubclass(kind, tuple) and maker is newobj:
        return maker, (kind, *_without_last(arguments[1:], kind._fields, names)), *rest
    if not rest:
        return parts
    state, *more = rest
    return maker, arguments, _state_without(state, kind, names), *more


def _state_without(
    state: Any,
    kind: Any,
    names: frozenset[str],
) -> Any:
    """Return the *state* in the reduction of an object of the class *kind*, without the
    fields *names*.
    """
    # A frozen data class with slots has a list as its state.
    if isinstance(state, list):
        fields = [field.name for field in dataclasses.fields(kind)]
        return _without_last(state, fields, names)
    # Any other object with slots has a tuple as its state.
    if isinstance(state, tuple):
        return tuple(_without_keys(part, names) for part in state)
    if isinstance(state, dict) and isinstance(state.get("__dict__"), dict):
        # The state of a pydantic model contains the fields in an inner dict.
        return {**state, "__dict__": _without_keys(state["__dict__"], names)}
    return _without_keys(state, names)


def _without_keys(state: Any, names: frozenset[str]) -> Any:
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if name not in names}


def _without_last(
    values: Any,
    fields: Any,
    names: frozenset[str],
) -> Any:
    """Return *values* without the values of *names*, if *names* are the last *fields*.

    Otherwise return *values* unchanged: values belong to fields by their position, so
    if values in the middle were left out, the later ones would belong to the wrong
    fields.
    """
    count = len(fields) - len(names)
    is_end = len(values) == len(fields) and names.issuperset(fields[count:])
    return values[:count] if is_end else values
