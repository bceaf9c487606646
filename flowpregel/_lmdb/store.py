"""A store that is open: its environment, its seal and its codec."""

from __future__ import annotations

import os
from typing import Any

from flowpregel._lmdb.adopt import adopt
from flowpregel._lmdb.codec import Codec
from flowpregel._lmdb.environment import Environment, open_environment
from flowpregel._lmdb.options import DEFAULT_MAP_SIZE, StoreOptions
from flowpregel._lmdb.seal import HEADER, Seal, check_header, is_current, new_header, store_key
from flowpregel._lmdb.wrapping import WrappedCodec
from flowpregel.errors import StoreForeignError


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
        StoreForeignError: It is sealed under another key.
        StoreVersionError: Another release, or another engine, wrote it.
        StoreCorruptError: It is damaged.
    """
    wrapped = WrappedCodec(codec, options)
    key = options.trust if isinstance(options.trust, bytes) else store_key()
    seal = Seal(key, options.encryption_key)
    environment = open_environment(
        path,
        lambda: [(HEADER, new_header(seal))],
        map_size=map_size,
        readonly=readonly,
        lock=lock,
        options=options,
    )
    try:
        meta = environment.databases[b"meta"]

        def header(transaction: Any) -> bytes | None:
            found: bytes | None = transaction.get(HEADER, db=meta)
            return found

        try:
            fields = check_header(environment.read(header), seal, environment.path)
            if not readonly and not is_current(fields):
                _renew(environment, new_header(seal, fields["created"]), options)
        except StoreForeignError:
            if options.trust is not True:
                raise
            adopt(environment, seal, options.lock_timeout)
    except BaseException:
        environment.close()
        raise
    return OpenStore(environment, seal, wrapped)


def _renew(environment: Environment, header: bytes, options: StoreOptions) -> None:
    """Say in the header of an older store that this release may write to it now."""
    meta = environment.databases[b"meta"]
    environment.write(
        lambda transaction: transaction.put(HEADER, header, db=meta), timeout=options.lock_timeout
    )
