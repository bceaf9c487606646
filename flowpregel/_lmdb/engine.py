"""How LMDB itself is opened: which engine, which flags, which databases."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from flowpregel._lmdb import failures

ENGINE = 0
"""The major version of LMDB whose format we write; py-lmdb ships two."""
DATABASES = (b"meta", b"scopes", b"names", b"ids", b"log", b"store", b"cache")
SMALLEST_MAP = 1 << 20
READERS = 1024


def fill(draft: str, records: Sequence[tuple[bytes, bytes]]) -> None:
    """Make a store with its databases and these *records* of ``meta`` in the folder *draft*."""
    import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

    try:
        env = connect(draft, SMALLEST_MAP, readonly=False, lock=True)
        try:
            for name in DATABASES:
                env.open_db(name)
            meta = env.open_db(b"meta")
            with env.begin(write=True, db=meta) as transaction:
                for key, value in records:
                    transaction.put(key, value)
        finally:
            env.close()
    except lmdb.Error as error:
        raise failures.of_commit(error, draft) from error
    for file in os.listdir(draft):
        os.chmod(os.path.join(draft, file), 0o600)


def error(name: str) -> type[Exception]:
    """Return the class of LMDB's errors that has *name*, for an ``except`` clause.

    So nothing is to be imported unless there is an error.
    """
    import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

    found: type[Exception] = getattr(lmdb, name)
    return found


def connect(path: str, map_size: int, *, readonly: bool, lock: bool) -> Any:
    """Return LMDB's environment at *path*, opened as we open it everywhere."""
    import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

    # Without it a commit keeps the GIL while the disk syncs: nobody could join its group.
    lmdb.enable_drop_gil()
    return lmdb.open(
        path,
        map_size=map_size,
        max_dbs=16,
        max_readers=READERS,
        mode=0o600,
        create=not readonly,
        readonly=readonly,
        lock=lock,
        lib_version=ENGINE,
    )
