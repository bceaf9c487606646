"""Previews: shortened values and channels, as types that JSON supports.

Creating a preview never raises an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from flowpregel._core.previews import named_fields
from flowpregel._core.records import TASKS, Saved
from flowpregel._inspection.inert import OpaqueKey, OpaqueObject, is_small
from flowpregel._text import in_one_line


@dataclass(frozen=True, kw_only=True)
class PreviewLimits:
    """The limits on the size of a preview."""

    depth: int = 4
    """The number of levels of nested containers that are shown."""
    count: int = 12
    """The number of items shown of each container."""
    size: int = 200
    """The number of characters shown of a string, or of bytes shown of a `bytes`."""
    total: int = 300
    """The number of items in the whole preview."""


PREVIEW = PreviewLimits()
FULL = PreviewLimits(
    depth=100,
    count=1 << 40,
    size=1 << 40,
    total=10_000_000,
)
"""Limits within which almost every value fits.

A value that contains itself is cut off. So is a value that would be much larger as a
preview, such as a list that contains the same list many times.
"""


class RecordView(dict[str, Any]):
    """The fields of an object by name, which a terminal shows as ``Report(words=3)``.

    Args:
        name: The name of the object's class.
        items: The fields of the object, by name.

    Example:
        >>> from flowpregel.types import RetryPolicy
        >>> from flowpregel.watching import to_json
        >>> view = to_json(RetryPolicy())
        >>> view.name, view["max_attempts"]
        ('RetryPolicy', 3)
    """

    def __init__(self, name: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self.name = name


class ReprText(str):
    """A string that represents an object or omitted items, and is not a user's `str`.

    A terminal shows the text without quotation marks.

    Example:
        >>> from flowpregel.watching import to_json
        >>> type(to_json(len)).__name__, to_json(len)
        ('ReprText', '<built-in function len>')
    """

    __slots__ = ()


class OmittedItems(ReprText):
    """A string in place of the items that a preview has left out.

    Args:
        text: The text of the string, such as ``… 3 more``.
        count: The number of omitted items.

    Example:
        >>> from flowpregel.watching import PreviewLimits, to_json
        >>> preview = to_json([1, 2, 3], PreviewLimits(count=1))
        >>> preview, preview[-1].omitted
        ([1, '… 2 more'], 2)
    """

    omitted: int

    def __new__(cls, text: str, count: int) -> OmittedItems:
        """Return the string with the number of omitted items as an attribute."""
        instance = super().__new__(cls, text)
        instance.omitted = count
        return instance


class ShortenedText(ReprText):
    """A string that represents only a part of an object.

    Example:
        >>> from flowpregel.watching import PreviewLimits, to_json
        >>> type(to_json([[1]], PreviewLimits(depth=1))[0]).__name__
        'ShortenedText'
    """

    __slots__ = ()


class ClippedText(str):
    """The beginning of a string, followed by the number of omitted characters.

    Args:
        text: The beginning of the string, and the number of omitted characters in
            words.
        omitted: The number of omitted characters.

    Example:
        >>> from flowpregel.watching import PreviewLimits, to_json
        >>> preview = to_json("abcdef", PreviewLimits(size=2))
        >>> preview, preview.omitted
        ('ab… (4 more)', 4)
    """

    omitted: int

    def __new__(cls, text: str, omitted: int) -> ClippedText:
        """Return the string with the number of omitted characters as an attribute."""
        instance = super().__new__(cls, text)
        instance.omitted = omitted
        return instance


def to_json(value: Any, limits: PreviewLimits = PREVIEW) -> Any:
    """Return *value* as dicts, lists, strings and numbers, which JSON supports.

    An object with named fields becomes a dict of these fields. Any other object becomes
    its ``repr``. The number of omitted items is in a string that begins with an
    ellipsis.

    Args:
        value: Any Python value.
        limits: The limits on the size of the preview.

    Example:
        >>> to_json({"names": {"ada"}, "size": float("inf")})
        {'names': ['ada'], 'size': 'inf'}
    """
    preview = _Preview(limits)
    return preview.of(value, depth=0)


def question_to_json(
    interrupt: Any,
    limits: PreviewLimits = PREVIEW,
) -> dict[str, Any]:
    """Return previews of the ``id``, the ``value`` and, if there is one, the
    ``response_schema`` of an interrupt.
    """
    # An interrupt of LangGraph's own class was decoded without importing that class, so
    # it is a placeholder without the attributes, and is shown as a whole.
    value = getattr(interrupt, "value", interrupt)
    identifier = getattr(interrupt, "id", None)
    question = {
        "id": to_json(identifier, limits),
        "value": to_json(value, limits),
    }
    schema = getattr(interrupt, "response_schema", None)
    if schema is not None:
        question["response_schema"] = to_json(schema, limits)
    return question


def one_line(value: Any, limits: PreviewLimits = PREVIEW) -> str:
    """Return *value* in one line for a terminal."""
    preview = to_json(value, limits)
    return json_in_one_line(preview, limits)


def json_in_one_line(preview: Any, limits: PreviewLimits) -> str:
    """Return the beginning of a preview, which `to_json` returned, in one line."""
    write = partial(json.dumps, ensure_ascii=False)
    text = _preview_text(preview, write)
    beginning = clipped(text, 4 * limits.size)
    return in_one_line(beginning)


def _preview_text(preview: Any, write: Callable[[Any], str]) -> str:
    """Return a preview, which `to_json` returned, as one string.

    Args:
        preview: The preview to convert.
        write: A function that converts a `str`, number, boolean or None to text.
    """
    match preview:
        case RecordView():
            return _constructor_text(preview.name, (), preview)
        case dict():
            items: list[str] = []
            for key, value in preview.items():
                text = _preview_text(value, write)
                items.append(f"{write(key)}: {text}")
            return f"{{{', '.join(items)}}}"
        case list():
            items = [_preview_text(item, write) for item in preview]
            return f"[{', '.join(items)}]"
        case ReprText():
            return str(preview)
    return write(preview)


def _constructor_text(
    name: str,
    arguments: Iterable[Any],
    keywords: Mapping[str, Any],
) -> str:
    """Return the call of a constructor in Python's syntax."""
    parts = [_preview_text(argument, repr) for argument in arguments]
    for key, value in keywords.items():
        text = _preview_text(value, repr)
        parts.append(f"{key}={text}")
    return f"{name}({', '.join(parts)})"


