"""Previews: short values of a call's arguments, result and metrics, by field.

::

    the attempt of a call ──► `PreviewDraft` ──► `Preview` ──► `AttemptRecord`
                                                     └──► a record beside the writes

A preview is made where the call runs, and is recorded as JSON with the call. So a
reader shows the fields of a call without running any code of the user's program, and
without decoding the result. In the JSON, a string in a list of its own describes a
value that is no short string or number::

    {"a": {"params.depth": 12, "rows": ["<list of 100>"]}, "r": {"loss": 0.113}}

The keys are ``a`` for arguments, ``r`` for the result, ``m`` for metrics, ``f`` for the
names of the tasks from which arguments come, by parameter, ``o`` for the output files,
and ``n`` for the number of output files for which there was no room.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date
from enum import Enum
from itertools import islice
from math import isfinite
from pathlib import PurePath
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import ref

from flowpregel._core.ids import Preview, Sources
from flowpregel._core.metric_series import MetricSeries, UnsentPoints
from flowpregel._pickling.file_digests import FileState, WrittenFile
from flowpregel._text import outlined
from flowpregel.errors import TaskCancelled

if TYPE_CHECKING:
    from flowpregel._core.records import Node, Task

Field: TypeAlias = int | float | str | list[str] | None
"""The value of a field: a number, a short string or None, or for any other value a list
with one string that describes it.
"""
Media: TypeAlias = tuple[str, str, bytes]
"""A larger part of a preview: the title, the kind (such as ``png``), and the data."""

MOST_FIELDS: Final = 24
"""The greatest number of fields of the arguments, of the result and of the metrics."""
LONGEST_NAME: Final = 60
LONGEST_FIELD: Final = 80
"""The greatest number of characters in the value of a field."""
MOST_BYTES: Final = 8_000
"""The limit on the size of a preview without its media (larger parts), in bytes."""
MOST_OUTPUT_BYTES: Final = 50_000
"""The limit on the total size of the records of output files (paths, digests, sizes) in
a preview, in bytes.
"""
OUTPUTS_MARK: Final = b'"o":['
"""The bytes by which a preview with output files is recognized. They occur nowhere else
in it, because quotes in strings would be escaped.
"""
REDACTED: Final = "<redacted>"
LARGEST_INT: Final = 1 << 53
"""The first integer that JavaScript may not represent exactly."""
SECRET: Final = re.compile(
    r"(?i:passw(?:or)?d|passphrase|secret|credential|authorization)"
    r"|(?i:(?:api|access|private|encryption|signing)_?key)"
    r"|(?:^|[^A-Za-z])(?i:token)$|[a-z]Token$"
)
"""A pattern for the names of fields whose values are never shown."""
_USER_IN_URL: Final = re.compile(r"://[^/@\s]*@")
encode_json: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


@dataclass(slots=True, eq=False)
class PreviewDraft:
    """The unfinished preview of a call that still runs."""

    parts: dict[str, Any] = field(default_factory=dict)
    """The fields of the arguments (key ``a`` in the JSON) and the metrics (``m``)."""
    media: list[Media] = field(default_factory=list)
    outputs: bytes = b""
    """The records of the output files, as the end of the preview's JSON."""
    series: dict[str, MetricSeries] | None = None
    """The series of the metrics, or None before the first value of a metric."""
    unsent: UnsentPoints | None = None
    """The points of the series that the coordinator does not have yet, or None."""


NO_PREVIEW: Final = Preview()


