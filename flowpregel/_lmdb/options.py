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
from flowpregel._lmdb.records import NOT_ENCRYPTED, SIZE, Seal, digest
from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreVersionError,
)

FORMAT = 1
KEY_VARIABLE = "FLOWPREGEL_STORE_KEY"
_ENGINE = (0, 9)
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

    def __post_init__(self) -> None:
        if not self.lock_timeout > 0:
            raise ConfigurationError(
                f"lock_timeout is {self.lock_timeout!r}; give seconds greater than 0"
            )
        if isinstance(self.trust, bytes) and not self.trust:
            raise ConfigurationError("trust is an empty key; give the store's key, or True")
        if self.encryption_key is not None and len(self.encryption_key) not in (16, 24, 32):
            raise ConfigurationError("encryption_key must be 16, 24 or 32 bytes long")

    def check_opening(self, *, readonly: bool, lock: bool) -> None:
        """Refuse what does not go together."""
        if not lock and not readonly:
            raise ConfigurationError(
                "lock=False needs readonly=True: it is for folders none can write"
            )
        if self.check_pages and readonly and lock:
            raise ConfigurationError(
                "check_pages needs that nobody writes meanwhile: with readonly=True, "
                "pass lock=False too"
            )


@dataclass(frozen=True, slots=True)
class Header:
    """What a store says of itself."""

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
    engine: tuple[int, ...] = _ENGINE

    @classmethod
    def new(cls, seal: Seal) -> Header:
        """Return the header of a store that begins now."""
        # Where records are not encrypted from the first one on, later ones may be.
        return cls(uuid4().hex, time.time_ns(), seal.id, seal.encryption or None)

    def to_bytes(self, seal: Seal) -> bytes:
        """Return the record: a plain digest, a keyed checksum, and the fields as JSON."""
        text = json.dumps({**asdict(self), "format": FORMAT}).encode()
        return digest(text, b"sum") + seal.of(HEADER, text) + text

    @classmethod
    def read(cls, record: bytes, path: str) -> Header:
        """Return the header in *record*, whatever key it is sealed under.

        Raises:
            StoreCorruptError: The header is damaged.
            StoreVersionError: Another release wrote the store.
        """
        if not record:
            raise StoreCorruptError(f"{path} has no header; restore a backup")
        total, text = record[:32], record[32 + SIZE :]
        if digest(text, b"sum") != total:
            raise StoreCorruptError(f"the header of {path} is damaged; restore a backup")
        fields = json.loads(text)
        engine = tuple(fields["engine"])
        if fields["format"] != FORMAT or engine != _ENGINE:
            raise StoreVersionError(
                f"{path} has format {fields['format']} (engine {fields['engine']}), and this "
                f"release reads format {FORMAT} (engine {[*_ENGINE]}); it was not touched: "
                "use the release that wrote it"
            )
        return cls(**{**fields, "engine": engine})

    def check(self, record: bytes, seal: Seal, path: str) -> None:
        """Refuse a store that is sealed under another key.

        Raises:
            StoreForeignError: It is.
            StoreCorruptError: The header was not made with the key it names.
        """
        if self.key != seal.id:
            raise StoreForeignError(
                f"{path} was sealed under another key ({self.key}; ours is {seal.id}); nothing "
                f"of it was decoded. Set {KEY_VARIABLE} to the key it was made with, or pass "
                "StoreOptions(trust=...) if you trust whoever wrote it"
            )
        if seal.of(HEADER, record[32 + SIZE :]) != record[32 : 32 + SIZE]:
            raise StoreCorruptError(f"the header of {path} is damaged; restore a backup")

    def check_encryption(self, seal: Seal, path: str, *, readonly: bool) -> None:
        """Refuse to write to a store whose records are encrypted otherwise.

        Raises:
            StoreForeignError: The header names another key, or says that there is none.
        """
        found = seal.encryption if self.encryption is None else self.encryption
        if found == seal.encryption or (readonly and seal.encrypted is None):
            return
        if seal.encrypted is None:
            raise StoreForeignError(
                f"{path} is encrypted; pass its key as StoreOptions(encryption_key=...)"
            )
        if found == NOT_ENCRYPTED:
            raise StoreForeignError(
                f"{path} is not encrypted any more; leave out the encryption_key, or encrypt all "
                "of it again with LMDBSaver.change_keys"
            )
        raise StoreForeignError(
            f"{path} is encrypted under another encryption_key ({found}; ours is {seal.encryption})"
        )


def store_key() -> bytes:
    """Return this user's key: ``FLOWPREGEL_STORE_KEY``, or the key file, made if need be.

    The file is ``flowpregel/store.key`` in the user's config folder, mode 0600.

    Raises:
        StoreError: The file cannot be read or made, or the key is blank.
    """
    given = os.environ.get(KEY_VARIABLE)
    if given:
        return _not_blank(given.encode("utf-8", "surrogateescape"), KEY_VARIABLE)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(config, "flowpregel", "store.key")
    with named(path):
        return _not_blank(_read_key(path) or _make_key(path), path)


def _not_blank(key: bytes, place: str) -> bytes:
    """Return *key*, unless everybody knows it."""
    if not key.strip():
        raise StoreError(
            f"{place} is empty: no key; put the key back, or remove it and a new one is made"
        )
    return key


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
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(handle)
        os.unlink(draft)
    files.sync(os.path.dirname(path))
    return _read_key(path)