def clipped(text: str, size: int) -> str:
    """Return the first *size* characters of *text*, followed by the number of omitted
    characters.
    """
    if len(text) <= size:
        return text
    omitted = len(text) - size
    return ClippedText(f"{text[:size]}… ({omitted:,} more)", omitted)


def items_of(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return the items or fields of a value, if a preview shows them one by one. Return
    None if a preview shows the value as a string or a number.
    """
    if isinstance(value, str | bytes | bytearray | memoryview):
        return None
    # A user's container may raise any error when its items are read.
    with suppress(Exception):
        items = _container_parts(value, full=False)
        is_call = isinstance(value, OpaqueObject) and (value.args or not items)
        return None if is_call else items
    return None


class _Preview:
    """A builder of one preview, which counts the items and detects cycles."""

    def __init__(self, limits: PreviewLimits) -> None:
        self._limits = limits
        self._is_full = limits is FULL
        self._items_left = limits.total
        self._open_containers = list[int]()
        """The ids of the containers that enclose the current value."""

    def of(self, value: Any, depth: int) -> Any:
        """Return the preview of *value*, which is nested in *depth* containers."""
        self._items_left -= 1
        # The patterns match subclasses too, so that an instance of a subclass of `str`,
        # for example, is shown as a string.
        match value:
            case None | bool():
                return value
            case str():
                return clipped(str.__str__(value), self._limits.size)
            case bytes() | bytearray() | memoryview():
                return self._of_bytes(value)
            case float():
                return _of_float(value)
            case int():
                return _of_int(value)
        items = None
        # A user's container may raise any error when its items are read.
        with suppress(Exception):
            items = _container_parts(value, full=self._is_full)
        if items is None:
            return self._of_text(object_text(value))
        if self._is_too_deep(value, depth):
            kind = type(value).__name__
            name = getattr(items, "name", kind)
            return ShortenedText(f"… {name} of {len(items)}")
        self._open_containers.append(id(value))
        preview = self._of_parts(items, depth)
        if isinstance(value, OpaqueObject):
            has_arguments = bool(value.args) or not items
            if has_arguments:
                preview = self._of_opaque(value, preview, depth)
        self._open_containers.pop()
        return preview

    def _is_too_deep(self, value: Any, depth: int) -> bool:
        """Return whether *value* is nested too deeply or, in a full view, contains
        itself.
        """
        if depth >= self._limits.depth:
            return True
        return self._is_full and id(value) in self._open_containers

    def _of_bytes(self, value: bytes | bytearray | memoryview) -> ReprText:
        size = self._limits.size
        beginning = bytes(value[:size])
        text = clipped(repr(beginning), size)
        kind = ReprText if len(value) <= size else ShortenedText
        return kind(f"{text} ({len(value):,} bytes)")

    def _of_text(self, text: str) -> ReprText:
        """Return the beginning of the string that represents an object."""
        size = self._limits.size
        kind = ReprText if len(text) <= size else ShortenedText
        return kind(clipped(text, size))

    def _of_opaque(
        self,
        value: OpaqueObject,
        keywords: Any,
        depth: int,
    ) -> ReprText:
        """Return an opaque object (a placeholder for an object whose class was not
        looked up) as the call that made it.
        """
        name = type(value).__name__
        arguments = self._of_parts(value.args, depth)
        text = _constructor_text(
            name,
            arguments,
            keywords,
        )
        return self._of_text(text)

    def _of_parts(
        self,
        items: dict[Any, Any] | list[Any],
        depth: int,
    ) -> Any:
        """Return the previews of the first parts, and the number of omitted parts."""
        size = len(items)
        limit = min(self._limits.count, self._items_left, size)
        count = max(0, limit)
        omitted = size - count
        if isinstance(items, list):
            elements: list[Any] = []
            first_items = items[:count]
            for item in first_items:
                preview = self.of(item, depth + 1)
                elements.append(preview)
            if omitted > 0:
                elements.append(OmittedItems(f"… {omitted:,} more", omitted))
            return elements
        entries: dict[str, Any] = {}
        if isinstance(items, RecordView):
            entries = RecordView(items.name, {})
        for key in islice(items, count):
            text = key_text(key)
            name = clipped(text, self._limits.size)
            value = items[key]
            entries[name] = self.of(value, depth + 1)
        if omitted > 0:
            entries["…"] = OmittedItems(f"{omitted:,} more", omitted)
        return entries


def _of_float(value: float) -> float | str:
    """Return *value*, or a string if it is infinite or not a number (NaN)."""
    number = float(value)
    if math.isfinite(number):
        return number
    return str(number)


def _of_int(value: int) -> int | ReprText:
    """Return *value*, or a string with the number of bits if it is very large."""
    bits = value.bit_length()
    if bits > 1_024:
        return ReprText(f"an int of {bits:,} bits")
    return int(value)


def _container_parts(
    value: Any,
    *,
    full: bool,
) -> dict[Any, Any] | list[Any] | None:
    """Return the items of a container or the fields of an object.

    None is returned for a value that has neither.
    """
    if isinstance(value, BaseException):
        return {
            "type": type(value).__name__,
            "message": object_text(value, str),
        }
    if isinstance(value, Mapping):
        return dict(value)
    name = type(value).__name__
    if isinstance(value, OpaqueObject):
        field_values = dict(value.fields)
        if full:
            field_values |= value.data
        return RecordView(name, field_values)
    own_fields = named_fields(value)
    if own_fields is not None:
        return RecordView(name, own_fields)
    if isinstance(value, list | tuple | Set):
        return list(value)
    return None


def key_text(key: Any) -> str:
    """Return a dict key as text."""
    if isinstance(key, str):
        return key
    if isinstance(key, OpaqueKey):
        return object_text(key.value)
    return object_text(key)


def object_text(
    value: Any,
    convert: Callable[[Any], object] = repr,
) -> str:
    """Return *value* as text, or a string that explains why that failed.

    Args:
        value: Any value.
        convert: The function that converts a value to text.
    """
    name = type(value).__name__
    try:
        if not is_small(value):
            return f"<{name}, too large to be shown>"
        return str(convert(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        kind = type(error).__name__
        return f"<{name}, whose text raises {kind}>"


# ---------------------------------------------------------------- channels


_INTERNAL_PREFIXES = ("branch:to:", "join:", TASKS)
"""The prefixes of the names of internal channels, which flowpregel itself adds to a
graph.
"""
_PUBLIC_NAMES = {
    "__start__": "input",
    "__end__": "result",
    "__previous__": "previous",
    "__root__": "state",
}
"""The public names of an entrypoint's channels, and of the channel of a graph without
named channels."""


def channel_values(saved: Saved) -> dict[str, Any]:
    """Return the values of channels, by the names that the channels have in the
    program.
    """
    values = dict(saved.checkpoint.values)
    # A delta channel is shown by its last stored value (the seed) and the writes since
    # then, and not by its present value, because only the flow has the reducer that
    # combines them.
    for name, history in saved.deltas.items():
        values[name] = {
            "seed": history.seed,
            "deltas": tuple(history.writes),
        }
    return values


def by_public_name(
    channels: Mapping[str, Any],
    *,
    internals: bool = False,
) -> dict[str, Any]:
    """Return *channels*, sorted, by their public names.

    Args:
        channels: A value for each channel, by its name in the program.
        internals: Include flowpregel's internal channels, and keep the names of the
            program.
    """
    in_order = dict(sorted(channels.items()))
    if internals:
        return in_order
    public: dict[str, Any] = {}
    for name, value in in_order.items():
        if name.startswith(_INTERNAL_PREFIXES):
            continue
        alias = _PUBLIC_NAMES.get(name, name)
        # A user's channel may already have the public name. In this case, the internal
        # name is shown.
        is_free = alias == name or alias not in in_order
        public[alias if is_free else name] = value
    return public
