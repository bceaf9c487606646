"""Previews of results and reports, made in the process in which the call runs.

::

    result ──► its fields, for the columns of a table      ──► `Preview.fields`
          └──► its first lines, rows, or its picture       ──► `Preview.media`

Methods of the value's class, such as ``_repr_png_``, run here, so that the process that
shows the preview need not run any user code. A preview that fails or is too large is
left out: no call fails because of a preview.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from flowpregel._core.previews import (
    LONGEST_FIELD,
    Media,
    field_value,
    outputs_in,
    pack_media,
    value_fields,
)
from flowpregel._pickling.file_digests import note_output
from flowpregel.context import Scope
from flowpregel.errors import TaskCancelled

LARGEST_PICTURE: Final = 96 << 10
"""The limit on the size of one picture, in bytes."""
LARGEST_MEDIA: Final = 192 << 10
"""The limit on the size of all media of a call, in bytes."""
MOST_REPORTS: Final = 8
"""The number of reports that are stored for a call: its latest ones."""
_MOST_LINES: Final = 12
_LONGEST_TEXT: Final = 2_000
_MOST_ROWS: Final = 10
_MOST_COLUMNS: Final = 12
_SIDE: Final = 640
"""The greatest width and height, in pixels, to which a large picture is scaled down."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"


def packed_media(media: Sequence[Media]) -> bytes:
    """Return the first *media* that together are not larger than `LARGEST_MEDIA`, as
    bytes.
    """
    fitting: list[Media] = []
    free = LARGEST_MEDIA
    for item in media:
        free -= len(item[2])
        if free < 0:
            break
        fitting.append(item)
    return pack_media(fitting)


def note_outputs(preview: bytes) -> None:
    """Note the digests of the output files of a call that ran in another process, so
    that this process need not read the files to compute them.

    Args:
        preview: The preview of the call.
    """
    written = outputs_in(preview)
    for output in written.files:
        path = os.path.join(output.folder, output.path)
        note_output(output, path)


def result_fields(result: Any) -> Any:
    """Return the fields of a result for the columns of a table. If the result has no
    fields, return a list or a value that describes the result.
    """
    return value_fields(result) or field_value(result)


def note_report(scope: Scope, value: Any, title: str = "report") -> None:
    """Add the preview of *value* to the preview of the running call.

    Args:
        scope: The scope of the attempt.
        value: The value that the task reports.
        title: The title, which replaces an earlier report with the same title.
    """
    draft = scope.preview_draft()
    if draft is None:
        return
    media = media_of(value, title)
    if not media:
        text = _text_of_fields(value)
        media = [(title, "text", text.encode(errors="replace"))]
    others = [item for item in draft.media if item[0] != title]
    draft.media = [*others, *media][-MOST_REPORTS:]


def _text_of_fields(value: Any) -> str:
    """Return a short text that shows a value for which no media was made: the fields of
    the value, one on each line.
    """
    fields = result_fields(value)
    if not isinstance(fields, dict):
        fields = {"": fields}
    lines: list[str] = []
    for name, part in fields.items():
        text = part[0] if isinstance(part, list) else part
        lines.append(f"{name}: {text}" if name else str(text))
    return "\n".join(lines)


# ---------------------------------------------------------------- kinds of media


def media_of(value: Any, title: str) -> list[Media]:
    """Return the picture, the table or the text that shows *value*, if there is one.

    Args:
        value: The value to show.
        title: The title of the media.
    """
    for kind, make in _MAKERS.items():
        try:
            data = make(value)
        except TaskCancelled:
            raise
        except Exception:  # noqa: BLE001 - the class of the value may raise any error
            continue
        if data:
            return [(title[:LONGEST_FIELD], kind, data)]
    return []


