"""A store that is open: its environment, its seal and its codec."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flowpregel._lmdb import seal as headers
from flowpregel._lmdb.closed import ClosedStore
from flowpregel._lmdb.codec import Codec
from flowpregel._lmdb.environment import Environment, open_environment
from flowpregel._lmdb.keptclosed import keep_closed
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel._lmdb.seal import HEADER, Seal, store_key
from flowpregel._lmdb.sealing import seal_anew
from flowpregel._lmdb.wrapping import WrappedCodec
from flowpregel.errors import StoreBusyError, StoreReadOnlyError

_PAUSE = 0.02
"""Seconds before looking again whether nobody has a store open."""


class Change(NamedTuple):
    """What is to be done to a store while nobody has it open."""

    purpose: str
    make: Callable[[], None]


class OpenStore:
    """One opening of a store; `close` gives it back.

    Args:
        environment: What the process shares.
        seal: Makes and checks the checksums.
        codec: Encodes values.
    """

    def __init__(self, environment: Environment, seal: Seal, codec: Codec) -> None:
        self.environment = environment
        self.seal = seal
        self.codec = codec
        self._is_open = True

    def seal_anew(self, seal: Seal) -> None:
        """Close the store, and make every record of it one of *seal*.

        Raises:
            StoreBusyError: Someone else has it open.
        """
        path = self.environment.path
        if self.environment.readonly:
            raise _cannot_be_sealed(path)
        self.close()
        with keep_closed(path):
            record = _header_of_closed(path)
            fields = headers.read_header(record, path)
            # Someone may have been faster.
            headers.check_seal(record, fields, self.seal, path)
            headers.check_encryption(fields, self.seal, path, readonly=False)
            header = headers.header_of(seal, fields["created"], seal.encryption)
            seal_anew(path, header, seal, self.seal)

    def close(self) -> None:
        """Give the opening back; may be called again."""
        if self._is_open:
            self._is_open = False
            self.environment.close()


def open_store(
    path: str | os.PathLike[str],
    *,
    map_size: int = DEFAULT_MAP_SIZE,
    readonly: bool = False,
    lock: bool = True,
    codec: Codec | None = None,
    options: StoreOptions,
) -> OpenStore:
    """Open the store at *path*, or make it.

    Raises:
        StoreForeignError: It is sealed, or encrypted, under another key.
        StoreBusyError: It must be changed first, and someone has it open.
        StoreVersionError: Another release, or another engine, wrote it.
        StoreCorruptError: It is damaged.
    """
    wrapped = WrappedCodec(codec, options)
    key = options.trust if isinstance(options.trust, bytes) else store_key()
    seal = Seal(key, options.encryption_key)
    until = time.monotonic() + options.lock_timeout
    while True:
        environment = open_environment(
            path,
            lambda: [(HEADER, headers.new_header(seal))],
            map_size=map_size,
            readonly=readonly,
            lock=lock,
            options=options,
        )
        try:
            record = environment.read(_header(environment.databases))
            change = _change_needed(environment, record, seal, trusts=options.trust is True)
        except BaseException:
            environment.close()
            raise
        if change is None:
            return OpenStore(environment, seal, wrapped)
        environment.close()
        _change_closed(environment.path, record, change, options.lock_timeout, until)


def _header(databases: Mapping[bytes, Any]) -> Callable[[Any], bytes]:
    """Return what reads the header in a transaction."""
    return lambda transaction: transaction.get(HEADER, db=databases[b"meta"]) or b""


def _change_needed(
    environment: Environment, record: bytes, seal: Seal, *, trusts: bool
) -> Change | None:
    """Return what is to be done to a store before it is used as it is opened.

    Raises:
        StoreError: It cannot be used.
    """
    path, readonly = environment.path, environment.readonly
    fields = headers.read_header(record, path)
    is_foreign = trusts and fields["key"] != seal.id
    if is_foreign and readonly:
        raise _cannot_be_sealed(path)
    if not is_foreign:
        headers.check_seal(record, fields, seal, path)
    headers.check_encryption(fields, seal, path, readonly=readonly)
    header = headers.header_of(seal, fields["created"], fields.get("encryption"))
    if is_foreign:
        # Whoever asks for it trusts whoever wrote the store: nothing can be checked
        # without the other key, and what is sealed now is unpickled later.
        return Change("to be sealed anew", lambda: seal_anew(path, header, seal, None))
    if readonly or headers.is_current(fields):
        return None
    purpose = f"to become format {headers.FORMAT}, which earlier releases cannot read"
    return Change(purpose, lambda: _put_header(path, header))


def _change_closed(path: str, record: bytes, change: Change, timeout: float, until: float) -> None:
    """Make a *change* while nobody has the store open, unless its header has changed already.

    Raises:
        StoreBusyError: Someone has it open, and it is late.
    """
    try:
        with keep_closed(path):
            if _header_of_closed(path) == record:
                change.make()
    except StoreBusyError as error:
        if time.monotonic() > until:
            holder = f"{error.holder}, and is {change.purpose}"
            raise StoreBusyError(path, holder, timeout) from error
        # They may be about to do the same.
        time.sleep(_PAUSE)


def _header_of_closed(path: str) -> bytes:
    with ClosedStore(path, readonly=True) as store:
        return store.read(_header(store.databases))


def _put_header(path: str, header: bytes) -> None:
    """Say in the header of an older store that this release may write to it now."""
    with ClosedStore(path) as store:
        meta = store.databases[b"meta"]
        store.write(lambda transaction: transaction.put(HEADER, header, db=meta))


def _cannot_be_sealed(path: str) -> StoreReadOnlyError:
    return StoreReadOnlyError(
        f"{path} cannot be sealed anew with readonly=True; open it to be written"
    )
