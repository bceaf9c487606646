"""Values as bytes and back, exactly: what comes back is equal and of the same types.

The first byte of an encoded value is its format: a pickle (see `pickling`), or::

    z, size (8), frame       compressed with zstd
    c, data                  made by a codec of the user's
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from flowpregel._lmdb.pickling import PythonCodec
from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    ValueEncodingError,
)

_ZSTD, _CUSTOM = b"z", b"c"
_SMALLEST = 256
"""Bytes: less is not worth the time to compress it."""
_DEEPEST, _MOST = 20, 10_000
"""How far the part of a value is searched for that cannot be kept."""


class Codec(Protocol):
    """Turns values into bytes and back; a saver can be given another one."""

    def encode(self, value: Any) -> bytes:
        """Return *value* as bytes; raise anything if it cannot be."""

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded."""


class ValueCodec:
    """What a store encodes its values with: a codec, and compression around it.

    Compressed values are read whatever the option is.

    Args:
        inner: What values are encoded with; None is `PythonCodec`.
        compression: Whether to compress what gets smaller by it.

    Raises:
        ConfigurationError: An extra that this needs is not installed.
    """

    def __init__(self, inner: Codec | None, compression: bool = False) -> None:
        self._inner: Codec = inner or PythonCodec()
        self._mark = b"" if inner is None else _CUSTOM
        self._zstandard = _zstandard() if compression else None

    def encode(self, value: Any, what: str) -> bytes:
        """Return *value* as bytes.

        Args:
            value: Anything.
            what: What the value is, for the message: its channel and its task.

        Raises:
            ValueEncodingError: It cannot be kept; the message says where in it.
        """
        try:
            data = self._mark + self._inner.encode(value)
        except Exception as error:
            place, kind = find_culprit(value, self._inner.encode)
            raise ValueEncodingError(
                f"{what} cannot be kept: value{place} is a {kind} "
                f"({type(error).__name__}: {error}); keep what it is made from instead"
            ) from error
        if self._zstandard is None or len(data) < _SMALLEST:
            return data
        # One for each value: a compressor must not be used by two OS threads at once.
        frame: bytes = self._zstandard.ZstdCompressor(level=3).compress(data)
        return min(data, _ZSTD + len(data).to_bytes(8, "big") + frame, key=len)

    def decode(self, data: bytes, what: str) -> Any:
        """Return the value that *data* was made from.

        Raises:
            ValueEncodingError: What its classes do when they are read fails.
        """
        try:
            if data[:1] == _ZSTD:
                data = _decompressed(data)
            return self._inner.decode(data[1:] if data[:1] == _CUSTOM else data)
        except StoreError:
            raise
        except Exception as error:
            raise ValueEncodingError(
                f"{what} was kept but cannot be read back: {type(error).__name__}: {error}; its "
                "class must be importable under the name it had"
            ) from error


def find_culprit(value: Any, encode: Callable[[Any], object]) -> tuple[str, str]:
    """Return the path to the innermost part of *value* that *encode* refuses, and its class.

    The path is empty where *value* is refused though each of its parts is not.

    Example:
        >>> import pickle, threading
        >>> find_culprit({"a": [1, threading.Lock()]}, pickle.dumps)
        ("['a'][1]", '_thread.lock')
    """
    path = ""
    for _ in range(_DEEPEST):
        for number, (step, part) in enumerate(_parts(value)):
            if number < _MOST and _is_refused(part, encode):
                path, value = path + step, part
                break
        else:
            break
    kind = type(value)
    return path, f"{kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def _is_refused(part: Any, encode: Callable[[Any], object]) -> bool:
    try:
        encode(part)
    except Exception:  # noqa: BLE001 - a class may raise anything while it is pickled
        return True
    return False


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"[{key!r}]", part
            yield f".key({key!r})", key
    elif isinstance(value, list | tuple | set | frozenset):
        for number, part in enumerate(value):
            yield f"[{number}]", part
    if isinstance(value, BaseException):
        for number, part in enumerate(value.args):
            yield f".args[{number}]", part
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _zstandard() -> Any:
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "compression needs the package zstandard; install flowpregel[zstd]"
        ) from error
    return zstandard


def _decompressed(data: bytes) -> bytes:
    """Return what was compressed, after checking that its size is what was written.

    A frame of 50 kB can say that it becomes gigabytes.
    """
    zstandard = _zstandard()
    size, frame = int.from_bytes(data[1:9], "big"), data[9:]
    if zstandard.frame_content_size(frame) != size:
        raise StoreCorruptError("a compressed value has not the size it was written with")
    opened: bytes = zstandard.ZstdDecompressor().decompress(frame)
    return opened
