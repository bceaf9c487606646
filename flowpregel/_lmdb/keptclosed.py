"""A store that is kept closed: for what must not be changed under anyone's eyes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from flowpregel._lmdb import folder
from flowpregel._lmdb.closed import ClosedStore
from flowpregel._lmdb.failures import JournalFailedError, of_commit
from flowpregel._lmdb.filelock import Presence
from flowpregel._lmdb.pending import Pending
from flowpregel.errors import StoreBusyError


@contextmanager
def keep_closed(path: str) -> Iterator[None]:
    """Keep everyone from opening the store at *path*, whose journal is empty.

    Whoever has a store open keeps what it knows of it: its format, and the keys of
    its records. So those are changed only while it is open nowhere, in this process
    or in another, and whoever opens it meanwhile waits.

    Raises:
        StoreBusyError: Someone has it open.
    """
    presence = Presence(os.path.join(path, folder.PRESENCE))
    try:
        if not presence.become_only():
            raise StoreBusyError(path, "someone who has it open, here or in another process", 0.0)
        if os.path.exists(os.path.join(path, folder.JOURNAL)):
            _empty_journal(path)
        yield
    finally:
        presence.close()


def _empty_journal(path: str) -> None:
    """Put all that the journal has into the store's file.

    Whoever writes to the file without knowing of the journal would make it void.
    """
    pending = Pending(path, readonly=False)
    try:
        with ClosedStore(path) as store:
            pending.catch_up(store.read(lambda transaction: transaction.id()))
            if not pending.is_empty:
                store.write(lambda transaction: pending.apply(transaction, store.databases))
        pending.clear()
    except OSError as error:
        raise of_commit(JournalFailedError(error), path) from error
    finally:
        pending.close()
