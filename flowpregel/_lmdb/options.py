"""How a store is opened."""

from __future__ import annotations

from dataclasses import dataclass

from flowpregel.errors import ConfigurationError

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
