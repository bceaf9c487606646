"""A store that is open: its environment, its seal and its codec."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import Any

from flowpregel._lmdb.codec import Codec, StoreCodec
from flowpregel._lmdb.environment import Environment, open_environment
from flowpregel._lmdb.header import Header, store_key
from flowpregel._lmdb.maintenance import header_of_closed, keep_closed, seal_anew
from flowpregel._lmdb.mapped import HEADER
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel._lmdb.records import Seal, Table
from flowpregel.errors import StoreBusyError, StoreReadOnlyError

_PAUSE = 0.02
"""Seconds before the next try to find a store that nobody has open."""


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

    def table(self, name: bytes) -> Table:
        """Return the database that has *name*."""
        return Table(name, self.environment, self.seal)

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
            record = header_of_closed(path)
            header = Header.read(record, path)
            # Someone may have been faster.
            header.check(record, self.seal, path)
            header.check_encryption(self.seal, path, readonly=False)
            new = replace(header, key=seal.id, encryption=seal.encryption)
            seal_anew(path, new.to_bytes(seal), seal, self.seal)

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
        StoreBusyError: It must be sealed anew first, and someone has it open.
        StoreVersionError: Another release, or another engine, wrote it.
        StoreCorruptError: It is damaged.
    """
    wrapped = StoreCodec(codec, compression=options.compression)
    key = options.trust if isinstance(options.trust, bytes) else store_key()
    seal = Seal(key, options.encryption_key)
    until = time.monotonic() + options.lock_timeout
    while True:
        environment = open_environment(
            path,
            lambda: Header.new(seal).to_bytes(seal),
            map_size=map_size,
            readonly=readonly,
            lock=lock,
            options=options,
        )
        try:
            record = environment.read(partial(_header_in, environment.databases[b"meta"]))
            header = Header.read(record, environment.path)
            trusted = options.trust is True and header.key != seal.id
            _check(environment, record, header, seal, trusted=trusted)
        except BaseException:
            environment.close()
            raise
        if not trusted:
            return OpenStore(environment, seal, wrapped)
        environment.close()
        _take_over(environment.path, record, replace(header, key=seal.id), seal, until)


def _check(
    environment: Environment, record: bytes, header: Header, seal: Seal, *, trusted: bool
) -> None:
    """Refuse a store that cannot be used with *seal*; *trusted*: it will be sealed anew."""
    if not trusted:
        header.check(record, seal, environment.path)
    elif environment.readonly:
        raise _cannot_be_sealed(environment.path)
    header.check_encryption(seal, environment.path, readonly=environment.readonly)


def _take_over(path: str, record: bytes, header: Header, seal: Seal, until: float) -> None:
    """Seal a store of somebody else anew, unless its header has changed already.

    With ``trust=True`` the user trusts whoever wrote it: nothing can be checked
    without the other key, and what is sealed now is unpickled later.

    Raises:
        StoreBusyError: Someone has it open, and it is late.
    """
    try:
        with keep_closed(path):
            if header_of_closed(path) == record:
                seal_anew(path, header.to_bytes(seal), seal, None)
    except StoreBusyError as error:
        if time.monotonic() > until:
            raise StoreBusyError(path, f"{error.holder}, and is to be sealed anew", 0.0) from error
        time.sleep(_PAUSE)  # they may be about to do the same


def _header_in(meta: Any, transaction: Any) -> bytes:
    return transaction.get(HEADER, db=meta) or b""


def _cannot_be_sealed(path: str) -> StoreReadOnlyError:
    return StoreReadOnlyError(
        f"{path} cannot be sealed anew with readonly=True; open it to be written"
    )
