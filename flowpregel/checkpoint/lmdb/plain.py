"""Values as a record has them: encoded, or as they are.

A record is a pickle, and so can hold small values of plain types themselves.
That takes less room than bytes which hold a value that is encoded, and less
time: hundreds of them are looked at by functions in C, with no call for each.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import Any, TypeAlias

from flowpregel._lmdb.codec import PLAIN_PICKLE, Codec, PythonCodec, decode, encode
from flowpregel._lmdb.wrapping import WrappedCodec
from flowpregel.channels.base import MISSING, Missing
from flowpregel.checkpoint.lmdb import formats

LARGEST = 4096
"""Bytes: a larger value is encoded, and gets a record of its own."""

Kept: TypeAlias = bytes | str | int | float | tuple[str | None, ...] | None
"""A value as a record has it; bytes: encoded. A tuple: which call a task was."""

What: TypeAlias = Callable[[Any, str], str]
"""Says what the value of a channel is, for a message."""

_PLAIN: frozenset[type] = frozenset({int, str, float, bool, type(None)})
"""The exact types whose values are kept as they are: none has a part that can change."""
_NOTHING: frozenset[type] = frozenset()
_TEXTS: frozenset[type] = frozenset({str, type(None)})
_FEW = 8
_TUPLE = 3
"""Bytes of a pickle of one value in a tuple that are not the value's."""
_OBJECT = 20
"""What an object in memory takes more than in a pickle, at least."""
_CODEC = PythonCodec()


class Encoder:
    """Encodes the values of one batch, the same object once.

    Args:
        codec: For values that are not kept as they are.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        # A codec of the user's sees every value.
        self._plain = _PLAIN if isinstance(codec, WrappedCodec) and codec.is_plain else _NOTHING
        self._known: dict[int, bytes] = {}
        """By the id of an object: its bytes."""

    def all(
        self, values: Sequence[Any], names: Sequence[str], what: What, place: Any
    ) -> tuple[Sequence[Kept], int]:
        """Return *values* as they are kept, and about how many bytes they take.

        Args:
            values: Objects that live as long as the encoder.
            names: A channel for each of them, at least.
            what: Says what one is, of *place* and channel, for the message of an error.
            place: Where they are from.

        Raises:
            ValueEncodingError: One cannot be kept.
        """
        if self._plain.issuperset(map(type, values)):
            # No other way to know how large hundreds of values are is as quick.
            few = len(values) < _FEW
            size = sum(map(getsizeof, values)) if few else len(pickle.dumps(values, 5))
            if size <= LARGEST:
                return values, size
        one = self._one
        kept = [one(value, name, what, place) for value, name in zip(values, names, strict=False)]
        return kept, sum(map(size_of, kept))

    def leaves(self, value: Any) -> bool:
        """Return whether *value* is a tuple of small texts, to be kept as it is."""
        return (
            bool(self._plain)
            and type(value) is tuple
            and _TEXTS.issuperset(map(type, value))
            and sum(map(getsizeof, value)) <= LARGEST
        )

    def known(self, value: Any) -> Kept | Missing:
        """Return the very object that *value* was kept as, if it was."""
        if self._is_plain(value):
            return value  # type: ignore[no-any-return]
        return self._known.get(id(value), MISSING)

    def _one(self, value: Any, name: str, what: What, place: Any) -> Kept:
        if self._is_plain(value):
            return value  # type: ignore[no-any-return]
        known = self._known.get(id(value))
        if known is None:
            try:
                known = self._codec.encode(value)
            except Exception:  # noqa: BLE001 - said below, with the name of the one that it was
                known = encode(self._codec, value, what(place, name))
            self._known[id(value)] = known
        return known

    def _is_plain(self, value: Any) -> bool:
        return type(value) in self._plain and getsizeof(value) <= LARGEST


def size_of(kept: Kept) -> int:
    """Return about how many bytes one value takes."""
    return len(kept) if type(kept) is bytes else getsizeof(kept) - _OBJECT


def bytes_of(kept: Kept) -> int:
    """Return how many bytes of a record one value takes."""
    return len(kept) if type(kept) is bytes else len(formats.pickled((kept,))) - _TUPLE


def as_bytes(kept: Kept) -> bytes:
    """Return a value encoded, for a record of its own."""
    return kept if type(kept) is bytes else _CODEC.encode(kept)


def decoder(codec: Codec) -> Callable[[Kept], Any]:
    """Return what `value_of` does, sooner, for many values; what fails is for the caller to say."""
    decode, loads = codec.decode, pickle.loads
    quick = (PLAIN_PICKLE,) if isinstance(codec, WrappedCodec) and codec.is_plain else ()

    def value(kept: Kept) -> Any:
        if type(kept) is not bytes:
            return kept
        return loads(kept[1:]) if kept[:1] in quick else decode(kept)

    return value


def value_of(codec: Codec, kept: Kept, what: str) -> Any:
    """Return the value.

    Raises:
        ValueEncodingError: What its classes do when they are read fails.
    """
    return decode(codec, kept, what) if type(kept) is bytes else kept
