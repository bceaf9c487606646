"""A keyed checksum on every record: what is damaged, moved or foreign is refused.

The checksum covers the record's place (its database and key) too, so that a
record moved to another place does not hold there. Values are pickles: nothing
of a record is decoded before its checksum holds.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from copy import copy
from hashlib import blake2b
from typing import Any

from flowpregel._lmdb import folder
from flowpregel._lmdb.cipher import Cipher
from flowpregel.errors import StoreCorruptError, StoreForeignError, StoreVersionError

SIZE = 16
FORMAT = 4
OLDEST = 2
"""The oldest format that this release reads; it writes `FORMAT`."""
HEADER = b"header"
NONE = ""
"""Says in a header that no record is encrypted."""
_ENGINE = [0, 9]
KEY_VARIABLE = "FLOWPREGEL_STORE_KEY"


class Seal:
    """Makes and checks the checksums of one store, and encrypts if there is a key for that.

    Args:
        key: The secret; any length.
        encryption_key: 16, 24 or 32 bytes; None: records are not encrypted.

    Raises:
        ConfigurationError: The extra that encryption needs is not installed.
    """

    def __init__(self, key: bytes, encryption_key: bytes | None = None) -> None:
        self._base = blake2b(key=_digest(key, b"seal"), digest_size=SIZE)
        self.id = _id(key)
        """Names the key without telling it."""
        self._encrypt_with(encryption_key)

    def _encrypt_with(self, key: bytes | None) -> None:
        self.cipher = None if key is None else Cipher(key)
        self.encryption = NONE if key is None else _id(key)
        """Names the key that records are encrypted under, or says that they are not."""
        self.kind = self.id, self.encryption
        """Equal for seals that make and read the same records."""

    def with_encryption(self, key: bytes | None) -> Seal:
        """Return a seal of the same checksums that encrypts under *key*, if it is one."""
        other = copy(self)
        other._encrypt_with(key)  # noqa: SLF001 - its own class
        return other

    def of(self, place: bytes, *parts: bytes | memoryview) -> bytes:
        """Return the checksum of a record made of *parts* at *place*."""
        summed = self._base.copy()
        summed.update(b"%d:%b" % (len(place), place))
        for part in parts:
            summed.update(part)
        return summed.digest()

    def begun(self, start: bytes, size: int) -> Any:
        """Return the hash of what `of` sums first, for places of *size* that begin with *start*.

        The rest of the place and the record are left to be added, to a copy: sooner done
        for small records.
        """
        summed = self._base.copy()
        summed.update(b"%d:%b" % (size, start))
        return summed


def store_key() -> bytes:
    """Return this user's key: ``FLOWPREGEL_STORE_KEY``, or the key file, made if need be.

    The file is ``flowpregel/store.key`` in the user's config folder, mode 0600.

    Raises:
        StoreError: The file cannot be read or made.
    """
    given = os.environ.get(KEY_VARIABLE)
    if given:
        return given.encode("utf-8", "surrogateescape")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(config, "flowpregel", "store.key")
    try:
        return _read_key(path) or _make_key(path)
    except OSError as error:
        raise folder.named(error, path) from error


def _read_key(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077 and status.st_uid == os.geteuid():
                os.chmod(path, 0o600)
            return file.read().strip()
    except FileNotFoundError:
        return b""


def _make_key(path: str) -> bytes:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    draft = f"{path}.{secrets.token_hex(4)}.new"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, secrets.token_hex(32).encode() + b"\n")
        os.fsync(handle)
        # Of two processes that make the key at once, one wins and both use its key.
        if not os.path.exists(path):
            with suppress(FileExistsError):
                os.link(draft, path)
    finally:
        os.close(handle)
        os.unlink(draft)
    folder.sync(os.path.dirname(path))
    return _read_key(path)


# ---------------------------------------------------------------- the header


def new_header(seal: Seal) -> bytes:
    """Return the header record of a store that begins now."""
    # Where records are not encrypted from the first one on, later ones may be.
    return header_of(seal, time.time_ns(), seal.encryption or None)


def header_of(seal: Seal, created: int, encryption: str | None) -> bytes:
    """Return the header record of a store that was *created* some time ago.

    Args:
        seal: The store's.
        created: Wall-clock nanoseconds.
        encryption: The key that all records are encrypted under, or `NONE`, as a
            `Seal` names it; None: each is as it is.
    """
    fields = {"format": FORMAT, "engine": _ENGINE, "key": seal.id, "created": created}
    if encryption is not None:
        fields["encryption"] = encryption
    text = json.dumps(fields).encode()
    return _digest(text, b"sum") + seal.of(HEADER, text) + text


def read_header(record: bytes, path: str) -> dict[str, Any]:
    """Return the fields of a store's header, whatever key it is sealed under.

    Raises:
        StoreCorruptError: The header is damaged.
        StoreVersionError: A newer release wrote the store.
    """
    if not record:
        raise StoreCorruptError(f"{path} has no header; restore a backup")
    total, text = record[:32], record[32 + SIZE :]
    if _digest(text, b"sum") != total:
        raise StoreCorruptError(f"the header of {path} is damaged; restore a backup")
    fields: dict[str, Any] = json.loads(text)
    if not OLDEST <= int(fields["format"]) <= FORMAT or fields["engine"] != _ENGINE:
        raise StoreVersionError(
            f"{path} has format {fields['format']} (engine {fields['engine']}), and this release "
            f"reads formats {OLDEST} to {FORMAT} (engine {_ENGINE}); it was not touched: "
            "use the release that wrote it, or a newer one"
        )
    return fields


def check_seal(record: bytes, fields: dict[str, Any], seal: Seal, path: str) -> None:
    """Refuse a store that is sealed under another key.

    Raises:
        StoreForeignError: It is.
        StoreCorruptError: The header was not made with the key it names.
    """
    if fields["key"] != seal.id:
        raise StoreForeignError(
            f"{path} was sealed under another key ({fields['key']}; ours is {seal.id}); nothing "
            f"of it was decoded. Set {KEY_VARIABLE} to the key it was made with, or pass "
            "StoreOptions(trust=...) if you trust whoever wrote it"
        )
    if seal.of(HEADER, record[32 + SIZE :]) != record[32 : 32 + SIZE]:
        raise StoreCorruptError(f"the header of {path} is damaged; restore a backup")


def check_encryption(fields: dict[str, Any], seal: Seal, path: str, *, readonly: bool) -> None:
    """Refuse to write to a store whose records are encrypted otherwise.

    Raises:
        StoreForeignError: Its header names another key, or says that there is none.
    """
    named = fields.get("encryption", seal.encryption)
    if named == seal.encryption or (readonly and seal.cipher is None):
        return
    if seal.cipher is None:
        raise StoreForeignError(
            f"{path} is encrypted; pass its key as StoreOptions(encryption_key=...)"
        )
    if named == NONE:
        raise StoreForeignError(
            f"{path} is not encrypted any more; leave out the encryption_key, or encrypt all "
            "of it again with LMDBSaver.change_keys"
        )
    raise StoreForeignError(
        f"{path} is encrypted under another encryption_key ({named}; ours is {seal.encryption})"
    )


def is_current(fields: dict[str, Any]) -> bool:
    """Return whether a header says that this release may write to the store."""
    return bool(fields["format"] == FORMAT)


def _id(key: bytes) -> str:
    return _digest(key, b"name")[:8].hex()


def _digest(data: bytes, purpose: bytes) -> bytes:
    return blake2b(data, digest_size=32, person=b"flowpregel" + purpose).digest()
