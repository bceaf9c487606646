"""The header of a store, and the keys for checksums and encryption of records."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from uuid import uuid4

from flowpregel.errors import (
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreReadOnlyError,
    StoreVersionError,
)
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.options import TRUST_VARIABLE, StoreOptions
from flowpregel.storage.records import HEADER, SIZE, Seal, purpose_digest

FORMAT = 1
KEY_VARIABLE = "FLOWPREGEL_STORE_KEY"
KEY_FILE_VARIABLE = "FLOWPREGEL_STORE_KEY_FILE"
_SUM_END = 32
_CHECKSUM_END = _SUM_END + SIZE


@dataclass(frozen=True, slots=True)
class Header:
    """The description of a store, which is stored in the store itself.

    Its record consists of a plain digest, a keyed checksum, and these fields as JSON.
    """

    id: str
    """The id of the store. A backup of the store has the same id."""
    created: int
    """The time at which the store was created, in wall-clock nanoseconds."""
    key: str
    """The name of the key with which the checksums of all records are made."""
    encryption: str | None
    """The name of the key under which all records are encrypted, or an empty string if
    no record is encrypted. None if the store has been used without a key so far, and
    later records may be encrypted.
    """
    format: int
    """The version of the format of stores."""
    engine: str
    """The name of the engine that wrote the store, and the version of its own format.
    """
    own_key: str | None = field(default=None, repr=False)
    """The key for the checksums of records, if the user gave no key."""

    @classmethod
    def new(
        cls,
        seal: Seal,
        engine: str,
    ) -> Header:
        """Return the header of a new store.

        Args:
            seal: The keys of the store, for checksums and encryption.
            engine: The name of the engine that writes the store, and the version of the
                engine's own format.
        """
        header = cls(
            id=uuid4().hex,
            created=time.time_ns(),
            key=seal.id,
            # Without a key, the field is None (not decided) and not "" (no record is
            # encrypted): the store may later be opened with a key, which encrypts only
            # its new records.
            encryption=seal.encryption or None,
            format=FORMAT,
            engine=engine,
        )
        return header.under(seal)

    def under(self, seal: Seal) -> Header:
        """Return the header that this store gets when its records are written again,
        with the keys of *seal*.
        """
        own_key = seal.key.decode() if seal.is_kept else None
        return replace(self, key=seal.id, own_key=own_key)

    def with_keys_of(self, seal: Seal) -> Header:
        """Return the header of the same store when the checksums of all its records are
        made with *seal*, and the records are encrypted only if *seal* has an encryption
        key.
        """
        return replace(self.under(seal), encryption=seal.encryption)

    def to_bytes(self, seal: Seal) -> bytes:
        """Return the record of this header, which `read` decodes.

        Args:
            seal: The keys of the store, for checksums and encryption.
        """
        text = json.dumps(asdict(self)).encode()
        return purpose_digest(text, b"sum") + seal.of(HEADER, text) + text

    @classmethod
    def read(
        cls,
        record: bytes,
        path: str,
        engines: Sequence[str],
    ) -> Header:
        """Return the header in *record*, which `to_bytes` returned.

        Args:
            record: The bytes that `to_bytes` returned.
            path: The location of the store, for messages.
            engines: The engine that opens the store, and its earlier names.

        Raises:
            StoreCorruptError: The header is damaged.
            StoreVersionError: Another release, or another engine, wrote the store.
        """
        text = record[_CHECKSUM_END:]
        if purpose_digest(text, b"sum") != record[:_SUM_END]:
            raise _damaged(path)
        fields = json.loads(text)
        if fields["format"] != FORMAT or fields["engine"] not in engines:
            raise StoreVersionError(
                f"{path} has format {fields['format']} (engine {fields['engine']}), "
                f"but this release reads format {FORMAT} (engine {engines[0]}); the "
                "store was not changed: use the release that wrote it"
            )
        return cls(**fields)

    def check(
        self,
        record: bytes,
        path: str,
        seal: Seal,
        *,
        readonly: bool,
        trusting: bool = False,
    ) -> None:
        """Refuse a store that must not be opened with the secret keys in *seal*.

        Args:
            record: The bytes that `to_bytes` returned.
            path: The location of the store, for messages.
            seal: The caller's keys, for checksums and encryption.
            readonly: True if nothing will be written. In this case the encryption key
                may be missing, because records that are not encrypted can still be
                read.
            trusting: True to accept a store whose checksums were made with another key.

        Raises:
            StoreCorruptError: The checksum of the header was not made with the key that
                the header names.
            StoreForeignError: The store's checksums or its encryption use another
                secret key.
            StoreReadOnlyError: A store that is accepted because of *trusting* gets new
                checksums, but *readonly* forbids writing them.
        """
        if self.key == seal.id:
            text = record[_CHECKSUM_END:]
            if seal.of(HEADER, text) != record[_SUM_END:_CHECKSUM_END]:
                raise _damaged(path)
        elif not trusting:
            raise self._foreign(path, seal)
        elif readonly:
            raise StoreReadOnlyError(
                f"{path} is sealed under another key, and cannot be sealed again "
                "because it is read only; open it for writing once"
            )
        self._check_encryption(path, seal, readonly=readonly)

    def _check_encryption(
        self,
        path: str,
        seal: Seal,
        *,
        readonly: bool,
    ) -> None:
        only_reads = readonly and seal.cipher is None
        if self.encryption not in (None, seal.encryption) and not only_reads:
            raise StoreForeignError(
                f"{path} is encrypted under {self.encryption or 'no key'}, but the "
                f"encryption_key that you passed is {seal.encryption or 'none'}: pass "
                "the store's key to StoreOptions, or encrypt the whole store again "
                "with change_keys"
            )

    def _foreign(
        self,
        path: str,
        seal: Seal,
    ) -> StoreForeignError:
        ours = "none was given" if seal.is_kept else f"yours is {seal.id}"
        cure = f"Set {KEY_VARIABLE} to the key of the store"
        if self.own_key is not None:
            cure = f"The store contains its own key: unset {KEY_VARIABLE} to use it"
        return StoreForeignError(
            f"{path} is sealed under another key ({self.key}; {ours}); nothing was "
            f"decoded. {cure}; or, if you trust its origin, pass "
            f"StoreOptions(trust=...) or --trust, or set {TRUST_VARIABLE}=1"
        )


def _damaged(path: str) -> StoreCorruptError:
    return StoreCorruptError(f"the header of {path} is damaged; restore a backup")


def seal_for(options: StoreOptions, header: Header | None = None) -> Seal:
    """Return the keys of a store: for checksums the user's key or else the store's own
    key, and for encryption the key in *options*.

    Args:
        options: The options, which may give the user's key. The environment variables
            ``FLOWPREGEL_STORE_KEY`` and ``FLOWPREGEL_STORE_KEY_FILE`` may give it too.
        header: The header of the store, or None if the store does not exist yet.

    Raises:
        StoreError: The user's key is blank, or its file cannot be read.

    Example:
        >>> from flowpregel.storage import Header, StoreOptions
        >>> options = StoreOptions()
        >>> seal = seal_for(options)  # the store does not exist yet, so the key is new
        >>> header = Header.new(seal, engine="my-engine 1")
        >>> seal_for(options, header).key == seal.key
        True
    """
    key = options.trust if isinstance(options.trust, bytes) else _users_key()
    if key is not None:
        return Seal(key, options.encryption_key)
    own_key = header.own_key if header is not None else None
    if not own_key:
        own_key = secrets.token_hex(32)
    return Seal(own_key.encode(), options.encryption_key, is_kept=True)


def _users_key() -> bytes | None:
    """Return the key that an environment variable gives, or None."""
    source = KEY_VARIABLE
    value = os.environ.get(KEY_VARIABLE, "")
    key = value.encode("utf-8", "surrogateescape")
    if not key:
        file = os.environ.get(KEY_FILE_VARIABLE)
        if not file:
            return None
        source = file
        with translate_os_errors(file), open(file, "rb") as opened:
            key = opened.read().strip()
    if not key.strip():  # A blank key is refused, because anyone could guess it.
        raise StoreError(
            f"{source} contains no key; put the key back, or unset the variable"
        )
    return key
