"""The header of a store, and the key that seals its records."""

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
from flowpregel.storage.errors import named
from flowpregel.storage.options import TRUST_VARIABLE, StoreOptions
from flowpregel.storage.records import HEADER, SIZE, Seal, purpose_digest

FORMAT = 1
KEY_VARIABLE = "FLOWPREGEL_STORE_KEY"
KEY_FILE_VARIABLE = "FLOWPREGEL_STORE_KEY_FILE"
_SUM_END = 32
_CHECKSUM_END = _SUM_END + SIZE


@dataclass(frozen=True, slots=True)
class Header:
    """The description of a store that the store itself holds.

    Its record is a plain digest, a keyed checksum, and these fields as JSON.
    """

    id: str
    """The id of the store; a backup keeps it."""
    created: int
    """Wall-clock nanoseconds."""
    key: str
    """The name of the key that all records are sealed under."""
    encryption: str | None
    """The name of the key that all records are encrypted under, `NOT_ENCRYPTED` if none
    is; None: some may be.
    """
    format: int
    engine: str
    """The name of the engine that wrote the store, and the version of its own format.
    """
    own_key: str | None = field(default=None, repr=False)
    """The key itself, of a store for which the user gave none."""

    @classmethod
    def new(
        cls,
        seal: Seal,
        engine: str,
    ) -> Header:
        """Return the header of a store that begins now."""
        header = cls(
            id=uuid4().hex,
            created=time.time_ns(),
            key=seal.id,
            # Where records are not encrypted from the first one on, later ones may be.
            encryption=seal.encryption or None,
            format=FORMAT,
            engine=engine,
        )
        return header.under(seal)

    def under(self, seal: Seal) -> Header:
        """Return the header of the same store with records of *seal*."""
        own_key = seal.key.decode() if seal.is_kept else None
        return replace(self, key=seal.id, own_key=own_key)

    def to_bytes(self, seal: Seal) -> bytes:
        """Return the record that `read` reads."""
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
            record: The bytes.
            path: The location of the store, for messages.
            engines: The engine that opens the store, and its earlier names.

        Raises:
            StoreCorruptError: It is damaged.
            StoreVersionError: Another release, or another engine, wrote the store.
        """
        text = record[_CHECKSUM_END:]
        if purpose_digest(text, b"sum") != record[:_SUM_END]:
            raise _damaged(path)
        fields = json.loads(text)
        if fields["format"] != FORMAT or fields["engine"] not in engines:
            raise StoreVersionError(
                f"{path} has format {fields['format']} (engine {fields['engine']}), "
                f"and this release reads format {FORMAT} (engine {engines[0]}); it "
                "was not touched: use the release that wrote it"
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
        """Refuse a store that must not be opened with *seal*.

        Args:
            record: The bytes that `to_bytes` returned.
            path: The location of the store, for messages.
            seal: The keys of the caller.
            readonly: Nothing will be written: a reader without the key to decrypt may
                see the rest.
            trusting: Accept a store that is sealed under another key.

        Raises:
            StoreCorruptError: The header was not made with the key it names.
            StoreForeignError: The store is sealed, or encrypted, under another key.
            StoreReadOnlyError: It is trusted, and cannot be sealed again.
        """
        if self.key == seal.id:
            text = record[_CHECKSUM_END:]
            if seal.of(HEADER, text) != record[_SUM_END:_CHECKSUM_END]:
                raise _damaged(path)
        elif not trusting:
            raise self._foreign(path, seal)
        elif readonly:
            raise StoreReadOnlyError(
                f"{path} is read only, so it cannot be sealed anew"
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
                f"{path} is encrypted under {self.encryption or 'no key'}, and another "
                f"encryption_key was given ({seal.encryption or 'none'}): pass its own "
                "to StoreOptions, or encrypt all of it anew with LMDBSaver.change_keys"
            )

    def _foreign(
        self,
        path: str,
        seal: Seal,
    ) -> StoreForeignError:
        ours = "none was given" if seal.is_kept else f"ours is {seal.id}"
        cure = f"Set {KEY_VARIABLE} to the key it was made with"
        if self.own_key is not None:
            cure = f"It has its own key in it: unset {KEY_VARIABLE} to use that"
        return StoreForeignError(
            f"{path} was sealed under another key ({self.key}; {ours}); nothing of "
            f"it was decoded. {cure}; or, if you trust whoever wrote it, pass "
            f"StoreOptions(trust=...) or --trust, or set {TRUST_VARIABLE}=1"
        )


def _damaged(path: str) -> StoreCorruptError:
    return StoreCorruptError(f"the header of {path} is damaged; restore a backup")


def seal_for(options: StoreOptions, header: Header | None = None) -> Seal:
    """Return the seal of a store: under the key that the user gives, or under its own.

    Args:
        options: May give a key; `KEY_VARIABLE` and `KEY_FILE_VARIABLE` may too.
        header: The header of the store; None: there is no store yet.

    Raises:
        StoreError: The user's key is blank, or its file cannot be read.
    """
    key = options.trust if isinstance(options.trust, bytes) else _users_key()
    if key is not None:
        return Seal(key, options.encryption_key)
    own_key = header.own_key if header is not None else None
    if not own_key:
        own_key = secrets.token_hex(32)
    return Seal(own_key.encode(), options.encryption_key, is_kept=True)


def _users_key() -> bytes | None:
    """Return the key that the environment gives, or None."""
    source = KEY_VARIABLE
    value = os.environ.get(KEY_VARIABLE, "")
    key = value.encode("utf-8", "surrogateescape")
    if not key:
        file = os.environ.get(KEY_FILE_VARIABLE)
        if not file:
            return None
        source = file
        with named(file), open(file, "rb") as opened:
            key = opened.read().strip()
    if not key.strip():  # everybody could guess it
        raise StoreError(
            f"{source} is empty: no key; put the key back, or unset the variable"
        )
    return key
