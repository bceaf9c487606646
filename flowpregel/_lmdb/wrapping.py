"""Encoded values compressed, where the store's options say so.

The first byte tells what was done, whatever the options are when it is read::

    z, size (8), frame       compressed with zstd
    c, data                  made by a codec of the user's
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowpregel._lmdb.codec import Codec, PythonCodec
from flowpregel._lmdb.options import StoreOptions
from flowpregel.errors import ConfigurationError, StoreCorruptError

_ZSTD, _CUSTOM = b"z", b"c"
_WRAPPINGS = frozenset((_ZSTD, _CUSTOM))
_SMALLEST = 256
"""Less is not worth the time to compress it."""


class WrappedCodec:
    """A codec with compression around it.

    Args:
        inner: What values are encoded with; None is `PythonCodec`.
        options: Whether to compress.

    Raises:
        ConfigurationError: An extra that this needs is not installed.
    """

    encode: Callable[[Any], bytes]
    """Return a value as bytes."""
    is_plain: bool
    """Whether values are encoded as `PythonCodec` does, and nothing else is done to them."""

    def __init__(self, inner: Codec | None, options: StoreOptions) -> None:
        self._inner: Codec = inner or PythonCodec()
        self._compress = _compressor() if options.compression else None
        self.is_plain = inner is None and self._compress is None
        self._is_custom = inner is not None
        # The usual case costs no further call.
        self.encode = self._inner.encode if self.is_plain else self._encode

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded."""
        if data[:1] not in _WRAPPINGS:
            return self._inner.decode(data)
        if data[:1] == _ZSTD:
            data = _decompressed(data)
        return self._inner.decode(data[1:] if data[:1] == _CUSTOM else data)

    def _encode(self, value: Any) -> bytes:
        data = self._inner.encode(value)
        if self._is_custom:
            data = _CUSTOM + data
        if self._compress is not None and len(data) >= _SMALLEST:
            packed = _ZSTD + len(data).to_bytes(8, "big") + self._compress(data)
            data = min(data, packed, key=len)
        return data


def _compressor() -> Callable[[bytes], bytes]:
    zstandard = _zstandard()
    # One for each value: a compressor must not be used by two OS threads at once.
    return lambda data: zstandard.ZstdCompressor(level=3).compress(data)


def _zstandard() -> Any:
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "compression needs the package zstandard; install flowpregel[zstd]"
        ) from error
    return zstandard


def _decompressed(data: bytes) -> bytes:
    """Return what was compressed, after its size was seen to be what was written.

    A frame of 50 kB can say that it becomes gigabytes.
    """
    zstandard = _zstandard()
    size = int.from_bytes(data[1:9], "big")
    frame = data[9:]
    if zstandard.frame_content_size(frame) != size:
        raise StoreCorruptError("a compressed value has not the size it was written with")
    opened: bytes = zstandard.ZstdDecompressor().decompress(frame)
    return opened
