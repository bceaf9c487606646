"""Sealed records, each with a keyed checksum, and encrypted if the user wants it.

::

    checksum (16), 0, payload
    checksum (16), 1, bytes (8)      the head of a large payload in chunks
    checksum (16), 2, n-th chunk

The byte after the checksum is the record's kind. 16 is added to the kind of an
encrypted record.

The checksum also covers the name of the table and the key. So a record that was moved
to another key is refused, and so is a record of another store. Values are pickles,
which run code when they are decoded. So no part of a record is decoded before its
checksum has been verified.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b

from flowpregel.errors import StoreCorruptError, StoreForeignError
from flowpregel.storage.errors import extra_module

TABLE_NAMES = (
    b"meta",
    b"threads",
    b"checkpoints",
    b"values",
    b"deltas",
    b"writes",
    b"store",
    b"cache",
)
"""The names of the tables of a store."""
HEADER = b"header"
"""The key of the header in ``meta``."""
SIZE = 16
"""The number of bytes of a checksum."""
KIND_END = SIZE + 1
"""The position in a record at which its payload begins."""
WHOLE = 0
"""The kind of a record whose payload is complete, not split into chunks."""
NOT_ENCRYPTED = ""
"""The string that a header has instead of a key's name if no record is encrypted."""
_ENCRYPTED = 16
_NONCE = 12
_CIPHERS = "cryptography.hazmat.primitives.ciphers.aead"


