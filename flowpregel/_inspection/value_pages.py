"""Pages of the parts of a large value that a preview omits.

A path leads from the value to such a part: the position of an item, the position of an
item in that item, and so on. The positions are those of a preview. If a preview shows
an object as one string, the parts are those of the string.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from flowpregel._inspection.preview import (
    PREVIEW,
    clipped,
    items_of,
    key_text,
    object_text,
    to_json,
)
from flowpregel.errors import ConfigurationError

ValueKind: TypeAlias = Literal["list", "dict", "text"]
"""The kind of a value whose parts are read."""

_CHARACTERS = 100
"""The number of characters that a page of a string has for each item that a page of a
container has.
"""


class ValuePage(NamedTuple):
    """A page of the items of a value, or of the string that represents it."""

    kind: ValueKind
    """A *dict* has items by key, and a *text* has characters."""
    total: int
    """The number of all items or characters."""
    items: list[tuple[str, Any]]
    """The key or position of each item on this page, and a preview of the item."""
    text: str = ""
    """The characters on this page, if the value is shown as a string."""


def value_page(
    value: Any,
    path: Sequence[int] = (),
    start: int = 0,
    count: int = 200,
) -> ValuePage:
    """Return a page of the items of a value, or of the string that represents it.

    Args:
        value: The whole value.
        path: The positions that lead to the part of the value to read.
        start: The position of the first item or character.
        count: The greatest number of items. A page of text has 100 times as many
            characters.

    Raises:
        ConfigurationError: The path leads nowhere.

    Example:
        >>> page = value_page({"a": [*range(1000)]}, path=[0], start=500, count=2)
        >>> page.total, page.items
        (1000, [('500', 500), ('501', 501)])
        >>> value_page("the text", start=4).text
        'text'
    """
    for position in path:
        value = _item_at(value, position)
    items = items_of(value)
    end = start + count
    if items is None:
        text = value
        if not isinstance(value, str):
            text = object_text(value)
        text_end = start + _CHARACTERS * count
        return ValuePage(
            kind="text",
            total=len(text),
            items=[],
            text=text[start:text_end],
        )
    if isinstance(items, dict):
        keys = islice(items, start, end)
        entries = [(_key(key), to_json(items[key])) for key in keys]
        return ValuePage(
            kind="dict",
            total=len(items),
            items=entries,
        )
    previews = [to_json(item) for item in items[start:end]]
    positions = map(str, range(start, end))
    return ValuePage(
        kind="list",
        total=len(items),
        items=list(zip(positions, previews, strict=False)),
    )


def _item_at(value: Any, position: int) -> Any:
    """Return the item at a position.

    Raises:
        ConfigurationError: There is no such item.
    """
    items = items_of(value)
    if items is None or not 0 <= position < len(items):
        raise ConfigurationError("the value has no such part")
    if isinstance(items, dict):
        key = next(islice(items, position, None))
        return items[key]
    return items[position]


def _key(key: Any) -> str:
    """Return a key as a preview shows it."""
    return clipped(key_text(key), PREVIEW.size)
