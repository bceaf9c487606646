"""The options with which a store is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from flowpregel.errors import ConfigurationError

TRUST_VARIABLE = "FLOWPREGEL_TRUST"
DEFAULT_MAP_SIZE = 16 << 30
_KEY_SIZES = (16, 24, 32)


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options for opening a store, which are rarely needed.

    Example:
        >>> StoreOptions(lock_timeout=5.0).lock_timeout
        5.0
    """

    lock_timeout: float = 30.0
    """Seconds to wait for another process that writes, or that has a store open which
    must be closed to be changed, before `StoreBusyError`."""
    allow_network: bool = False
    """Open a store on a file system that is not known to be local (``ext4``, ``xfs``,
    ``apfs``, ``tmpfs``, ``overlay`` ...), although LMDB and SQLite may lose data there.
    """
    check_pages: bool = False
    """Check every page and record of the file when it is opened (about 15 ms for each
    MiB), for a file that may be damaged: LMDB itself trusts its pages, and can read
    wrongly or end the process where one is damaged.
    """
    trust: bool | bytes | None = None
    """Accept a store that other users own or may write, or that is sealed under
    another key. Bytes are that key; True accepts whatever is in it, and seals it again
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
    half from the beginning and half from the end; 0 keeps none.
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
        key = self.encryption_key
        if key is not None and len(key) not in _KEY_SIZES:
            raise ConfigurationError("encryption_key must be 16, 24 or 32 bytes long")

    @property
    def trusts_all(self) -> bool:
        """True if a store is accepted whatever is in it.

        Raises:
            ConfigurationError: ``FLOWPREGEL_TRUST`` is neither 1 nor 0.
        """
        setting = os.environ.get(TRUST_VARIABLE) or "0"
        if setting not in ("0", "1"):
            raise ConfigurationError(f"{TRUST_VARIABLE} is {setting!r}: write 1 or 0")
        if self.trust is None:
            return setting == "1"
        return self.trust is True