class Seal:
    """The keys of one store, for checksums and optional encryption.

    Args:
        key: The secret key for checksums, of any length.
        encryption_key: A key of 16, 24 or 32 bytes, or None to encrypt no records.
        is_kept: True if the header of the store contains *key* itself.

    Raises:
        ConfigurationError: The extra that encryption needs is not installed.

    Example:
        >>> seal = Seal(b"a secret key")
        >>> checksum = seal.of(b"values" + b"key-1", b"content")
        >>> checksum == seal.of(b"values" + b"key-2", b"content")
        False
    """

    def __init__(
        self,
        key: bytes,
        encryption_key: bytes | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        base_key = purpose_digest(key, b"seal")
        self._base = blake2b(key=base_key, digest_size=SIZE)
        self.key = key
        self.is_kept = is_kept
        self.id: str = _name_of_key(key)
        """The name of the key, from which the key cannot be computed."""
        self.cipher: None = None
        self.encryption: str = NOT_ENCRYPTED
        """The name of the key under which records are encrypted, or `NOT_ENCRYPTED`."""
        if encryption_key is not None:
            ciphers = extra_module(_CIPHERS, "encryption", "crypto")
            self.cipher = ciphers.AESGCM(encryption_key)
            self.encryption = _name_of_key(encryption_key)

    def changed(
        self,
        encryption_key: bytes | None,
        key: bytes | None = None,
    ) -> Seal:
        """Return the new keys of a store whose keys are changed.

        Args:
            encryption_key: The key with which to encrypt all records, or None to
                encrypt none.
            key: The secret key for checksums, or None to keep the present one.

        Raises:
            ConfigurationError: A key is empty or has the wrong length, or the extra
                that encryption needs is not installed.
        """
        # The import is inside the method, because a worker imports this module and
        # needs no options of stores.
        from flowpregel.storage.options import StoreOptions  # noqa: PLC0415

        # The options are constructed only because their constructor checks both keys.
        StoreOptions(encryption_key=encryption_key, trust=key)
        is_kept = key is None and self.is_kept
        return Seal(key or self.key, encryption_key, is_kept=is_kept)

    def of(
        self,
        position: bytes,
        content: bytes | memoryview,
    ) -> bytes:
        """Return the checksum of a record.

        Args:
            position: The name of the record's table, followed by the record's key.
            content: All bytes of the record that follow the checksum.
        """
        checksum = self._base.copy()
        checksum.update(b"%d:%b" % (len(position), position))
        checksum.update(content)
        return checksum.digest()


class SealedRecords:
    """The records of one table: their checksums, and their encryption if there is any.

    Args:
        name: The name of the table.
        path: The location of the store, for messages.
        seal: The keys of the store, for checksums and encryption.

    Example:
        >>> from flowpregel.storage import Seal
        >>> records = SealedRecords(b"values", "runs.db", Seal(b"a secret key"))
        >>> record = records.sealed(b"key-1", 0, b"payload")
        >>> records.opened(b"key-1", record)
        (0, b'payload')
        >>> records.opened(b"key-2", record)
        Traceback (most recent call last):
        flowpregel.errors.StoreCorruptError: ...
    """

    def __init__(
        self,
        name: bytes,
        path: str,
        seal: Seal,
    ) -> None:
        self.name = name
        self._path = path
        self.seal = seal
        """The keys for the checksums and the encryption of the records."""

    def sealed(
        self,
        key: bytes,
        kind: int,
        payload: bytes | memoryview,
    ) -> bytes:
        """Return *payload* as a record at *key*: with a checksum, and perhaps
        encrypted.

        Args:
            key: The key of the record.
            kind: The kind of the record, such as 0 for a whole payload.
            payload: The bytes to store.
        """
        position = self.name + key
        cipher = self.seal.cipher
        if cipher is not None:
            nonce = os.urandom(_NONCE)
            kind |= _ENCRYPTED
            payload = nonce + cipher.encrypt(nonce, payload, position)
        content = bytes((kind,)) + payload
        return self.seal.of(position, content) + content

    def opened(
        self,
        key: bytes,
        record: bytes,
    ) -> tuple[int, bytes]:
        """Verify the *record* at *key*, and return its kind and its decrypted payload.

        Raises:
            StoreCorruptError: The checksum does not match the record and its key.
            StoreForeignError: The record is encrypted under another key.
        """
        position = self.name + key
        checksum = self.seal.of(position, memoryview(record)[SIZE:])
        if len(record) < KIND_END or record[:SIZE] != checksum:
            raise self.corrupt(key, "is damaged, or was written elsewhere")
        kind = record[SIZE]
        payload = record[KIND_END:]
        if not kind & _ENCRYPTED:
            return kind, payload
        return kind & ~_ENCRYPTED, self._decrypted(key, payload)

    def resealed(
        self,
        key: bytes,
        record: bytes,
        source: SealedRecords | None,
    ) -> bytes:
        """Return a record of a store whose keys are exchanged: encrypted, and with a
        checksum, by the keys of this table, in place of those that it was stored with.

        Args:
            key: The key under which the record is stored, which stays the same.
            record: The stored record.
            source: The same table with the old encryption and checksum keys. If they
                are unknown (None), the record is neither checked nor decrypted.

        Raises:
            StoreCorruptError: The record is damaged.
            StoreForeignError: *source* has another encryption key than the record.
        """
        if source is None:
            content = record[SIZE:]
            return self.seal.of(self.name + key, content) + content
        kind, payload = source.opened(key, record)
        return self.sealed(key, kind, payload)

    def _decrypted(
        self,
        key: bytes,
        payload: bytes,
    ) -> bytes:
        if self.seal.cipher is None:
            raise StoreForeignError(
                f"{self._path} is encrypted; pass its key as "
                "StoreOptions(encryption_key=...)"
            )
        nonce = payload[:_NONCE]
        ciphertext = payload[_NONCE:]
        try:
            decrypted: bytes = self.seal.cipher.decrypt(
                nonce, ciphertext, self.name + key
            )
        except Exception as error:
            # This error is `InvalidTag`, which means that the key is wrong. Its class
            # cannot be named here, because its package is installed only with an extra.
            raise StoreForeignError(
                f"record {key.hex()} of {self._path} is encrypted under another "
                "encryption_key"
            ) from error
        return decrypted

    def corrupt(
        self,
        key: bytes,
        problem: str,
    ) -> StoreCorruptError:
        """Return the error that reports a *problem* with the record at *key*."""
        return StoreCorruptError(
            f"record {key.hex()} in {self.name.decode()} of {self._path} {problem}; "
            "restore a backup, or run verify() to see what else is damaged"
        )


def after(prefix: bytes) -> bytes:
    """Return the smallest key greater than all keys that begin with *prefix*.

    Example:
        >>> after(b"users/")
        b'users0'
    """
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return b"\xff" * 500
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def purpose_digest(data: bytes, purpose: bytes) -> bytes:
    """Return a digest (32 bytes) of *data*, which differs for each *purpose*."""
    person = b"flowpregel" + purpose
    return blake2b(data, digest_size=32, person=person).digest()


def labels_digest(labels: Sequence[str]) -> bytes:
    """Return a digest (16 bytes) of *labels*, which may be any strings.

    Example:
        >>> labels_digest(["ab", "c"]) == labels_digest(["a", "bc"])
        False
    """
    digest = blake2b(digest_size=16)
    for label in labels:
        data = label.encode("utf-8", "surrogatepass")
        # The length of each label comes first, so that no two lists of labels give the
        # same bytes.
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _name_of_key(key: bytes) -> str:
    return purpose_digest(key, b"name")[:8].hex()
