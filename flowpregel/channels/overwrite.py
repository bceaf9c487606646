"""`Overwrite`: a write that replaces a folded value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowpregel.channels.base import MISSING
from flowpregel.errors import InvalidUpdateError

_TAG: Literal["__overwrite__"] = "__overwrite__"


@dataclass(slots=True)
class Overwrite:
    """Write this to replace a channel's value, past its reducer.

    ``{"__overwrite__": value}`` means the same, and so does the form that JSON
    makes of it: ``{"type": "__overwrite__", "value": value}``.

    Example:
        >>> from flowpregel.channels import BinaryOperatorAggregate
        >>> channel = BinaryOperatorAggregate(int, lambda a, b: a + b)
        >>> channel.update([1, Overwrite(10), 5]), channel.get()
        (True, 10)
    """

    value: Any
    """What the channel holds from now on."""
    type: Literal["__overwrite__"] = _TAG
    """Lets it be recognised when a JSON codec made a dict of it."""


_FORMS = (Overwrite, dict)


def replacement(write: Any) -> Any:
    """Return what *write* replaces a value with, or `MISSING` if it replaces nothing."""
    if isinstance(write, Overwrite):
        return write.value
    if isinstance(write, dict):
        if len(write) == 1:
            return write.get(_TAG, MISSING)
        # The tag is compared only with text: an array's == gives no truth value.
        tag = write.get("type") if len(write) == 2 else None
        if isinstance(tag, str) and tag == _TAG:
            return write.get("value", MISSING)
    return MISSING


def may_overwrite(values: Iterable[Any]) -> bool:
    """Return whether `has_overwrite` is to be asked, by the types of many values alone."""
    return any(issubclass(kind, _FORMS) for kind in {*map(type, values)})


def has_overwrite(values: Iterable[Any]) -> bool:
    """Return whether any of these writes is an `Overwrite`, in any of its forms."""
    return any(replacement(value) is not MISSING for value in values)


def only_replacement(values: Sequence[Any], key: str) -> Any:
    """Return what one superstep's writes replace a value with, or `MISSING`.

    Raises:
        InvalidUpdateError: Several of them would.
    """
    found: Any = MISSING
    for value in values:
        # Most writes are neither: this look is all they cost.
        if isinstance(value, _FORMS):
            by = replacement(value)
            if by is MISSING:
                continue
            if found is not MISSING:
                raise InvalidUpdateError(
                    f"channel {key!r} can receive only one Overwrite value per superstep, and "
                    "was written several; let one node overwrite it"
                )
            found = by
    return found
