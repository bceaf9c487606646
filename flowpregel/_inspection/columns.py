"""Columns of numbers and strings as bytes, which are read back without running any
code.

::

    size of the head (8) | head: JSON | blob | blob | ...

The head has the version of the format, small values, and the size of each blob. A blob
is a column in a form from which single values are read without reading the others: an
array as it lies in memory, joined strings with the positions of their ends, or the
position of each string in a list of the different ones. So a column costs almost
nothing until it is needed as a whole.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

Blob: TypeAlias = bytes | memoryview
"""A column as bytes."""

_HEAD_SIZE: Final = 8
_REPEATED: Final = b"r"
_JOINED: Final = b"t"
_JSON: Final = b"j"
_NUMBER_TYPES: Final[Mapping[type, str]] = {float: "d", int: "q"}
_FEWEST_REPEATS: Final = 4
"""The average number of times that a string of a column must occur, so that equal
strings are stored only once.
"""


class Columns(NamedTuple):
    """Named values that can be stored as bytes: small ones as JSON, and columns that
    are bytes already.
    """

    head: Mapping[str, Any]
    """The small values, which JSON supports, by name."""
    blobs: Mapping[str, Blob]

    def to_bytes(
        self,
        version: str,
    ) -> bytes:
        """Return the values and the columns as bytes.

        Args:
            version: The version of the format, which `from_bytes` compares.
        """
        sizes: dict[str, int] = {}
        for name, blob in self.blobs.items():
            sizes[name] = len(blob)
        full_version = _full_version(version)
        parts: list[Blob] = [_sized_json([full_version, self.head, sizes])]
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
        view = memoryview(data)
        data_version, head, sizes = content
        if data_version != _full_version(version):
            raise ValueError(f"the columns have the version {data_version}")
        blobs: dict[str, Blob] = {}
        for name, size in sizes.items():
            end = begin + size
            blobs[name] = view[begin:end]
            begin = end
        if begin != len(data):
            raise ValueError("the columns have another size")
        return cls(head, blobs)


def _full_version(version: str) -> str:
    """Return *version* followed by this machine's byte order and size of integers. If
    one of these differs on another machine, arrays from that machine cannot be read.
    """
    size = array("q").itemsize
    return f"{version} {sys.byteorder} {size}"


def _sized_json(value: Any) -> bytes:
    """Return the JSON of a value, preceded by its size."""
    text = json.dumps(value)
    data = text.encode()
    size = len(data)
    return size.to_bytes(_HEAD_SIZE, "big") + data


def _read_sized_json(data: Blob) -> tuple[Any, int]:
    """Return the value with which *data* begins, and the position after it."""
    size = int.from_bytes(data[:_HEAD_SIZE], "big")
    end = _HEAD_SIZE + size
    text = bytes(data[_HEAD_SIZE:end])
    return json.loads(text), end


def pack_array(
    type_code: str,
    values: Iterable[Any],
) -> bytes:
    """Return numbers as bytes.

    Args:
        type_code: The type of the array.
        values: The numbers to store.
    """
    numbers = array(type_code, values)
    return numbers.tobytes()


def unpack_array(
    type_code: str,
    blob: Blob,
) -> array[Any]:
    """Return the array that `pack_array` returned as bytes."""
    values = array(type_code)
    values.frombytes(blob)
    return values


class PackedTexts(ABC):
    """Strings as bytes, from which each string is read when it is needed.

    Args:
        blob: The bytes that `pack_texts` returned.
    """

    def __init__(self, blob: Blob) -> None:
        self.blob: Blob = blob
        """The strings as bytes, as `pack_texts` returned them."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of strings."""

    @abstractmethod
    def __getitem__(self, number: int) -> str:
        """Return the string at a position."""

    @abstractmethod
    def unpacked(self) -> list[str]:
        """Return all strings. Equal strings are the same object."""


class _RepeatedTexts(PackedTexts):
    """The different strings of a column, and the position of each row's string among
    them.
    """

    def __init__(self, blob: Blob) -> None:
        super().__init__(blob)
        names, end = _read_sized_json(blob[1:])
        begin = 1 + end
        # Equal strings become one object in the whole process, as in a table that was
        # not stored.
        self._names: list[str] = list(map(sys.intern, names))
        self._positions = unpack_array("I", blob[begin:])

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._positions)

    def __getitem__(self, number: int) -> str:
        """Return the string at a position."""
        position: int = self._positions[number]
        return self._names[position]

    def unpacked(self) -> list[str]:
        """Return all strings."""
        texts = map(self._names.__getitem__, self._positions)
        return list(texts)


class _JoinedTexts(PackedTexts):
    """Encoded strings joined to one `bytes`, and the position at which each of them
    ends.
    """

    def __init__(self, blob: Blob) -> None:
        super().__init__(blob)
        ends_size, end = _read_sized_json(blob[1:])
        begin = 1 + end
        text_begin = begin + ends_size
        self._ends = unpack_array("I", blob[begin:text_begin])
        """The position of the end of each string, after a zero."""
        self._data = blob[text_begin:]

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        """Return the string at a position."""
        begin = self._ends[number]
        end = self._ends[number + 1]
        return _from_utf8(self._data[begin:end])

    def unpacked(self) -> list[str]:
        """Return all strings."""
        text = _from_utf8(self._data)
        if len(text) == len(self._data):
            bounds = pairwise(self._ends)
            return [text[begin:end] for begin, end in bounds]
        numbers = range(len(self))
        return list(map(self.__getitem__, numbers))


