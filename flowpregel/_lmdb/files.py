"""The folder of a store: created whole or not at all, and checked before it is trusted."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import lmdb

from flowpregel._lmdb.errors import DATA, named, of_commit
from flowpregel._lmdb.folders import open_file
from flowpregel.errors import StoreCorruptError, StoreError, StoreVersionError

READER_TABLE = "lock.mdb"
WRITE_LOCK = "write.lock"
PRESENCE = "open.lock"
ENGINE = 0
"""The major version of LMDB whose format we write; py-lmdb ships two."""
DATABASES = (
    b"meta", b"threads", b"checkpoints", b"values", b"deltas", b"writes", b"store", b"cache",
)  # fmt: skip
HEADER = b"header"
"""Its key in ``meta``."""
SMALLEST_MAP = 1 << 20
READERS = 1024
_READER_TABLE_SIZE = (READERS + 2) * 64
"""Bytes that LMDB maps of it."""
_BALLAST = "ballast"
_BALLAST_SIZE = 128 << 10
_DRAFT_INSIDE = ".compact."
_ABANDONED = 60.0
"""Seconds after which an unlocked draft was left by a process that was killed."""
_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xII16xI92xQQ")
"""Magic, format, page size (which LMDB keeps in the first database's md_pad), last page in use,
the transaction that wrote it."""
_NEWER_META = struct.Struct("<24xII")  # LMDB 1.0 has a longer page header
_FORMAT = 1  # LMDB 0.9; 1.0 writes 3


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the one path that all names of a folder share.

    Raises:
        StoreError: The path is a file, leads through one, or goes in circles.
    """
    found = os.path.realpath(path)
    with named(found):
        is_folder = not os.path.lexists(found) or stat.S_ISDIR(os.stat(found).st_mode)
    if not is_folder:
        raise StoreError(f"{found} is a file; a store is a folder: give the path of one")
    return found


def exists(folder: str) -> bool:
    """Return whether there is a store in *folder*."""
    with named(folder):
        try:
            os.stat(os.path.join(folder, DATA))
        except FileNotFoundError:
            return False
    return True


def connect(path: str, map_size: int, *, readonly: bool, lock: bool) -> Any:
    """Return LMDB's own environment at *path*, opened as we open it everywhere.

    With LMDB's default flags: without ``sync`` or ``metasync`` a power cut loses
    acknowledged commits; with ``writemap`` a full disk ends the interpreter.
    """
    # Without it a commit keeps the GIL while the disk syncs: nobody could join its group.
    lmdb.enable_drop_gil()
    if lock:
        _allocate_reader_table(path, readonly=readonly)
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


def _allocate_reader_table(folder: str, *, readonly: bool) -> None:
    """Give LMDB's lock file its room on disk.

    LMDB makes it as one hole and maps it: on a full disk the first write to it ends the
    interpreter.
    """
    with named(folder):
        try:
            file = open_file(os.path.join(folder, READER_TABLE), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if readonly and error.errno == errno.EROFS:
                return  # LMDB does without it there
            raise
        try:
            room = os.fstat(file).st_blocks * 512
            if room < _READER_TABLE_SIZE and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, _READER_TABLE_SIZE)
        finally:
            os.close(file)


def fill(draft: str, header: bytes) -> None:
    """Make a store with its databases and a *header* in the folder *draft*."""
    try:
        with connect(draft, SMALLEST_MAP, readonly=False, lock=True) as env:
            for name in DATABASES:
                env.open_db(name)
            with env.begin(write=True, db=env.open_db(b"meta")) as transaction:
                transaction.put(HEADER, header)
    except lmdb.Error as error:
        raise of_commit(error, draft) from error
    close_to_others(draft)


def create(folder: str, fill: Callable[[str], None]) -> bool:
    """Make *folder* with what *fill* puts into the folder it is given, in one step.

    A crash leaves either nothing or the whole. Of two processes that create
    the same store, one wins and the other, which is told False, can use it.

    Raises:
        StoreError: *folder* has something else in it.
        StoreReadOnlyError: It cannot be made there.
        StoreFullError: There is no room.
    """
    parent, name = os.path.split(folder)
    with named(folder):
        if os.path.isdir(folder) and os.listdir(folder):
            if exists(folder):
                return False
            raise StoreError(
                f"{folder} is not a store and has other files in it; give an empty or new folder"
            )
        os.makedirs(parent, exist_ok=True)
        _drop_abandoned(parent, f".{name}.", ".new")
        draft = tempfile.mkdtemp(prefix=f".{name}.", suffix=".new", dir=parent)
        held = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            os.chmod(draft, 0o700)
            fill(draft)
            for file in os.listdir(draft):
                sync(os.path.join(draft, file))
            sync(draft)
            try:
                os.rename(draft, folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not exists(folder):
                    raise
                return False
            sync(parent)
        finally:
            os.close(held)
            shutil.rmtree(draft, ignore_errors=True)
    return True


def _drop_abandoned(parent: str, prefix: str, suffix: str) -> None:
    """Remove the drafts that killed processes left: those whose maker holds them no more."""
    names: list[str] = []
    with suppress(OSError):  # a folder may be written to and not be listed
        names = os.listdir(parent)
    for name in names:
        if not (name.startswith(prefix) and name.endswith(suffix)):
            continue
        path = os.path.join(parent, name)
        with suppress(OSError):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(held).st_mtime > _ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(held)


@contextmanager
def draft_inside(folder: str) -> Iterator[str]:
    """Give an empty folder inside a store's, for a file that will take the place of its own.

    Who calls this keeps all others out, so what is there of the kind was left by
    a process that was killed, and is removed.
    """
    for name in os.listdir(folder):
        if name.startswith(_DRAFT_INSIDE):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_DRAFT_INSIDE, dir=folder) as draft:
        yield draft


def put_in_place(draft: str, folder: str) -> None:
    """Let the data in the folder *draft* take the place of the store's, in one step."""
    made = os.path.join(draft, DATA)
    sync(made)
    os.replace(made, os.path.join(folder, DATA))
    sync(folder)


def sync(path: str) -> None:
    """Make sure that what *path* (a file or a folder) holds is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Meta(NamedTuple):
    """What a meta page says: LMDB keeps two, and writes them in turn."""

    page: int
    """The page size."""
    last: int
    """The last page in use."""
    transaction: int
    """The number of the transaction that wrote it."""


def check(folder: str, *, pages: bool = False, readonly: bool = False) -> None:
    """Refuse a store that LMDB would misread, or die of.

    LMDB opens a file that was cut off, and the process gets SIGBUS at the
    first read; it takes an empty file for a new store; and where the number in
    its newer meta page is damaged, it goes back by one transaction.

    Args:
        folder: The store's.
        pages: Look at every page; nobody must write meanwhile.
        readonly: Do not change the file.

    Raises:
        StoreCorruptError: The file is shorter than it says, damaged, or no LMDB file.
        StoreVersionError: It has the format of another engine.
    """
    path = os.path.join(folder, DATA)
    with named(folder):
        size, metas = _metas(path)
        while not _in_turn(metas):
            before = metas
            size, metas = _metas(path)
            # Unless someone has just committed, between our looks at the one and the other.
            if before == metas:
                raise StoreCorruptError(
                    f"{path} is damaged: its meta pages say that they were written by "
                    f"transactions {metas[0].transaction} and {metas[1].transaction}; "
                    "restore a backup"
                )
    needed = max((meta.last + 1) * meta.page for meta in metas)
    # Pages at the end that a transaction took and gave back are counted, and never written.
    if size < needed:
        if unsound_pages(folder):
            raise StoreCorruptError(
                f"{path} is cut off: it has {size} bytes of {needed}; restore a backup"
            )
        if not readonly:
            # The verifier accepts a large value that is cut off: its checksum must refuse it.
            with named(folder):
                os.truncate(path, needed)
    if pages and (found := unsound_pages(folder)):
        more = f", and {len(found) - 1} problems more" if len(found) > 1 else ""
        raise StoreCorruptError(f"{path} is damaged: {found[0]}{more}; restore a backup")


def unsound_pages(folder: str) -> list[str]:
    """Return what is wrong with the pages of a store's file; nobody must write meanwhile."""
    from lmdb.verify import VerifyError, verify  # noqa: PLC0415 - heavy, seldom used

    try:
        return list(verify(folder))  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]


