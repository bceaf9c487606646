"""Encoded values compressed and encrypted, where the store's options say so.

The first byte tells what was done, whatever the options are when it is read::

    z, size (8), frame       compressed with zstd
    x, nonce (12), sealed    encrypted with AES-GCM
    c, data                  made by a codec of the user's

An encrypted value is bound to its record's key by the record's own checksum,
which covers both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flowpregel._lmdb.codec import Codec, PythonCodec
from flowpregel._lmdb.options import StoreOptions
from flowpregel.errors import ConfigurationError, StoreCorruptError, StoreForeignError

_ZSTD, _AES, _CUSTOM = b"z", b"x", b"c"
_WRAPPINGS = frozenset((_ZSTD, _AES, _CUSTOM))
_NONCE = 12
_SMALLEST = 256
"""Less is not worth the time to compress it."""


class WrappedCodec:
    """A codec with compression and encryption around it.

    Args:
        inner: What values are encoded with; None is `PythonCodec`.
        options: Whether to compress, and the key to encrypt with.

    Raises:
        ConfigurationError: An extra that this needs is not installed.
    """

    encode: Callable[[Any], bytes]
    """Return a value as bytes."""

    def __init__(self, inner: Codec | None, options: StoreOptions) -> None:
        self._inner: Codec = inner or PythonCodec()
        self._cipher = None if options.encryption_key is None else _cipher(options.encryption_key)
        self._compress = _compressor() if options.compression else None
        plain = inner is None and self._cipher is None and self._compress is None
        self._is_custom = inner is not None
        # The usual case costs no further call.
        self.encode = self._inner.encode if plain else self._encode

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded."""
        if data[:1] not in _WRAPPINGS:
            return self._inner.decode(data)
        if data[:1] == _AES:
            if self._cipher is None:
                raise StoreForeignError(
                    "a value is encrypted; pass the key as StoreOptions(encryption_key=...)"
                )
            data = _decrypted(self._cipher, data)
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
        if self._cipher is not None:
            nonce = os.urandom(_NONCE)
            data = _AES + nonce + self._cipher.encrypt(nonce, data, None)
        return data


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import (  # noqa: PLC0415 - an extra
            AESGCM,
        )
    except ImportError as error:
        raise ConfigurationError(
            "encryption needs the package cryptography; install flowpregel[crypto]"
        ) from error
    return AESGCM(key)


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


def _decrypted(cipher: Any, data: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

    try:
        opened: bytes = cipher.decrypt(data[1 : 1 + _NONCE], data[1 + _NONCE :], None)
    except InvalidTag as error:
        raise StoreForeignError("a value was encrypted under another encryption_key") from error
    return opened


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
