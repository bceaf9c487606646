"""The answers to the page's queries about large values: pages of items, and whole
values as files.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias, cast, get_args

from flowpregel.errors import ConfigurationError
from flowpregel.watching import (
    FULL,
    CallPart,
    ClippedText,
    OmittedItems,
    RecordView,
    ReprText,
    ShortenedText,
    StoreReader,
    to_json,
    value_page,
)

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""
_CHANNEL_PARTS = ("before", "after")
"""The names of the two values of a channel: before and after a superstep."""


class ValueFile(NamedTuple):
    """A value as a file."""

    name: str
    media_type: str
    content: str


def tagged(preview: Any, *, rest: bool = False) -> Json:
    """Return a preview, made by `to_json`, as JSON with tags, in which strings, objects
    and dicts can be distinguished.

    Args:
        preview: The preview that `to_json` made.
        rest: True to mark the strings of which the preview has only the beginning, for
            a reader that can request the rest.

    Example:
        >>> tagged({"a": [1, ReprText("<a lock>")]})
        {'items': [('a', [1, {'written': '<a lock>'}])]}
        >>> tagged(OmittedItems("… 3 more", 3))
        {'written': '… 3 more', 'more': 3}
    """
    match preview:
        case RecordView():
            return {"items": _tagged_items(preview, rest=rest), "name": preview.name}
        case dict():
            return {"items": _tagged_items(preview, rest=rest)}
        case list():
            return [tagged(item, rest=rest) for item in preview]
        case OmittedItems():
            return {"written": str(preview), "more": preview.omitted}
        case ShortenedText() if rest:
            return {"written": str(preview), "is_cut": True}
        case ReprText():
            return {"written": str(preview)}
        case ClippedText() if rest:
            return {"written": str(preview), "is_cut": True, "is_text": True}
    return preview


def _tagged_items(preview: Any, *, rest: bool) -> list[tuple[str, Json]]:
    """Return the keys of a dict, each with its value as tagged JSON."""
    return [(key, tagged(value, rest=rest)) for key, value in preview.items()]


class ValuePages:
    """The large values of a store.

    Args:
        reader: The reader of the store.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    def value(
        self,
        thread: str,
        part: str,
        path: str = "",
        start: int | str = 0,
        **location: str,
    ) -> Json:
        """Return some of the items of a value, or a part of a string.

        Args:
            thread: The id of the thread.
            part: A `CallPart` of a call; ``"before"`` or ``"after"`` for a channel.
            path: The positions of the parts that lead to the value, separated by dots.
            start: The position of the first item or character.
            location: For a call, ``call`` (its id) and ``at`` (the id of the checkpoint
                with which it is stored), if the page knows it. For a channel,
                ``checkpoint`` and ``channel``, an id and a name.
        """
        value = self._whole(thread, part, **location)
        positions = [int(position) for position in path.split(".") if position]
        page = value_page(value, positions, max(0, int(start)))
        items = [(key, tagged(item, rest=True)) for key, item in page.items]
        return {**page._asdict(), "items": items}

    def file(
        self,
        thread: str,
        part: str,
        **location: str,
    ) -> ValueFile:
        """Return a whole value as a file: a string unchanged, any other value as JSON.

        The arguments are those of `value`.
        """
        value = self._whole(thread, part, **location)
        name = location.get("channel", part)
        stem = "".join(letter if letter.isalnum() else "-" for letter in name)
        if not stem.isascii():
            stem = part
        if isinstance(value, str):
            return ValueFile(f"{stem}.txt", "text/plain", value)
        content = json.dumps(to_json(value, FULL), indent=1)
        return ValueFile(f"{stem}.json", "application/json", content)

    def _whole(
        self,
        thread: str,
        part: str,
        *,
        call: str | None = None,
        at: str | None = None,
        checkpoint: str | None = None,
        channel: str = "",
    ) -> Any:
        """Return a whole value.

        Raises:
            ConfigurationError: There is no such value.
        """
        if call is not None and part not in _CHANNEL_PARTS:
            if part not in get_args(CallPart):
                raise ConfigurationError(f"a call has no part {part!r}")
            if self._reader.call(thread, call, at) is None:
                raise ConfigurationError(f"the run has no call {call!r}")
            return self._reader.value(thread, call, cast(CallPart, part), at)
        if checkpoint is None or part not in _CHANNEL_PARTS:
            raise ConfigurationError(f"there is no value {part!r}")
        values = self._reader.values(thread, checkpoint)
        channels = {} if values is None else values._asdict()[part]
        if channel not in channels:
            raise ConfigurationError(f"there is no channel {channel!r}")
        return channels[channel]