def _metas(path: str) -> tuple[int, tuple[_Meta, _Meta]]:
    """Return the size of a file, and its meta pages."""
    with open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        first = _read_meta(file.read(_META.size), path, size)
        file.seek(first.page)
        return size, (first, _read_meta(file.read(_META.size), path, size))


def _in_turn(metas: tuple[_Meta, _Meta]) -> bool:
    """Return whether two meta pages were written by transactions that follow each other."""
    even, odd = metas[0].transaction, metas[1].transaction
    if even == odd == 0:  # as LMDB makes them
        return True
    return even % 2 == 0 and odd % 2 == 1 and abs(even - odd) == 1


def _read_meta(head: bytes, path: str, size: int) -> _Meta:
    """Return what a meta page says, after seeing that it is one."""
    if len(head) < _META.size:
        raise StoreCorruptError(f"{path} is cut off: it has only {size} bytes; restore a backup")
    magic, version, page, last, transaction = _META.unpack(head)
    if magic != _MAGIC:
        magic, version = _NEWER_META.unpack_from(head)
    if magic != _MAGIC:
        raise StoreCorruptError(f"{path} is damaged, or no store: it does not begin like one")
    if version != _FORMAT:
        raise StoreVersionError(
            f"{path} was written by another LMDB engine (data format {version}, not {_FORMAT}); "
            "it was not touched: open it with the release that wrote it"
        )
    if page < 512 or page > 65536 or page & (page - 1):
        raise StoreCorruptError(f"{path} is damaged: it gives its page size as {page}")
    return _Meta(page, last, transaction)


def check_keys(env: Any, databases: Mapping[bytes, Any], folder: str) -> None:
    """Refuse a database with an empty key, which LMDB's verifier accepts.

    There can be none; where a damaged page has one, a record is not found any more.
    """
    with env.begin() as transaction:
        for name, database in databases.items():
            with transaction.cursor(db=database) as cursor:
                if cursor.first() and not cursor.key():
                    raise StoreCorruptError(
                        f"{os.path.join(folder, DATA)} is damaged: {name.decode()} has a record "
                        "without a key; restore a backup"
                    )


def make_ballast(folder: str) -> None:
    """Put a file beside the data that only takes up room, if there is room for it.

    On a full disk even a deletion needs some; `drop_ballast` gives it.
    """
    path = os.path.join(folder, _BALLAST)
    try:
        file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError:  # it is there, or nothing can be made here
        return
    try:
        os.write(file, os.urandom(_BALLAST_SIZE))  # no file system makes less of that
    except OSError:  # the disk is full already
        os.unlink(path)
    finally:
        os.close(file)


def drop_ballast(folder: str) -> bool:
    """Give the room of the ballast back; return whether there was any."""
    try:
        os.unlink(os.path.join(folder, _BALLAST))
    except OSError:
        return False
    return True


def close_to_others(folder: str) -> None:
    """Let only their owner use *folder* and what is in it, where that is ours to say."""
    for path in (folder, *(os.path.join(folder, name) for name in os.listdir(folder))):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
            continue
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        if stat.S_IMODE(status.st_mode) != wanted:
            os.chmod(path, wanted)