def first_fields(parts: dict[str, Any]) -> bytes:
    """Return the parts of a preview as JSON. If it would have more than `MOST_BYTES`
    bytes, leave out fields at the end of each part.

    Args:
        parts: The fields of the arguments, the result and the metrics, by the keys
            ``a``, ``r`` and ``m``.
    """
    smaller = dict(parts)
    data = encode_json(smaller).encode(errors="replace")
    while len(data) > MOST_BYTES:
        for key, part in smaller.items():
            if isinstance(part, dict):
                names = list(part)[: len(part) // 2]
                smaller[key] = {name: part[name] for name in names}
        data = encode_json(smaller).encode(errors="replace")
    return data


def argument_fields(
    node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Field]:
    """Return the arguments of a call by the names of the parameters, and the fields of
    arguments by names such as ``params.depth``.

    Args:
        node: The node of the called task.
        args: The positional arguments of the call.
        kwargs: The keyword arguments of the call.
    """
    # Arguments in ``*args`` are named by their positions.
    positions = range(len(node.parameters), len(args))
    names = (*node.parameters, *map(str, positions))
    arguments = dict(zip(names, args, strict=False))
    arguments.update(kwargs)
    fields: dict[str, Field] = {}
    for name, value in islice(arguments.items(), MOST_FIELDS):
        if name in node.redacted or SECRET.search(name):
            fields[name] = [REDACTED]
        elif type(value) is int and abs(value) < LARGEST_INT:
            fields[name] = value
        else:
            _add_fields(fields, name, value)
    if len(fields) > MOST_FIELDS:
        return dict(islice(fields.items(), MOST_FIELDS))
    return fields


def _add_fields(fields: dict[str, Field], name: str, value: Any) -> None:
    """Add *value* to *fields* under *name*. If the value has fields, add these
    instead.
    """
    parts = value_fields(value)
    if not parts:
        fields[name] = field_value(value)
        return
    free = max(1, MOST_FIELDS - len(fields))
    for key, part in islice(parts.items(), free):
        fields[f"{name}.{key}"] = part


def value_fields(value: Any) -> dict[str, Field] | None:
    """Return the first fields of a dict with strings as keys, or of an object with
    named fields; or None if *value* has no such fields, or they cannot be read.
    """
    try:
        return _value_fields(value)
    except TaskCancelled:
        raise
    except Exception:  # noqa: BLE001 - the class of the value may raise any error
        return None


def _value_fields(value: Any) -> dict[str, Field] | None:
    parts = _named_parts(value)
    if parts is None or not all(isinstance(key, str) for key in parts):
        return None
    fields: dict[str, Field] = {}
    for key, part in islice(parts.items(), MOST_FIELDS):
        name = str(key)[:LONGEST_NAME]
        fields[name] = [REDACTED] if SECRET.search(name) else field_value(part)
    return fields


def _named_parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the items of a dict or the fields of an object, or None."""
    if isinstance(value, dict):
        return value
    if isinstance(value, SimpleNamespace):
        return vars(value)
    return None if type(value) in _PLAIN else named_fields(value)


_PLAIN: Final = frozenset({int, float, bool, NoneType, str, bytes, list, tuple, set})


def field_value(value: Any) -> Field:
    """Return *value* if it is a number, a short string or None. Otherwise return a list
    with one string that describes it.
    """
    try:
        return _field_value(value)
    except TaskCancelled:
        raise
    except Exception:  # noqa: BLE001 - the class of the value may raise any error
        return [f"<{type(value).__qualname__}>"]


def _field_value(value: Any) -> Field:
    match value:
        case None | bool():
            return value
        case Enum():
            return [f"{type(value).__name__}.{value.name}"]
        case str():
            return _text_field(str(value))
        case int() if -LARGEST_INT < value < LARGEST_INT:
            return int(value)
        case float():
            number = float(value)
            return number if isfinite(number) else [str(number)]
        case date():
            return value.isoformat()
        case PurePath():
            return _text_field(str(value))
        case dict():
            # The items are left out, because their keys may be the names of secrets.
            return [f"<dict of {len(value)}>"]
    return _array_field(value)


def _text_field(text: str) -> Field:
    """Return the beginning of a string in one line, without the user name and password
    of a URL.
    """
    beginning = _USER_IN_URL.sub(f"://{REDACTED}@", text[: 4 * LONGEST_FIELD])
    if len(beginning) <= LONGEST_FIELD:
        return beginning
    return beginning[: LONGEST_FIELD - 1] + "…"


def _array_field(value: Any) -> Field:
    """Return the shape and the type of an array or a table, the number in an array
    without dimensions, or a description of any other value.
    """
    kind = type(value)
    shape = getattr(value, "shape", None) if hasattr(kind, "shape") else None
    if not isinstance(shape, tuple):
        outline = outlined(value)
        return [outline[: 2 * LONGEST_FIELD]]
    if not shape and hasattr(kind, "item"):
        number = value.item()
        if type(number) in _PLAIN:
            return _field_value(number)
        return [str(number)[:LONGEST_FIELD]]
    lengths = " x ".join(f"{length:,}" for length in shape)
    dtype = getattr(value, "dtype", "") if hasattr(kind, "dtype") else ""
    text = f"<{kind.__name__} {lengths} {dtype}".strip()
    return [text[:LONGEST_FIELD] + ">"]


def arguments_preview(task: Task) -> bytes:
    """Return the preview of a call that no process has run to its end: only its
    arguments.
    """
    # Any error is ignored: the input of a node has no arguments, and arguments that
    # were pickled at the call are unpickled here, which runs code of their classes.
    with suppress(Exception):
        value = task.input
        fields = argument_fields(task.node, value.args, value.kwargs)
        return first_fields({"a": fields}) if fields else b""
    return b""


ResultOrigins: TypeAlias = dict[int, tuple[str, Any]]
"""The results that a body has read, by the ``id()`` of the result: the name of the
task, and a mark (see `_mark_of`) that another object at the same address is unlikely to
have. The entries do not keep the results alive.
"""
MOST_ITEMS: Final = 256
"""The number of items, from the beginning of a list, tuple or dict, that are noted as
results or compared with them.
"""
MOST_ORIGINS: Final = 20_000
_SEQUENCES: Final = frozenset({list, tuple})
_SIZED: Final = frozenset({list, tuple, dict, set, bytes})
_NUMBERS: Final = frozenset({int, float})
_SHARED: Final = frozenset({NoneType, bool})


def note_result(
    origins: ResultOrigins | None,
    result: Any,
    name: str,
) -> ResultOrigins | None:
    """Return *origins* with a result of the task *name*, and with the first items of
    the result if it is a container.

    Args:
        origins: The results that the body has read so far, or None if there are none.
        result: The result that the body reads now.
        name: The name of the task that computed the result.
    """
    known = {} if origins is None else origins
    kind = type(result)
    is_container = kind in _SEQUENCES or kind is dict
    items = _first_items(result) if is_container else ()
    for value in (result, *items):
        mark = _mark_of(value)
        if mark is not None:
            key = id(value)
            known[key] = (name, mark)
    if len(known) > MOST_ORIGINS:
        # The keys are copied, because another OS thread of the body may add results at
        # the same time.
        keys = list(known)
        for key in keys[: MOST_ORIGINS // 2]:
            known.pop(key, None)
    return known or None


def sources_among(
    arguments: Iterable[tuple[str, Any]],
    origins: ResultOrigins,
    futures: Mapping[int, str],
) -> Sources:
    """Return, for each argument that is or contains the result or the future of a task,
    the name of the parameter and the name of that task. Only the first items of a
    container are checked.

    Args:
        arguments: The name of the parameter and the value of each argument.
        origins: The results that the body has read.
        futures: The name of the task of each future, by the id of the future.
    """
    sources: dict[tuple[str, str], None] = {}
    for parameter, value in arguments:
        for item in (value, *_first_items(value)):
            key = id(item)
            name = futures.get(key, "")
            if key in origins:
                name = _task_of(item, origins)
            if name:
                sources[parameter, name] = None
    return tuple(sources)


def _first_items(value: Any) -> Sequence[Any]:
    """Return the first items of a list or tuple, or the first values of a dict."""
    kind = type(value)
    items: Sequence[Any] = ()
    if kind in _SEQUENCES:
        items = value[:MOST_ITEMS]
    elif kind is dict:
        items = list(value.values())[:MOST_ITEMS]
    return items


def _task_of(result: Any, origins: ResultOrigins) -> str:
    """Return the name of the task of a result, or an empty string if another object now
    has the address of the result.
    """
    key = id(result)
    name, mark = origins[key]
    present_mark = _mark_of(result)
    # Weak references are compared by identity. `==` would compare the objects to which
    # they refer, and might run a user's code.
    is_same = mark is present_mark
    if type(mark) is tuple and type(present_mark) is tuple:
        is_same = mark == present_mark
    return name if is_same else ""


def _mark_of(value: Any) -> Any:
    """Return a mark that identifies *value* at its address as long as it exists, or
    None for a value that the interpreter shares, such as a small int.
    """
    kind = type(value)
    if kind in _SHARED:
        return None
    if kind is int and -6 < value < 257:
        return None
    if kind in _NUMBERS:
        return (kind, value)
    if kind is str:
        return (kind, len(value), value[:20]) if len(value) > 1 else None
    if kind in _SIZED:
        return (kind, len(value)) if value else None
    try:
        # As long as the object exists, `ref` returns the same weak reference for it, so
        # the reference is a mark of the object.
        return ref(value)
    except TypeError:
        return kind


def with_sources(preview: bytes, sources: Sources) -> bytes:
    """Return the preview of a call, with the tasks from which its arguments come.

    Args:
        preview: The preview as JSON, or empty.
        sources: The name of the parameter and of the task, for each argument that comes
            from a task.
    """
    tasks: dict[str, list[str]] = {}
    for parameter, name in sources[:MOST_FIELDS]:
        tasks.setdefault(parameter, []).append(name[:LONGEST_NAME])
    part = encode_json({"f": tasks}).encode(errors="replace")
    if len(preview) + len(part) > MOST_BYTES:
        return preview
    return preview[:-1] + b"," + part[1:] if preview else part


# ---------------------------------------------------------------- output files


class WrittenFiles(NamedTuple):
    """The output files that are recorded with a call."""

    files: Sequence[WrittenFile] = ()
    unrecorded: int = 0
    """The number of further output files, for which the preview had no room."""


NO_OUTPUTS: Final = WrittenFiles()


def output_fields(outputs: Sequence[WrittenFile]) -> bytes:
    """Return the fields of output files, for the end of a preview's JSON: a comma, and
    the records of the first files, which have at most `MOST_OUTPUT_BYTES` bytes.

    Args:
        outputs: The records of the output files that the call has written.
    """
    if not outputs:
        return b""
    records: list[str] = []
    free = MOST_OUTPUT_BYTES
    for output in outputs:
        # JSON escapes the bytes of a path that are not UTF-8, so they are not lost.
        record = json.dumps(output, separators=(",", ":"))
        free -= len(record) + 1
        if free < 0:
            break
        records.append(record)
    data = b"," + OUTPUTS_MARK + ",".join(records).encode() + b"]"
    unrecorded = len(outputs) - len(records)
    if unrecorded:
        data += f',"n":{unrecorded}'.encode()
    return data


def outputs_in(preview: bytes | str) -> WrittenFiles:
    """Return the output files in the preview of a call.

    Output files that cannot be read, such as those of a later version, are left out.

    Example:
        >>> outputs_in(b'{"a":{"n":3}}')
        WrittenFiles(files=(), unrecorded=0)
    """
    data = preview.encode() if isinstance(preview, str) else bytes(preview)
    if OUTPUTS_MARK not in data:
        return NO_OUTPUTS
    try:
        parts = json.loads(data)
        files: list[WrittenFile] = []
        for path, folder, digest, state, is_settled in parts["o"]:
            inode, size, changed_at, entries = state
            file_state = FileState(int(inode), int(size), int(changed_at), str(entries))
            file = WrittenFile(
                str(path), str(folder), str(digest), file_state, bool(is_settled)
            )
            files.append(file)
        return WrittenFiles(files, int(parts.get("n", 0)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return NO_OUTPUTS


# ---------------------------------------------------------------- media


def pack_media(media: Iterable[Media]) -> bytes:
    """Return *media* as bytes: a line of JSON with the titles, kinds and sizes, and the
    data.

    Example:
        >>> pack_media([("result", "text", b"one")])
        b'[["result","text",3]]\\none'
    """
    items = list(media)
    if not items:
        return b""
    head = [[title, kind, len(data)] for title, kind, data in items]
    line = encode_json(head).encode(errors="replace")
    contents = b"".join(data for _, _, data in items)
    return line + b"\n" + contents


def unpack_media(packed: bytes) -> list[Media]:
    """Return the media that `pack_media` has packed.

    Example:
        >>> unpack_media(pack_media([("result", "text", b"one")]))
        [('result', 'text', b'one')]
    """
    if not packed:
        return []
    line, _, rest = bytes(packed).partition(b"\n")
    media: list[Media] = []
    for title, kind, size in json.loads(line):
        media.append((title, kind, rest[:size]))
        rest = rest[size:]
    return media


# ---------------------------------------------------------------- fields of objects


def named_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a named tuple, a dataclass, a pydantic model or a class of
    attrs, or None.
    """
    if isinstance(value, tuple):
        if not hasattr(value, "_fields"):
            return None
        return dict(zip(value._fields, value, strict=False))
    if isinstance(value, list | Set):
        return None
    names = _field_names(value)
    if names is None:
        return None
    field_values: dict[str, Any] = {}
    for name in names:
        field_values[name] = getattr(value, name, None)
    return field_values


def _field_names(value: Any) -> list[str] | None:
    """Return the field names of a dataclass, a pydantic model or a class of attrs, or
    None.
    """
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    kind = type(value)
    model_fields = getattr(kind, "model_fields", None)
    if isinstance(model_fields, Mapping):
        return list(model_fields)
    attributes = getattr(kind, "__attrs_attrs__", None)
    if isinstance(attributes, tuple):
        return [attribute.name for attribute in attributes]
    return None
