"""The file of a store that nobody has open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

from flowpregel._lmdb import engine, failures

Result = TypeVar("Result")


class ClosedStore:
    """The file of a store that is kept closed to all others.

    Args:
        path: The store's folder.
        draft: The folder of a file that will take the place of the store's.
        map_size: The bytes the map begins with.
        readonly: Only read.
    """

    def __init__(
        self, path: str, *, draft: str = "", map_size: int = 0, readonly: bool = False
    ) -> None:
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        self.path = path
        size = max(map_size, engine.SMALLEST_MAP)
        try:
            self.lmdb = engine.connect(draft or path, size, readonly=readonly, lock=not readonly)
            self.databases: dict[bytes, Any] = {
                name: self.lmdb.open_db(name, create=False) for name in engine.DATABASES
            }
        except lmdb.Error as error:
            raise failures.translated(error, path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.lmdb.close()

    def read(self, work: Callable[[Any], Result]) -> Result:
        """Return ``work(transaction)`` of one read transaction."""
        with self.lmdb.begin() as transaction:
            return work(transaction)

    def write(self, work: Callable[[Any], Result]) -> Result:
        """Return ``work(transaction)`` of one write transaction; it may be called again."""
        import lmdb  # noqa: PLC0415 - heavy, needed only by those who use a store

        while True:
            try:
                with self.lmdb.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self.lmdb.set_mapsize(2 * self.lmdb.info()["map_size"])
            except lmdb.Error as error:
                raise failures.translated(error, self.path) from error

    def size(self) -> int:
        """Return the bytes of its file that are in use."""
        pages: int = self.lmdb.info()["last_pgno"] + 1
        return pages * int(self.lmdb.stat()["psize"])
