"""How a store is opened: the options, its header, and the key that seals it."""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from uuid import uuid4

from flowpregel._lmdb import files
from flowpregel._lmdb.errors import named
from flowpregel._lmdb.files import HEADER
from flowpregel._lmdb.records import SIZE, Seal, digest
from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreReadOnlyError,
    StoreVersionError,
)

FORMAT = 1
KEY_VARIABLE = "FLOWPREGEL_STORE_KEY"
ENGINE_VERSION = "0.9"
"""Of LMDB; the header names it."""
DEFAULT_MAP_SIZE = 16 << 30


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """How a store is opened: the rarely needed.

    Example:
        >>> StoreOptions(lock_timeout=5.0).lock_timeout
        5.0
    """

    lock_timeout: float = 30.0
    """Seconds to wait for another process that writes, or that has a store open which
    must be closed to be changed, before `StoreBusyError`."""
    allow_network: bool = False
    """Open a store on a network file system although LMDB may lose data there."""
    check_pages: bool = False
    """Look at every page of the file before it is trusted (about 15 ms for each
    MiB), for one that may be damaged: LMDB itself trusts its pages, and can read
    wrongly or end the process where one is damaged."""
    trust: bool | bytes = False
    """Accept a store sealed under another key. Bytes are that other key; True
    accepts whatever is in it, and seals it anew under our own key."""
    compression: bool = False
    """Compress what gets smaller by it (needs the extra ``zstd``)."""
    encryption_key: bytes | None = None
    """Encrypt records with AES-GCM under this key of 16, 24 or 32 bytes (needs
    the extra ``crypto``). `LMDBSaver.change_keys` gives a store another one."""

    kept_arguments: int = 1 << 20
    """The most bytes that are kept of the arguments of a call that failed, for
    ``flowpregel debug``, until it succeeds; 0 keeps none."""

    def __post_init__(self) -> None:
        if not self.lock_timeout > 0:
            raise ConfigurationError(
                f"lock_timeout is {self.lock_timeout!r}; give seconds greater than 0"
            )
        if isinstance(self.trust, bytes) and not self.trust:
            raise ConfigurationError("trust is an empty key; give the store's key, or True")
        if self.encryption_key is not None and len(self.encryption_key) not in (16, 24, 32):
            raise ConfigurationError("encryption_key must be 16, 24 or 32 bytes long")


@dataclass(frozen=True, slots=True)
class Header:
    """What a store says of itself: a plain digest, a keyed checksum, and these fields as JSON."""

    id: str
    """The store's own; a backup keeps it."""
    created: int
    """Wall-clock nanoseconds."""
    key: str
    """Names the key that all records are sealed under."""
    encryption: str | None
    """Names the key that all records are encrypted under, `NOT_ENCRYPTED` if none is;
    None: each is as it is."""
    format: int = FORMAT
    engine: str = ENGINE_VERSION

    @classmethod
    def new(cls, seal: Seal) -> Header:
        """Return the header of a store that begins now."""
        # Where records are not encrypted from the first one on, later ones may be.
        return cls(uuid4().hex, time.time_ns(), seal.id, seal.encryption or None, FORMAT)

    def to_bytes(self, seal: Seal) -> bytes:
        """Return the record that `read` reads."""
        text = json.dumps(asdict(self)).encode()
        return digest(text, b"sum") + seal.of(HEADER, text) + text

    @classmethod
    def read(
        cls, record: bytes, path: str, seal: Seal, *, readonly: bool, trusting: bool = False
    ) -> Header:
        """Return the header in *record*, unless the store is not to be opened with *seal*.

        Args:
            record: What `to_bytes` returned.
            path: The store's folder, for the messages.
            seal: Has the keys that were given.
            readonly: Nothing will be written: who has no key to decrypt may look.
            trusting: Accept one that was sealed under another key.

        Raises:
            StoreCorruptError: The header is damaged, or was not made with the key it names.
            StoreVersionError: Another release wrote the store.
            StoreForeignError: It is sealed, or encrypted, under another key.
            StoreReadOnlyError: It is trusted, and cannot be sealed anew.
        """
        total, checksum, text = record[:32], record[32 : 32 + SIZE], record[32 + SIZE :]
        damaged = StoreCorruptError(f"the header of {path} is damaged; restore a backup")
        if digest(text, b"sum") != total:
            raise damaged
        fields = json.loads(text)
        if (fields["format"], fields["engine"]) != (FORMAT, ENGINE_VERSION):
            raise StoreVersionError(
                f"{path} has format {fields['format']} (engine {fields['engine']}), and this "
                f"release reads format {FORMAT} (engine {ENGINE_VERSION}); it was not touched: "
                "use the release that wrote it"
            )
        header = cls(**fields)
        if header.key != seal.id and not trusting:
            raise StoreForeignError(
                f"{path} was sealed under another key ({header.key}; ours is {seal.id}); nothing "
                f"of it was decoded. Set {KEY_VARIABLE} to the key it was made with, or pass "
                "StoreOptions(trust=...) if you trust whoever wrote it"
            )
        if header.key == seal.id and seal.of(HEADER, text) != checksum:
            raise damaged
        if header.key != seal.id and readonly:
            raise StoreReadOnlyError(f"{path} is read only, so it cannot be sealed anew")
        only_looks = readonly and seal.cipher is None
        if header.encryption not in (None, seal.encryption) and not only_looks:
            raise StoreForeignError(
                f"{path} is encrypted under {header.encryption or 'no key'}, and another "
                f"encryption_key was given ({seal.encryption or 'none'}): pass its own to "
                "StoreOptions, or encrypt all of it anew with LMDBSaver.change_keys"
            )
        return header


def store_key() -> bytes:
    """Return this user's key: ``FLOWPREGEL_STORE_KEY``, or the key file, made if need be.

    The file is ``flowpregel/store.key`` in the user's config folder, mode 0600.

    Raises:
        StoreError: The file cannot be read or made, or the key is blank.
    """
    given, place = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
    if given:
        key = given.encode("utf-8", "surrogateescape")
    else:
        home = os.path.join(os.path.expanduser("~"), ".config")
        config = os.environ.get("XDG_CONFIG_HOME") or home
        place = os.path.join(config, "flowpregel", "store.key")
        with named(place):
            if not os.path.exists(place):
                _make_key(place)
            with open(place, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mode & 0o077 and status.st_uid == os.geteuid():
                    os.chmod(place, 0o600)
                key = file.read().strip()
    if not key.strip():  # everybody knows it
        raise StoreError(
            f"{place} is empty: no key; put the key back, or remove it and a new one is made"
        )
    return key


def _make_key(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    draft = f"{path}.{secrets.token_hex(4)}.new"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, secrets.token_hex(32).encode() + b"\n")
        os.fsync(handle)
        # Of two processes that make the key at once, one wins and both use its key.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(handle)
        os.unlink(draft)
    files.sync(os.path.dirname(path))
