"""The recorded previews of calls, for a terminal and for the page.

A preview was made where the call ran, and is read as JSON. So no code of the user's
program runs here.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowpregel._core.ids import AttemptRecord
from flowpregel._core.metric_series import SERIES, MetricPoint, unpack_series
from flowpregel._core.previews import unpack_media
from flowpregel._inspection.preview import ReprText
from flowpregel._text import in_one_line

_PICTURES: Final = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "svg": "image/svg+xml",
}
"""The media types of pictures, by kind."""
_TEXTS: Final = ("text", "markdown")
_UNREADABLE: Final = (ValueError, TypeError, KeyError, RecursionError)
"""The errors that reading media (pictures, tables and series in a preview) may raise,
if another version of flowpregel or another program wrote them.
"""


@dataclass(frozen=True, kw_only=True)
class CallPreview:
    """The values of a call in short form, by field: numbers, strings, and a `ReprText`
    (a description) for any other value.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments by parameter, and their fields by names such as ``params.depth``.
    """
    result: Any = None
    """The result, or a dict of the result's fields."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that the call has recorded, by name."""
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names of the tasks whose results are in the argument, for each parameter."""

    def to_json(self) -> dict[str, Any]:
        """Return the parts of the preview, by name."""
        return {
            "arguments": dict(self.arguments),
            "result": self.result,
            "metrics": dict(self.metrics),
            "sources": dict(self.sources),
        }

    def call_text(self, text: str) -> str:
        """Return the call in one line, with the fields of the arguments, such as
        ``train(depth=8)``.

        Args:
            text: The text of the call, such as ``train(<Params>)``, which is returned
                if the arguments are not known.
        """
        if not self.arguments:
            return text
        name, _, _ = text.partition("(")
        assignments = _assignments(self.arguments)
        arguments = ", ".join(assignments)
        return in_one_line(f"{name}({arguments})")

    def metrics_text(self) -> str:
        """Return the metrics in one line."""
        metrics = _assignments(self.metrics)
        return in_one_line(" ".join(metrics))


NO_CALL_PREVIEW: Final = CallPreview()


def _assignments(fields: Mapping[str, Any]) -> list[str]:
    """Return strings such as ``depth=8``. A string of the user is quoted."""
    texts: list[str] = []
    for name, value in fields.items():
        is_described = isinstance(value, ReprText)
        text = str(value) if is_described else repr(value)
        texts.append(f"{name}={text}")
    return texts


def read_preview(data: bytes | str) -> CallPreview:
    """Return the preview that is recorded with a call.

    A preview that cannot be read, such as one of a later version, is empty.

    Args:
        data: The JSON, or nothing if the call was recorded without a preview.

    Example:
        >>> preview = read_preview(b'{"a":{"n":3,"rows":["<list of 9>"]},"r":9}')
        >>> preview.call_text("f"), preview.result
        ('f(n=3, rows=<list of 9>)', 9)
    """
    if not data:
        return NO_CALL_PREVIEW
    try:
        parts = json.loads(data)
        arguments = parts.get("a", {})
        result = parts.get("r")
        metrics = parts.get("m", {})
        return CallPreview(
            arguments=_values(arguments),
            result=_result(result),
            metrics=_values(metrics),
            sources=_sources(parts.get("f", {})),
        )
    except (ValueError, AttributeError, RecursionError):
        return NO_CALL_PREVIEW


def preview_of(ran: AttemptRecord | None) -> CallPreview:
    """Return the preview that is recorded with an attempt, if there is one."""
    if ran is None:
        return NO_CALL_PREVIEW
    return read_preview(ran.preview)


def _values(fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        values[name] = _value(value)
    return values


def _sources(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, for each parameter, the names of the tasks whose results are in its
    argument.
    """
    return {name: list(map(str, tasks)) for name, tasks in fields.items()}


def _value(value: Any) -> Any:
    """Return the value of a field of a preview. If the value is stored as a list, its
    only item is a string that describes the value.
    """
    if isinstance(value, list):
        description = value[0] if value else ""
        return ReprText(description)
    if isinstance(value, dict):
        return ReprText("{...}")
    return value


