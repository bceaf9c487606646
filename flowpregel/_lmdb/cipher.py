"""Records encrypted with AES-GCM, each bound to its place.

::

    nonce (12), ciphertext, tag (16)

The record's place (its database and key) is authenticated with it, so that an
encrypted record holds nowhere else, whatever seals it.
"""

from __future__ import annotations

import os

from flowpregel.errors import ConfigurationError, StoreForeignError

_NONCE = 12


class Cipher:
    """Encrypts and decrypts the payloads of records.

    Args:
        key: 16, 24 or 32 bytes.

    Raises:
        ConfigurationError: The package that this needs is not installed.
    """

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import (  # noqa: PLC0415 - an extra
                AESGCM,
            )
        except ImportError as error:
            raise ConfigurationError(
                "encryption needs the package cryptography; install flowpregel[crypto]"
            ) from error
        self._cipher = AESGCM(key)

    def encrypt(self, place: bytes, payload: bytes | memoryview) -> bytes:
        """Return *payload* encrypted, for a record at *place*."""
        nonce = os.urandom(_NONCE)
        sealed: bytes = self._cipher.encrypt(nonce, payload, place)
        return nonce + sealed

    def decrypt(self, place: bytes, data: bytes) -> bytes:
        """Return what `encrypt` was given for a record at *place*.

        Raises:
            StoreForeignError: It was encrypted under another key, or for another place.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            opened: bytes = self._cipher.decrypt(data[:_NONCE], data[_NONCE:], place)
        except InvalidTag as error:
            raise StoreForeignError(
                "a record was encrypted under another encryption_key"
            ) from error
        return opened
