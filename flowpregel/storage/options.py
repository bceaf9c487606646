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
    """Seconds to wait for another process before `StoreBusyError` is raised. This is a
    process that writes or, for a change that needs the store to be closed, any process
    that has the store open."""
    allow_network: bool = False
    """Open a store on a file system that is not known to be local (``ext4``, ``xfs``,
    ``apfs``, ``tmpfs``, ``overlay`` ...), although LMDB and SQLite may lose data on it.
    """
    check_pages: bool = False
    """Check every page and record of the file when it is opened (about 15 ms for each
    MiB). Use this for a file that may be damaged: LMDB itself does not check its pages,
    so a damaged page can give wrong data or kill the process.
    """
    trust: bool | bytes | None = None
    """Accept a store that other users own or can write to, or whose checksums were made
    with another key. Bytes are the key of the store. True accepts the store whatever
    its content is, and replaces its checksums by those of our own key. None uses the
    environment variable ``FLOWPREGEL_TRUST``: 1 means True, and 0 means False.
    """
    compression: bool = False
    """Compress the values that become smaller (needs the extra ``zstd``)."""
    encryption_key: bytes | None = None
    """Encrypt records with AES-GCM under this key of 16, 24 or 32 bytes (needs
    the extra ``crypto``). `change_keys` of a saver changes the key of a store."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """The new names of classes, functions and modules that were moved or renamed, by
    the names in recorded values: ``{"old.C": "new.C"}``. ``flowpregel rename`` stores
    such a name in the store instead.
    """
    kept_arguments: int = 1 << 20
    """The limit, in bytes, on the stored arguments of a failed call, which are for
    ``flowpregel debug`` and are deleted when the call succeeds. 0 stores none."""
    kept_output: int = 1 << 16
    """The limit, in bytes, on how much of the text that a task prints and logs in a
    worker process is stored. Of a longer text, the beginning and the end are stored,
    half each. 0 stores none.
    """
    kept_previews: int = 1 << 18
    """The limit, in bytes, on the stored picture, table or text of a call's result and
    reports. A larger one is left out. 0 stores no previews, not even of arguments.
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
        """True if a store is accepted whatever its content is.

        Raises:
            ConfigurationError: ``FLOWPREGEL_TRUST`` is neither 1 nor 0.
        """
        setting = os.environ.get(TRUST_VARIABLE) or "0"
        if setting not in ("0", "1"):
            raise ConfigurationError(f"{TRUST_VARIABLE} is {setting!r}: write 1 or 0")
        if self.trust is None:
            return setting == "1"
        return self.trust is True