def _result(result: Any) -> Any:
    """Return the fields of a result that has named fields, or else the result as a
    single value.
    """
    if isinstance(result, dict):
        return _values(result)
    return _value(result)


def media_to_json(packed: bytes, began: int = 0) -> list[dict[str, Any]]:
    """Return the media (larger parts) of a call's preview: pictures as data URLs,
    tables as columns and rows, strings, and the series of metrics.

    Args:
        packed: The recorded media, or nothing.
        began: Wall-clock nanoseconds at which the call began. The times of a series are
            seconds since then.
    """
    media: list[dict[str, Any]] = []
    try:
        for title, kind, data in unpack_media(packed):
            content = _medium_of(kind, data, began)
            if content:
                media.append({"title": title, **content})
    except _UNREADABLE:
        return media
    return media


def _medium_of(kind: str, data: bytes, began: int) -> dict[str, Any]:
    """Return the kind of a medium and its data, or an empty dict for an unknown
    kind.
    """
    if kind in _PICTURES:
        encoded = base64.b64encode(data).decode()
        url = f"data:{_PICTURES[kind]};base64,{encoded}"
        return {"kind": "picture", "url": url}
    if kind == "table":
        table = json.loads(data)
        return {"kind": kind, "table": _checked_table(table)}
    if kind in _TEXTS:
        text = data.decode(errors="replace")
        return {"kind": kind, "text": text}
    if kind == SERIES:
        columns = series_columns(unpack_series(data), began)
        return {"kind": kind, "series": columns}
    return {}


def series_in(packed: bytes, began: int) -> dict[str, Any]:
    """Return the series of metrics among the media (larger parts) of a call's preview,
    by the names of the metrics.

    Args:
        packed: The recorded media.
        began: Wall-clock nanoseconds at which the call began.
    """
    series: dict[str, Any] = {}
    try:
        for name, kind, data in unpack_media(packed):
            if kind == SERIES:
                series[name] = series_columns(unpack_series(data), began)
    except _UNREADABLE:
        return series
    return series


def series_columns(points: Sequence[MetricPoint], began: int) -> dict[str, Any]:
    """Return the points of a series as columns, in which None stands for a value that
    is not finite. Without steps, the column of the steps is empty.

    Args:
        points: The points, of which there is at least one.
        began: Wall-clock nanoseconds at which the call began.
    """
    # The first point may be earlier than the beginning of the call, if the clock of the
    # call's process was set in between.
    begin = min(began / 1e9, points[0].at)
    steps: list[float | None] = []
    if any(not math.isnan(point.step) for point in points):
        steps = [_finite(point.step) for point in points]
    seconds: list[float] = []
    values: list[float | None] = []
    for point in points:
        # The time is rounded to microseconds, because the float of a time since the
        # epoch is no more precise.
        offset = round(point.at - begin, 6)
        value = _finite(point.value)
        seconds.append(offset)
        values.append(value)
    return {
        "seconds": seconds,
        "step": steps,
        "values": values,
    }


def _finite(number: float) -> float | None:
    """Return *number*, or None if it is infinite or NaN, which JSON cannot express."""
    if math.isfinite(number):
        return number
    return None


def _checked_table(table: Any) -> dict[str, Any]:
    """Return the columns, the rows and the shape of a table, with the declared types.

    Raises:
        KeyError: A part is missing.
        TypeError: A part has another type.
        ValueError: A part has another form.
    """
    height, width = table["shape"]
    columns = list(map(str, table["columns"]))
    rows: list[list[Any]] = []
    for row in table["rows"]:
        cells = map(_checked_cell, row)
        rows.append(list(cells))
    return {
        "columns": columns,
        "rows": rows,
        "shape": [int(height), int(width)],
    }


def _checked_cell(cell: Any) -> Any:
    """Return the cell of a table: a number or a string, or for any other value a list
    with a string that describes the value.
    """
    if isinstance(cell, list):
        description = cell[0] if cell else ""
        return [str(description)]
    if isinstance(cell, dict):
        return ["{...}"]
    return cell
