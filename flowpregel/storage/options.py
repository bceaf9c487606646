"""How a store is opened: the options, its header, and the key that seals it."""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from uuid import uuid4

from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreReadOnlyError,
    StoreVersionError,
)
from flowpregel.storage.errors import DATA, named
from flowpregel.storage.records import HEADER, SIZE, Seal, purpose_digest

FORMAT = 1
KEY_VARIABLE = "FLOWPREGEL_STORE_KEY"
KEY_FILE_VARIABLE = "FLOWPREGEL_STORE_KEY_FILE"
TRUST_VARIABLE = "FLOWPREGEL_TRUST"
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
    """Open a store on a file system that is not known to be local (``ext4``, ``xfs``,
    ``apfs``, ``tmpfs``, ``overlay`` ...), although LMDB may lose data there.
    """
    check_pages: bool = False
    """Look at every page and record of the file before it is trusted (about 15 ms for
    each MiB), for one that may be damaged: LMDB itself trusts its pages, and can read
    wrongly or end the process where one is damaged.
    """
    trust: bool | bytes | None = None
    """Accept a store that other users own or may write, or that is sealed under
    another key. Bytes are that key; True accepts whatever is in it, and seals it anew
    under our own key; None does what ``FLOWPREGEL_TRUST`` says: 1 is True, 0 False."""
    compression: bool = False
    """Compress what gets smaller by it (needs the extra ``zstd``)."""
    encryption_key: bytes | None = None
    """Encrypt records with AES-GCM under this key of 16, 24 or 32 bytes (needs
    the extra ``crypto``). `LMDBSaver.change_keys` gives a store another one."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """The new names of classes, functions and modules that were moved or renamed, by
    those that recorded values know: ``{"old.C": "new.C"}``. ``flowpregel rename`` keeps
    such a name in the store.
    """
    kept_arguments: int = 1 << 20
    """The most bytes that are kept of the arguments of a call that failed, for
    ``flowpregel debug``, until it succeeds; 0 keeps none."""
    kept_output: int = 1 << 16
    """The most bytes that are kept of what a task prints and logs in a worker process,
    half of them of its beginning and half of its end; 0 keeps none.
    """

    def __post_init__(self) -> None:
        if not self.lock_timeout > 0:
            raise ConfigurationError(
                f"lock_timeout is {self.lock_timeout!r}; give seconds greater than 0"
            )
        if isinstance(self.trust, bytes) and not self.trust:
            raise ConfigurationError(
                "trust is an empty key; give the store's key, or True"
            )
        if self.encryption_key is not None and len(self.encryption_key) not in (
            16,
            24,
            32,
        ):
            raise ConfigurationError("encryption_key must be 16, 24 or 32 bytes long")

    @property
    def trusts_all(self) -> bool:
        """Whether whatever is in a store is accepted.

        Raises:
            ConfigurationError: ``FLOWPREGEL_TRUST`` is neither 1 nor 0.
        """
        said = os.environ.get(TRUST_VARIABLE) or "0"
        if said not in ("0", "1"):
            raise ConfigurationError(f"{TRUST_VARIABLE} is {said!r}: write 1 or 0")
        return said == "1" if self.trust is None else self.trust is True


@dataclass(frozen=True, slots=True)
class Header:
    """What a store says of itself: a plain digest, a keyed checksum, and these fields
    as JSON.
    """

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
    own_key: str | None = field(default=None, repr=False)
    """The key itself, of a store for which the user gave none."""

    @classmethod
    def new(cls, seal: Seal) -> Header:
        """Return the header of a store that begins now."""
        # Where records are not encrypted from the first one on, later ones may be.
        header = cls(
            uuid4().hex, time.time_ns(), seal.id, seal.encryption or None, FORMAT
        )
        return header.under(seal)

    def under(self, seal: Seal) -> Header:
        """Return the header of the same store with records of *seal*."""
        return replace(
            self, key=seal.id, own_key=seal.key.decode() if seal.is_kept else None
        )

    def to_bytes(self, seal: Seal) -> bytes:
        """Return the record that `read` reads."""
        text = json.dumps(asdict(self)).encode()
        return purpose_digest(text, b"sum") + seal.of(HEADER, text) + text

    @classmethod
    def read(cls, record: bytes, path: str) -> Header:
        """Return the header in *record*, which `to_bytes` returned.

        Raises:
            StoreCorruptError: It is damaged.
            StoreVersionError: Another release wrote the store.
        """
        total, text = record[:32], record[32 + SIZE :]
        if purpose_digest(text, b"sum") != total:
            raise _damaged(path)
        fields = json.loads(text)
        if (fields["format"], fields["engine"]) != (FORMAT, ENGINE_VERSION):
            raise StoreVersionError(
                f"{path} has format {fields['format']} (engine {fields['engine']}), "
                "and this "
                f"release reads format {FORMAT} (engine {ENGINE_VERSION}); it was not "
                "touched: "
                "use the release that wrote it"
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
        """Refuse a store that is not to be opened with *seal*.

        Args:
            record: What `to_bytes` returned.
            path: The store's folder, for the messages.
            seal: Has the keys that are to be used.
            readonly: Nothing will be written: who has no key to decrypt may look.
            trusting: Accept one that was sealed under another key.

        Raises:
            StoreCorruptError: The header was not made with the key it names.
            StoreForeignError: It is sealed, or encrypted, under another key.
            StoreReadOnlyError: It is trusted, and cannot be sealed anew.
        """
        checksum, text = record[32 : 32 + SIZE], record[32 + SIZE :]
        if self.key != seal.id and not trusting:
            ours = "none was given" if seal.is_kept else f"ours is {seal.id}"
            cure = f"Set {KEY_VARIABLE} to the key it was made with"
            if self.own_key is not None:
                cure = f"It has its own key in it: unset {KEY_VARIABLE} to use that"
            raise StoreForeignError(
                f"{path} was sealed under another key ({self.key}; {ours}); nothing of "
                "it was "
                f"decoded. {cure}; or, if you trust whoever wrote it, pass "
                f"StoreOptions(trust=...) or --trust, or set {TRUST_VARIABLE}=1"
            )
        if self.key == seal.id and seal.of(HEADER, text) != checksum:
            raise _damaged(path)
        if self.key != seal.id and readonly:
            raise StoreReadOnlyError(
                f"{path} is read only, so it cannot be sealed anew"
            )
        only_looks = readonly and seal.cipher is None
        if self.encryption not in (None, seal.encryption) and not only_looks:
            raise StoreForeignError(
                f"{path} is encrypted under {self.encryption or 'no key'}, and another "
                f"encryption_key was given ({seal.encryption or 'none'}): pass its own "
                "to "
                "StoreOptions, or encrypt all of it anew with LMDBSaver.change_keys"
            )


def _damaged(path: str) -> StoreCorruptError:
    return StoreCorruptError(f"the header of {path} is damaged; restore a backup")


def seal_for(options: StoreOptions, header: Header | None = None) -> Seal:
    """Return the seal of a store: under the key that the user gives, or under its own.

    Args:
        options: May give a key; `KEY_VARIABLE` and `KEY_FILE_VARIABLE` may too.
        header: The store's; None: there is no store yet.

    Raises:
        StoreError: The user's key is blank, or its file cannot be read.
    """
    key = options.trust if isinstance(options.trust, bytes) else _users_key()
    if key is not None:
        return Seal(key, options.encryption_key)
    kept = header and header.own_key
    return Seal(
        (kept or secrets.token_hex(32)).encode(), options.encryption_key, is_kept=True
    )


def _users_key() -> bytes | None:
    source, key = (
        KEY_VARIABLE,
        os.environ.get(KEY_VARIABLE, "").encode("utf-8", "surrogateescape"),
    )
    file = os.environ.get(KEY_FILE_VARIABLE)
    if not key and file:
        with named(file), open(file, "rb") as opened:
            source, key = file, opened.read().strip()
    elif not key:
        return None
    if not key.strip():  # everybody knows it
        raise StoreError(
            f"{source} is empty: no key; put the key back, or unset the variable"
        )
    return key


def refuse_others(folder: str) -> None:
    """Refuse a store that other users may have written: values are pickles, which run
    code.

    Its own key proves nothing then, and LMDB itself trusts its pages.

    Raises:
        StoreForeignError: Its folder or its file is another user's, or others may write
            it.
    """
    for path in (folder, os.path.join(folder, DATA)):
        with named(path):
            status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            continue  # refused where it is opened
        why = f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
        if status.st_uid != os.geteuid():
            why = f"belongs to user {status.st_uid}, and we are user {os.geteuid()}"
        elif not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            continue
        raise StoreForeignError(
            f"{path} {why}; nothing of it was read. If you trust everybody who can "
            "write it, "
            "pass StoreOptions(trust=True), or `flowpregel ... --trust`, or set "
            f"{TRUST_VARIABLE}=1"
        )