def _text_media(value: Any) -> bytes | None:
    """Return the first lines of a str that does not fit in a field, or None for any
    other value.
    """
    if not isinstance(value, str):
        return None
    if len(value) <= LONGEST_FIELD and "\n" not in value:
        return None
    lines = value[:_LONGEST_TEXT].split("\n", _MOST_LINES)[:_MOST_LINES]
    text = "\n".join(lines)
    if len(text) < len(value):
        text += f"\n… ({len(value):,} characters)"
    return text.encode(errors="replace")


def _png_media(value: Any) -> bytes | None:
    """Return the PNG of an image or a figure, scaled down if it is large, or None for
    any other value.
    """
    if isinstance(value, bytes):
        return value if _is_picture(value, _PNG) else None
    data: bytes | None = _picture_of(value, "_repr_png_")
    if data is not None and len(data) <= LARGEST_PICTURE:
        return data
    kind = type(value)
    file = io.BytesIO()
    if hasattr(kind, "thumbnail"):
        # The value is a large Pillow image. It is copied, because the call's result
        # must not change.
        small = value.copy()
        small.thumbnail((_SIDE, _SIDE))
        small.save(file, format="PNG")
    elif hasattr(kind, "savefig"):
        # The value is a Matplotlib figure. At 80 dpi most figures are 480 to 640 pixels
        # wide, which is small enough.
        value.savefig(file, format="png", dpi=80)
    data = file.getvalue()
    return data if _is_picture(data, _PNG) else None


def _picture_of(value: Any, method: str) -> Any:
    """Return the picture that the method *method* of *value*, such as ``_repr_png_``,
    returns for IPython, or None.
    """
    make = getattr(type(value), method, None)
    picture = None if make is None else make(value)
    # Such a method may return a tuple: the picture and its metadata.
    return picture[0] if isinstance(picture, tuple) else picture


def _is_picture(data: bytes, beginning: bytes) -> bool:
    return data.startswith(beginning) and len(data) <= LARGEST_PICTURE


def _jpeg_media(value: Any) -> bytes | None:
    """Return *value* if it is a JPEG picture as bytes, else None."""
    if isinstance(value, bytes) and _is_picture(value, _JPEG):
        return value
    return None


def _svg_media(value: Any) -> bytes | None:
    """Return the SVG of an object that IPython shows as SVG, or None."""
    text = value
    if not isinstance(value, str):
        text = _picture_of(value, "_repr_svg_")
    elif not value.lstrip().startswith(("<svg", "<?xml")) or "<svg" not in value[:999]:
        return None
    data = text.encode() if isinstance(text, str) else b""
    return data if 0 < len(data) <= LARGEST_PICTURE else None


def _markdown_media(value: Any) -> bytes | None:
    """Return the Markdown of an object that IPython shows as Markdown, or None."""
    text = _picture_of(value, "_repr_markdown_")
    if not isinstance(text, str):
        return None
    return text[: 10 * _LONGEST_TEXT].encode(errors="replace")


def _table_media(value: Any) -> bytes | None:
    """Return the columns and the first rows of a table of pandas or polars, as JSON."""
    kind = type(value)
    if not (hasattr(kind, "columns") and hasattr(kind, "head")):
        return None
    names = [str(name) for name in islice(value.columns, _MOST_COLUMNS)]
    head = value.head(_MOST_ROWS)
    if hasattr(kind, "itertuples"):
        rows = head.itertuples(index=False, name=None)
    else:
        rows = head.rows()
    cells = [[field_value(cell) for cell in row[:_MOST_COLUMNS]] for row in rows]
    count, width = value.shape
    table = {"columns": names, "rows": cells, "shape": [int(count), int(width)]}
    return json.dumps(table, ensure_ascii=False, allow_nan=False).encode()


_MAKERS: Final[dict[str, Callable[[Any], bytes | None]]] = {
    "svg": _svg_media,
    "text": _text_media,
    "jpeg": _jpeg_media,
    "markdown": _markdown_media,
    "table": _table_media,
    "png": _png_media,
}
"""The functions that make media from a value, by the kind of the media. The first one
that returns media is used.
"""
