"""Stores by the location that a user writes: the path of a folder, or a URL.

::

    "runs.lmdb" ──────────► FolderStores ───────────────┐
                                                        ├──► saver, store, cache
    "mine://host/runs" ───► the StorePlugin of "mine" ──┘

A URL's plug-in is found by entry point (`flowpregel._entry_points`). The rest of the
package asks a `StorePlugin`, and no other module distinguishes paths from URLs.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from flowpregel._text import size_text
from flowpregel._urls import plugin_of_url, scheme_of
from flowpregel.errors import StoreError

if TYPE_CHECKING:
    from flowpregel.cache.base import BaseCache
    from flowpregel.checkpoint.base import BaseCheckpointSaver
    from flowpregel.checkpoint.lmdb import Codec, StoreOptions
    from flowpregel.store.base import BaseStore

_LEAST_DISK: Final = 256 << 20
"""Bytes of free disk space that a store in a folder should have."""


class StoreCheck(NamedTuple):
    """The result of one check: a line in the output of ``flowpregel doctor``."""

    name: str
    """The thing that was checked."""
    ok: bool
    """True if the check has passed."""
    finding: str
    """The result of the check, as text for people."""


class StorePlugin(ABC):
    """A kind of store: opens savers, long-term stores and caches at a location.

    A package declares its class in the entry points ``flowpregel.stores``, under the
    scheme of the URLs. The class is instantiated without arguments, and may be
    instantiated often.
    """

    example: ClassVar[str]
    """A URL as a user writes one, for messages: ``mine://host/name``."""
    classes: ClassVar[tuple[str, ...]] = ()
    """The names of the classes that a program may use instead of a URL."""

    @abstractmethod
    def open_saver(
        self,
        location: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> BaseCheckpointSaver:
        """Open the checkpointer at a location.

        The commands of ``flowpregel`` and the page of a run need a
        `flowpregel.checkpoint.durable.DurableSaver`.

        Args:
            location: The URL, as the user wrote it.
            readonly: Whether to only read, and to create and change nothing.
            codec: The encoder of values. None encodes any Python value exactly.
            options: The options of the store.
        """

    def open_store(
        self, location: str, *, options: StoreOptions | None = None
    ) -> BaseStore | None:
        """Open the long-term store at a location, or return None if unsupported.

        Args:
            location: The URL, as the user wrote it.
            options: The options of the store.
        """
        return None

    def open_cache(
        self, location: str, *, options: StoreOptions | None = None
    ) -> BaseCache | None:
        """Open the cache of results at a location, or return None if unsupported.

        Args:
            location: The URL, as the user wrote it.
            options: The options of the store.
        """
        return None

    def full_location(self, location: str) -> str:
        """Return a location that does not depend on the working folder.

        Args:
            location: The URL, as the user wrote it.
        """
        return location

    def exists(self, location: str) -> bool:
        """Return whether there may be a store at a full location.

        If False, a command that only reads reports at once that there is no store. By
        default it is True, and opening the store shows whether it exists.

        Args:
            location: The location, as `full_location` returns it.
        """
        return True

    def is_lockable(self, location: str) -> bool:
        """Return whether this process can keep other processes from writing to the
        store.

        If so, ``flowpregel verify`` opens the store to write, so that no other process
        writes while it reads.

        Args:
            location: The location, as `full_location` returns it.
        """
        return False

    def is_local(self, location: str) -> bool:
        """Return whether only processes of this machine can use the store.

        If so, ``flowpregel enqueue --remote`` refuses the store, because processes of
        other machines could not run what is enqueued.

        Args:
            location: The location, as `full_location` returns it.
        """
        return False

    def checks(self, location: str) -> Iterable[StoreCheck]:
        """Yield checks of a store's surroundings, such as free disk space and
        permissions, for ``flowpregel doctor``.

        Args:
            location: The location, as `full_location` returns it.
        """
        return ()


class FolderStores(StorePlugin):
    """The stores in folders, which use LMDB. A location is the path of a
    folder.
    """

    example = "runs.lmdb"
    classes = ("LMDBSaver", "LMDBStore", "LMDBCache")

    def open_saver(
        self,
        location: str,
        *,
        readonly: bool = False,
        codec: Codec | None = None,
        options: StoreOptions | None = None,
    ) -> BaseCheckpointSaver:
        from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - imports lmdb

        return LMDBSaver(
            location,
            readonly=readonly,
            # A reader registers in LMDB's lock file. In a folder that is read-only,
            # this is not possible, so no lock file is used.
            lock=not readonly or os.access(location, os.W_OK),
            codec=codec,
            options=options,
        )

    def open_store(
        self,
        location: str,
        *,
        options: StoreOptions | None = None,
    ) -> BaseStore:
        from flowpregel.store.lmdb import LMDBStore  # noqa: PLC0415 - imports lmdb

        return LMDBStore(location, options=options)

    def open_cache(
        self,
        location: str,
        *,
        options: StoreOptions | None = None,
    ) -> BaseCache:
        from flowpregel.cache.lmdb import LMDBCache  # noqa: PLC0415 - imports lmdb

        return LMDBCache(location, options=options)

    def full_location(self, location: str) -> str:
        from flowpregel.storage.lmdb import files  # noqa: PLC0415 - imports lmdb

        return files.real_path(location)

    def exists(self, location: str) -> bool:
        from flowpregel.storage.lmdb import files  # noqa: PLC0415 - imports lmdb

        return files.exists(location)

    def is_lockable(self, location: str) -> bool:
        return os.access(location, os.W_OK)

    def is_local(self, location: str) -> bool:
        return True

    def checks(self, location: str) -> Iterator[StoreCheck]:
        """Yield checks of the store's folder. If the store does not exist yet, check
        the nearest existing folder above it, in which the store would be made.
        """
        path = os.path.realpath(location)
        folder = path
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        yield _check_file_system(folder)
        free = shutil.disk_usage(folder).free
        yield StoreCheck("store's disk", free >= _LEAST_DISK, f"{size_text(free)} free")
        is_writable = os.access(folder, os.W_OK)
        rights = "writable" if is_writable else f"{folder} is read-only"
        yield StoreCheck("store's rights", is_writable, rights)
        if folder == path:
            yield _check_mode(path)


def store_plugin_at(location: str) -> StorePlugin:
    """Return the plug-in that opens the store at a location.

    Args:
        location: The path of a folder, or a URL.

    Raises:
        ConfigurationError: *location* is a URL whose scheme no plug-in has.

    Example:
        >>> type(store_plugin_at("runs.lmdb")).__name__
        'FolderStores'
    """
    scheme = scheme_of(location)
    if scheme is None:
        return FolderStores()
    plugin: StorePlugin = plugin_of_url(location, scheme)()
    return plugin


def _check_file_system(folder: str) -> StoreCheck:
    """Check that a folder is on a file system that LMDB can use."""
    from flowpregel.storage.file_systems import (  # noqa: PLC0415 - seldom used
        file_system,
        refuse_network_folder,
    )

    try:
        refuse_network_folder(folder)
    except StoreError as error:
        return StoreCheck("store's file system", False, str(error))
    return StoreCheck("store's file system", True, file_system(folder) or "unknown")


def _check_mode(folder: str) -> StoreCheck:
    """Check that the permissions of a store's folder keep other users from reading the
    store.
    """
    mode = os.stat(folder).st_mode & 0o777
    is_private = not mode & 0o077
    finding = f"mode {mode:o}"
    if not is_private:
        finding += ": other users can read it; run chmod 700 on it"
    return StoreCheck("store's mode", is_private, finding)
