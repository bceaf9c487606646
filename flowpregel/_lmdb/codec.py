"""Values as bytes and back, exactly: what comes back is equal and of the same types.

The first byte of an encoded value is its format: another one can be added, and
those written stay readable. Plain text, bytes, None and small ints are kept as
they are; everything else is a pickle. Classes and functions are kept by
reference, those of ``__main__`` too (`mainmodule`); what has no name to refer to
(lambdas, closures, local classes) is kept by value, with cloudpickle.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from flowpregel._lmdb import culprit, mainmodule, pickling
from flowpregel.errors import StoreError, StoreVersionError, ValueEncodingError

_NONE, _TEXT, _BYTES, _INT = b"n", b"t", b"b", b"i"
_PICKLE, _PICKLE_MAIN, _BUFFERS = b"p", b"m", b"o"
PLAIN_PICKLE = b"k"
"""What a value begins with that is a pickle of plain data alone."""
_WORD = struct.Struct(">q")
_MAIN_SIZE = struct.Struct(">H")
_PROTOCOL = 5
_SMALL = 4096
"""Bytes: copying less is sooner done than making a view of it."""
_NAMES_A_CLASS = b"\x93"
_HEAD = 11
"""Bytes: what a pickle of one frame begins with, its protocol and its length."""
_FRAME = 0x95
_ONE_FRAME = 60_000
"""Bytes: a pickle that is smaller has one frame; the pickler begins another after 64 KiB."""


class Codec(Protocol):
    """Turns values into bytes and back; a saver can be given another one."""

    def encode(self, value: Any) -> bytes:
        """Return *value* as bytes; raise anything if it cannot be."""

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded."""


class PythonCodec:
    """The codec for any Python value.

    Example:
        >>> codec = PythonCodec()
        >>> codec.decode(codec.encode({"a": (1, {2})}))
        {'a': (1, {2})}
    """

    def encode(self, value: Any) -> bytes:
        """Return *value* as bytes."""
        plain = _ENCODERS.get(type(value))
        if plain is not None:
            return plain(value)
        return _encode_object(value)

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded.

        *data* must come from someone who may run code here: a record whose
        keyed checksum held.
        """
        decoder = _DECODERS.get(data[:1])
        if decoder is None:
            raise StoreVersionError(
                f"a value has the format {data[:1]!r}, which this release does not know; "
                "read it with the release that wrote it"
            )
        return decoder(data)


def encode(codec: Codec, value: Any, what: str) -> bytes:
    """Return *value* as bytes.

    Args:
        codec: Encodes it.
        value: Anything.
        what: What the value is, for the message: its channel and its task.

    Raises:
        ValueEncodingError: It cannot be kept; the message says where in it.
    """
    try:
        return codec.encode(value)
    except Exception as error:
        place = culprit.find(value, codec.encode)
        raise ValueEncodingError(
            f"{what} cannot be kept: value{place or ''} is {culprit.describe(value, place)} "
            f"({type(error).__name__}: {error}); keep what it is made from instead"
        ) from error


def decode(codec: Codec, data: bytes, what: str) -> Any:
    """Return the value that *data* was made from.

    Raises:
        ValueEncodingError: What its classes do when they are read fails.
    """
    try:
        return codec.decode(data)
    except StoreError:
        raise
    except Exception as error:
        raise _unreadable(what, error) from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate errors as `decode` does, for many values at once."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise _unreadable(what, error) from error


def _unreadable(what: str, error: Exception) -> ValueEncodingError:
    return ValueEncodingError(
        f"{what} was kept but cannot be read back: {type(error).__name__}: {error}; its "
        "class must be importable under the name it had"
    )


def _encode_int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return _INT + _WORD.pack(value)
    return _PICKLE + pickle.dumps(value, _PROTOCOL)


def _encode_container(value: Any) -> bytes:
    """Encode what is likely to be plain data, with the C pickler alone."""
    try:
        data = pickle.dumps(value, _PROTOCOL, buffer_callback=_refuse)
    except Exception:  # noqa: BLE001 - a class may raise anything while it is pickled
        return _encode_object(value)
    # Without this opcode the pickle names no class: all in it is of a built-in plain type.
    return _encode_object(value) if _NAMES_A_CLASS in data else PLAIN_PICKLE + headless(data)


def headless(pickled: bytes) -> bytes:
    """Return a pickle that names no class without its head, which reading it does not need."""
    return pickled[_HEAD:] if pickled[2] == _FRAME and len(pickled) < _ONE_FRAME else pickled


def _refuse(_: pickle.PickleBuffer) -> bool:
    raise ValueError("a buffer: not plain data")


def _encode_object(value: Any) -> bytes:
    buffers: list[pickle.PickleBuffer] = []
    data = pickling.dumps(value, buffers)
    if b"__main__" in data:
        where = mainmodule.describe()
        data = b"".join((_PICKLE_MAIN, _MAIN_SIZE.pack(len(where)), where, data))
    else:
        data = _PICKLE + data
    return data if not buffers else _with_buffers(data, buffers)


def _with_buffers(data: bytes, buffers: list[pickle.PickleBuffer]) -> bytes:
    """Return a pickle with the buffers that it left outside, copied once."""
    views = [buffer.raw() for buffer in buffers]
    sizes = [(view.nbytes << 1) | view.readonly for view in views]
    head = struct.pack(f">BIQ{len(sizes)}Q", _BUFFERS[0], len(sizes), len(data), *sizes)
    return b"".join((head, data, *views))


def _decode_buffers(record: bytes) -> Any:
    count, size = struct.unpack_from(">IQ", record, 1)
    sizes = struct.unpack_from(f">{count}Q", record, 13)
    view = memoryview(record)
    at = 13 + 8 * count
    data = bytes(view[at : at + size])
    at += size
    buffers = []
    for packed in sizes:
        part = view[at : at + (packed >> 1)]
        # A writable array must come back writable, so it gets memory of its own.
        buffers.append(part if packed & 1 else bytearray(part))
        at += packed >> 1
    return _DECODERS[data[:1]](data, buffers)


def _decode_pickle(data: bytes, buffers: list[Any] | None = None) -> Any:
    if buffers is None and len(data) < _SMALL:
        return pickle.loads(data[1:])
    return pickle.loads(memoryview(data)[1:], buffers=buffers)


def _decode_main(data: bytes, buffers: list[Any] | None = None) -> Any:
    (size,) = _MAIN_SIZE.unpack_from(data, 1)
    return mainmodule.loads(data[3 + size :], data[3 : 3 + size], buffers)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: _NONE,
    str: lambda value: _TEXT + value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: _BYTES + value,
    int: _encode_int,
    dict: _encode_container,
    list: _encode_container,
    tuple: _encode_container,
}
_DECODERS: dict[bytes, Callable[..., Any]] = {
    _NONE: lambda _: None,
    _TEXT: lambda data: data[1:].decode("utf-8", "surrogatepass"),
    _BYTES: lambda data: data[1:],
    _INT: lambda data: _WORD.unpack_from(data, 1)[0],
    _PICKLE: _decode_pickle,
    PLAIN_PICKLE: _decode_pickle,
    _PICKLE_MAIN: _decode_main,
    _BUFFERS: _decode_buffers,
}
