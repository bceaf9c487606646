"""Columns of numbers and texts as bytes, which are read back without running any code.

::

    size of the head (8) | head: JSON | blob | blob | ...

The head has the version of the format, small values, and the size of each blob. A blob
is a column in the form that is read fastest: an array as it lies in memory, texts with
a separator, or the positions of repeated texts in a list.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

_HEAD_SIZE: Final = 8
_SEPARATOR: Final = "\0"
_REPEATED: Final = b"r"
_SEPARATED: Final = b"s"
_JSON: Final = b"j"
_NUMBER_TYPES: Final[Mapping[type, str]] = {float: "d", int: "q"}
_FEWEST_REPEATS: Final = 4
"""The number of times that the texts of a column occur on average, from which each text
is stored once.
"""


class Columns(NamedTuple):
    """Small values, and columns as bytes."""

    head: Mapping[str, Any]
    """Values that JSON supports."""
    blobs: Mapping[str, bytes]

    def to_bytes(
        self,
        version: str,
    ) -> bytes:
        """Return all of it as bytes.

        Args:
            version: The version of the format, which `from_bytes` compares.
        """
        sizes: dict[str, int] = {}
        for name, blob in self.blobs.items():
            sizes[name] = len(blob)
        full_version = _full_version(version)
        parts = [_sized_json([full_version, self.head, sizes])]
        parts += self.blobs.values()
        return b"".join(parts)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        version: str,
    ) -> Columns:
        """Return the columns in *data*.

        Raises:
            ValueError: The data have another form or version.
        """
        content, begin = _read_sized_json(data)
        data_version, head, sizes = content
        if data_version != _full_version(version):
            raise ValueError(f"the columns have the version {data_version}")
        blobs: dict[str, bytes] = {}
        for name, size in sizes.items():
            end = begin + size
            blobs[name] = data[begin:end]
            begin = end
        if begin != len(data):
            raise ValueError("the columns have another size")
        return cls(head, blobs)


def _full_version(version: str) -> str:
    """Return a version with the form of arrays, which differs between machines."""
    size = array("q").itemsize
    return f"{version} {sys.byteorder} {size}"


def _sized_json(value: Any) -> bytes:
    """Return the size of a value as JSON, and the JSON."""
    text = json.dumps(value)
    data = text.encode()
    size = len(data)
    return size.to_bytes(_HEAD_SIZE, "big") + data


def _read_sized_json(data: bytes) -> tuple[Any, int]:
    """Return the value with which *data* begins, and the position after it."""
    size = int.from_bytes(data[:_HEAD_SIZE], "big")
    end = _HEAD_SIZE + size
    text = data[_HEAD_SIZE:end]
    return json.loads(text), end


def pack_array(
    type_code: str,
    values: Iterable[Any],
) -> bytes:
    """Return numbers as bytes.

    Args:
        type_code: The type of the array.
        values: The numbers.
    """
    numbers = array(type_code, values)
    return numbers.tobytes()


def unpack_array(
    type_code: str,
    blob: bytes,
) -> array[Any]:
    """Return the array that `pack_array` returned as bytes."""
    values = array(type_code)
    values.frombytes(blob)
    return values


def pack_texts(texts: Sequence[str]) -> bytes:
    """Return texts as bytes.

    Example:
        >>> unpack_texts(pack_texts(["a", "b", "a"]))
        ['a', 'b', 'a']
    """
    count = len(texts)
    positions: dict[str, int] = {}
    for text in texts:
        positions.setdefault(text, len(positions))
    if len(positions) * _FEWEST_REPEATS <= count:
        codes = map(positions.__getitem__, texts)
        names = list(positions)
        return _REPEATED + _sized_json(names) + pack_array("I", codes)
    joined = _SEPARATOR.join(texts)
    separators = joined.count(_SEPARATOR)
    if separators == count - 1:
        return _SEPARATED + joined.encode("utf-8", "surrogatepass")
    return _json_blob(texts)


def unpack_texts(blob: bytes) -> list[str]:
    """Return the texts that `pack_texts` returned as bytes.

    Repeated texts are the same object.
    """
    kind = blob[:1]
    content = blob[1:]
    if kind == _SEPARATED:
        joined = content.decode("utf-8", "surrogatepass")
        return joined.split(_SEPARATOR)
    if kind == _JSON:
        texts: list[str] = json.loads(content)
        return texts
    names, end = _read_sized_json(content)
    # A table stores each repeated text once in the whole process.
    names = list(map(sys.intern, names))
    codes = unpack_array("I", content[end:])
    return list(map(names.__getitem__, codes))


def _json_blob(values: Sequence[Any]) -> bytes:
    items = list(values)
    text = json.dumps(items)
    return _JSON + text.encode()


def pack_values(values: Sequence[Any]) -> bytes:
    """Return values that JSON supports as bytes.

    Example:
        >>> unpack_values(pack_values([0.5, None, "a"]))
        [0.5, None, 'a']
    """
    types = set(map(type, values))
    for number_type, code in _NUMBER_TYPES.items():
        if types != {number_type}:
            continue
        with suppress(OverflowError):  # such as an integer of more than 64 bits
            return code.encode() + pack_array(code, values)
    return _json_blob(values)


def unpack_values(blob: bytes) -> Sequence[Any]:
    """Return the values that `pack_values` returned as bytes."""
    kind = blob[:1]
    content = blob[1:]
    if kind == _JSON:
        values: list[Any] = json.loads(content)
        return values
    type_code = kind.decode()
    numbers = unpack_array(type_code, content)
    return numbers.tolist()
