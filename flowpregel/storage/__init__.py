"""Storage, for authors of a storage engine: the contract of stores, and records with
keyed checksums.

A *store* keeps records in tables, and changes them in transactions. Savers, long-term
stores and caches use any store only through `Store` and `Table`. An engine implements
these two, and its plug-in (`flowpregel.plugins.StorePlugin`) opens a store by URL. The
page *Write a store of your own* shows how to write an engine.

Read the modules in this order: `stores`, `tables`, `records`, `headers`, `options`,
`group_commit`, `locks`. `in_memory` keeps records in this process. `storage.lmdb` is
the default engine, and the only package that uses LMDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel._lazy import import_name

if TYPE_CHECKING:
    from flowpregel._fault import fault
    from flowpregel._interrupts import defer_interrupts, raise_pending_interrupts
    from flowpregel.storage.ballast import drop_ballast, make_ballast
    from flowpregel.storage.claims import ClaimFiles
    from flowpregel.storage.codec import Codec, PythonCodec, ValueCodec
    from flowpregel.storage.drafts import draft_in, sync_path
    from flowpregel.storage.errors import is_disk_full, translate_os_errors
    from flowpregel.storage.file_systems import refuse_network_folder
    from flowpregel.storage.group_commit import CommitQueue
    from flowpregel.storage.headers import Header, seal_for
    from flowpregel.storage.locks import FileLock, LockHolder
    from flowpregel.storage.options import StoreOptions
    from flowpregel.storage.ownership import refuse_foreign_files
    from flowpregel.storage.records import (
        HEADER,
        TABLE_NAMES,
        Seal,
        SealedRecords,
        after,
        labels_digest,
    )
    from flowpregel.storage.stores import (
        DurableStore,
        KeyRange,
        Store,
        Transaction,
    )
    from flowpregel.storage.tables import Table

__all__ = [
    "HEADER",
    "TABLE_NAMES",
    "ClaimFiles",
    "Codec",
    "CommitQueue",
    "DurableStore",
    "FileLock",
    "Header",
    "KeyRange",
    "LockHolder",
    "PythonCodec",
    "Seal",
    "SealedRecords",
    "Store",
    "StoreOptions",
    "Table",
    "Transaction",
    "ValueCodec",
    "after",
    "defer_interrupts",
    "draft_in",
    "drop_ballast",
    "fault",
    "is_disk_full",
    "labels_digest",
    "make_ballast",
    "raise_pending_interrupts",
    "refuse_foreign_files",
    "refuse_network_folder",
    "seal_for",
    "sync_path",
    "translate_os_errors",
]

# A name is imported on first use (PEP 562). A worker that imports the user's flows
# imports only a few modules of this package, and needs neither the locks nor the codec
# nor group commit.
_HOMES = {
    "_fault": ("fault",),
    "_interrupts": (
        "defer_interrupts",
        "raise_pending_interrupts",
    ),
    "storage.ballast": ("drop_ballast", "make_ballast"),
    "storage.claims": ("ClaimFiles",),
    "storage.codec": (
        "Codec",
        "PythonCodec",
        "ValueCodec",
    ),
    "storage.drafts": (
        "draft_in",
        "sync_path",
    ),
    "storage.errors": (
        "is_disk_full",
        "translate_os_errors",
    ),
    "storage.file_systems": ("refuse_network_folder",),
    "storage.group_commit": ("CommitQueue",),
    "storage.headers": (
        "Header",
        "seal_for",
    ),
    "storage.locks": (
        "FileLock",
        "LockHolder",
    ),
    "storage.options": ("StoreOptions",),
    "storage.ownership": ("refuse_foreign_files",),
    "storage.records": (
        "HEADER",
        "TABLE_NAMES",
        "Seal",
        "SealedRecords",
        "after",
        "labels_digest",
    ),
    "storage.stores": (
        "DurableStore",
        "KeyRange",
        "Store",
        "Transaction",
    ),
    "storage.tables": ("Table",),
}


def __getattr__(name: str) -> Any:
    return import_name(globals(), _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