def _to_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _from_utf8(data: Blob) -> str:
    return str(data, "utf-8", "surrogatepass")


def pack_texts(texts: Sequence[str] | PackedTexts) -> Blob:
    """Return strings as bytes.

    Example:
        >>> texts = unpack_texts(pack_texts(["a", "ä", ""]))
        >>> texts[1], len(texts), texts.unpacked()
        ('ä', 3, ['a', 'ä', ''])
    """
    if isinstance(texts, PackedTexts):
        return texts.blob
    positions: dict[str, int] = {}
    for text in texts:
        positions.setdefault(text, len(positions))
    if len(positions) * _FEWEST_REPEATS <= len(texts):
        codes = map(positions.__getitem__, texts)
        names = list(positions)
        return b"".join(
            [
                _REPEATED,
                _sized_json(names),
                pack_array("I", codes),
            ]
        )
    joined = "".join(texts)
    parts: Sequence[str | bytes] = texts
    if not joined.isascii():
        parts = list(map(_to_utf8, texts))
    ends = accumulate(
        map(len, parts),
        initial=0,
    )
    packed_ends = pack_array("I", ends)
    ends_size = len(packed_ends)
    return b"".join(
        [
            _JOINED,
            _sized_json(ends_size),
            packed_ends,
            _to_utf8(joined),
        ]
    )


def unpack_texts(blob: Blob) -> PackedTexts:
    """Return the strings that `pack_texts` returned as bytes."""
    kind = bytes(blob[:1])
    if kind == _REPEATED:
        return _RepeatedTexts(blob)
    return _JoinedTexts(blob)


def _json_blob(values: Sequence[Any]) -> bytes:
    items = list(values)
    text = json.dumps(items)
    return _JSON + text.encode()


def pack_values(values: Sequence[Any]) -> Blob:
    """Return values that JSON supports as bytes.

    Example:
        >>> list(unpack_values(pack_values([0.5, None, "a"])))
        [0.5, None, 'a']
    """
    types = set(map(type, values))
    if types == {str}:
        return pack_texts(values)
    for number_type, code in _NUMBER_TYPES.items():
        if types != {number_type}:
            continue
        # An integer of more than 64 bits does not fit in an array, so such values are
        # stored as JSON.
        with suppress(OverflowError):
            return code.encode() + pack_array(code, values)
    return _json_blob(values)


def unpack_values(blob: Blob) -> Sequence[Any] | PackedTexts:
    """Return the values that `pack_values` returned as bytes."""
    kind = bytes(blob[:1])
    content = blob[1:]
    if kind in (_REPEATED, _JOINED):
        return unpack_texts(blob)
    if kind == _JSON:
        values: list[Any] = json.loads(bytes(content))
        return values
    type_code = kind.decode()
    return unpack_array(type_code, content)


class PackedCells(Mapping[int, Any]):
    """The values of some rows as bytes, from which each is read when it is needed.

    Args:
        rows: The numbers of the rows in ascending order, from `pack_array`.
        values: The values of these rows, from `pack_values`.

    Example:
        >>> rows = pack_array("I", [2, 5])
        >>> cells = PackedCells(rows, pack_values([0.5, 0.25]))
        >>> cells[5], cells.get(3), list(cells)
        (0.25, None, [2, 5])
    """

    def __init__(self, rows: Blob, values: Blob) -> None:
        self.blobs: tuple[Blob, Blob] = (rows, values)
        """The numbers of the rows, and their values, as bytes."""
        self._rows = unpack_array("I", rows)

    def __len__(self) -> int:
        """Return the number of rows that have a value."""
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over the numbers of the rows."""
        return iter(self._rows)

    def __getitem__(self, number: int) -> Any:
        """Return the value of a row."""
        index = bisect_left(self._rows, number)
        row = -1
        if index < len(self._rows):
            row = self._rows[index]
        if row != number:
            raise KeyError(number)
        return self._values[index]

    def unpacked(self) -> dict[int, Any]:
        """Return all values by the numbers of their rows."""
        values = self._values
        if isinstance(values, PackedTexts):
            values = values.unpacked()
        cells = zip(
            self._rows,
            values,
            strict=True,
        )
        return dict(cells)

    @cached_property
    def _values(self) -> Sequence[Any] | PackedTexts:
        """The values. Each string and number is read when it is needed."""
        return unpack_values(self.blobs[1])


def pack_cells(cells: Mapping[int, Any]) -> tuple[Blob, Blob]:
    """Return the values of rows as the two arguments of `PackedCells`."""
    if isinstance(cells, PackedCells):
        return cells.blobs
    numbers = sorted(cells)
    values = [cells[number] for number in numbers]
    packed_numbers = pack_array("I", numbers)
    return packed_numbers, pack_values(values)
