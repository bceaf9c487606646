"""The folder of a store: created whole or not at all, and checked before it is trusted.

A store may come from somebody else: no link in it is followed, and nothing in it is
made or changed before it is known to be ours.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob
from typing import Any, BinaryIO, NamedTuple

import lmdb

from flowpregel._urls import check_folder
from flowpregel.errors import StoreCorruptError, StoreError, StoreVersionError
from flowpregel.storage.errors import DATA, named, of_commit
from flowpregel.storage.file_systems import LOCAL, file_system
from flowpregel.storage.locks import open_file
from flowpregel.storage.records import DATABASES, HEADER

READER_TABLE, WRITE_LOCK, PRESENCE = "lock.mdb", "write.lock", "open.lock"
ENGINE = 0
"""The major version of LMDB whose format we write; py-lmdb ships two."""
SMALLEST_MAP = 1 << 20
READERS = 1024
_READER_TABLE_SIZE = (READERS + 2) * 64
"""Bytes that LMDB maps of it."""
_BALLAST, _BALLAST_SIZE = "ballast", 128 << 10
DRAFT = ".compact."
"""What the name of a folder inside a store's begins with, where new data are made."""
_ABANDONED = 60.0
"""Seconds after which an unlocked draft was left by a process that was killed."""
_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xII16xI92xQQ")
"""Magic, format, page size (which LMDB keeps in the first database's md_pad), last page
in use, the transaction that wrote it.
"""
_NEWER_META = struct.Struct("<24xII")  # LMDB 1.0 has a longer page header
_FORMAT = 1  # LMDB 0.9; 1.0 writes 3


# ---------------------------------------------------------------- the folder


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the one path that all names of a folder share.

    Raises:
        ConfigurationError: It is a URL.
        StoreError: The path is a file, leads through one, or goes in circles.
    """
    check_folder(path)
    found = os.path.realpath(path)
    with named(found):
        if os.path.lexists(found) and not stat.S_ISDIR(os.stat(found).st_mode):
            raise StoreError(
                f"{found} is a file; a store is a folder: give the path of one"
            )
    return found


def exists(folder: str) -> bool:
    """Return whether there is a store in *folder*."""
    with named(folder), suppress(FileNotFoundError):
        os.stat(os.path.join(folder, DATA))
        return True
    return False


def refuse_network(folder: str) -> None:
    """Refuse a folder on a file system that is not known to be local: LMDB loses data
    on others.

    Raises:
        StoreError: It is on one; the message says how to allow it.
    """
    kind = file_system(folder)
    if kind not in LOCAL:
        raise StoreError(
            f"{folder} is on a file system ({kind or 'of unknown type'}) that is not "
            "known to be "
            "local, and LMDB loses data on network file systems; keep the store on a "
            "local disk, "
            "or pass StoreOptions(allow_network=True)"
        )


def close_to_others(folder: str) -> None:
    """Let only their owner use *folder* and what is in it, where that is ours to
    say.
    """
    for path in (folder, *(os.path.join(folder, name) for name in os.listdir(folder))):
        status = os.lstat(path)
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        is_ours = status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)
        if is_ours and stat.S_IMODE(status.st_mode) != wanted:
            os.chmod(path, wanted)


def sync(path: str) -> None:
    """Make sure that what *path* (a file or a folder) holds is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_ballast(folder: str) -> None:
    """Put a file beside the data that only takes up room, if there is room for it.

    On a full disk even a deletion needs some; `drop_ballast` gives it.
    """
    path = os.path.join(folder, _BALLAST)
    with suppress(OSError):  # it is there, or nothing can be made here
        file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(file, "wb", buffering=0) as ballast:
            try:
                # no file system makes less of that
                ballast.write(os.urandom(_BALLAST_SIZE))
            except OSError:  # the disk is full already
                os.unlink(path)


def drop_ballast(folder: str) -> bool:
    """Give the room of the ballast back; return whether there was any."""
    with suppress(OSError):
        os.unlink(os.path.join(folder, _BALLAST))
        return True
    return False


# ---------------------------------------------------------------- made whole


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
                f"{folder} is not a store and has other files in it; give an empty or "
                "new folder"
            )
        os.makedirs(parent, exist_ok=True)
        with draft_in(parent, f".{name}.new.", _ABANDONED) as draft:
            os.chmod(draft, 0o700)
            fill(draft)
            for file in os.listdir(draft):
                sync(os.path.join(draft, file))
            sync(draft)
            try:
                os.rename(draft, folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not exists(
                    folder
                ):
                    raise
                return False
            sync(parent)
    return True


@contextmanager
def draft_in(parent: str, prefix: str, abandoned: float = 0.0) -> Iterator[str]:
    """Give a new folder whose name begins with *prefix*, for what will take another's
    place.

    Those that killed processes left are removed: nobody holds them, for *abandoned*
    seconds.
    """
    # None where the folder may be written to and not be listed.
    for path in glob(escape(os.path.join(parent, prefix)) + "*"):
        with suppress(OSError):
            held = os.open(
                path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
            )
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(held).st_mtime >= abandoned:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(held)
    draft = tempfile.mkdtemp(prefix=prefix, dir=parent)
    held = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield draft
    finally:
        os.close(held)
        shutil.rmtree(draft, ignore_errors=True)


def put_in_place(draft: str, folder: str) -> None:
    """Let the data in the folder *draft* take the place of the store's, in one step."""
    made = os.path.join(draft, DATA)
    sync(made)
    os.replace(made, os.path.join(folder, DATA))
    sync(folder)


def fill_draft(draft: str, header: bytes) -> None:
    """Make a store with its databases and a *header* in the folder *draft*."""
    try:
        with open_lmdb(draft, SMALLEST_MAP, readonly=False, lock=True) as env:
            for name in DATABASES:
                env.open_db(name)
            with env.begin(write=True, db=env.open_db(b"meta")) as transaction:
                transaction.put(HEADER, header)
    except lmdb.Error as error:
        raise of_commit(error, draft) from error
    close_to_others(draft)


def open_lmdb(path: str, map_size: int, *, readonly: bool, lock: bool) -> Any:
    """Return LMDB's own environment at *path*, opened as we open it everywhere.

    With LMDB's default flags: without ``sync`` or ``metasync`` a power cut loses
    acknowledged commits; with ``writemap`` a full disk ends the interpreter.
    """
    # Without it a commit keeps the GIL while the disk syncs: nobody could join its
    # group.
    lmdb.enable_drop_gil()
    if lock:
        _allocate_reader_table(path, readonly=readonly)
    return lmdb.open(
        path,
        map_size=map_size,
        max_dbs=16,
        max_readers=READERS,
        mode=0o600,
        lib_version=ENGINE,
        create=not readonly,
        readonly=readonly,
        lock=lock,
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


# ---------------------------------------------------------------- what is damaged


class _Meta(NamedTuple):
    """What a meta page says: LMDB keeps two, and writes them in turn."""

    page_size: int
    last_page: int
    transaction: int


def check_files(folder: str, *, pages: bool = False, readonly: bool = False) -> None:
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
    with named(folder), open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        before, metas = None, _metas(file, path)
        while not _in_turn(*metas):
            # Unless someone has just committed, between our looks at the one and the
            # other.
            if before == metas:
                raise StoreCorruptError(
                    f"{path} is damaged: its meta pages say that they were written by "
                    f"transactions {metas[0].transaction} and {metas[1].transaction}; "
                    "restore a backup"
                )
            before, metas = metas, _metas(file, path)
        size = os.fstat(file.fileno()).st_size
    needed = max((meta.last_page + 1) * meta.page_size for meta in metas)
    # Pages at the end that a transaction took and gave back are counted, and never
    # written.
    is_short = size < needed
    if (is_short or pages) and (found := unsound_pages(folder)):
        what = f"is damaged: {found[0]} ({len(found)} problems)"
        if is_short:
            what = f"is cut off: it has {size} bytes of {needed}"
        raise StoreCorruptError(f"{path} {what}; restore a backup")
    if is_short and not readonly:
        # The verifier accepts a large value that is cut off: its checksum must refuse
        # it.
        with named(folder):
            os.truncate(path, needed)


def unsound_pages(folder: str) -> list[str]:
    """Return what is wrong with the pages of a store's file; nobody must write
    meanwhile.
    """
    from lmdb.verify import VerifyError, verify  # noqa: PLC0415 - heavy, seldom used

    try:
        return list(verify(folder))  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]


def _metas(file: BinaryIO, path: str) -> tuple[_Meta, _Meta]:
    """Return what the two meta pages of a file say."""
    first = _meta(file, 0, path)
    return first, _meta(file, first.page_size, path)


def _meta(file: BinaryIO, at: int, path: str) -> _Meta:
    """Return what a meta page says, after seeing that it is one."""
    file.seek(at)
    head = file.read(_META.size)
    if len(head) < _META.size:
        raise StoreCorruptError(
            f"{path} is cut off: it has no two meta pages; restore a backup"
        )
    magic, version, page, last, transaction = _META.unpack(head)
    if magic != _MAGIC:
        magic, version = _NEWER_META.unpack_from(head)
    if magic != _MAGIC:
        raise StoreCorruptError(
            f"{path} is damaged, or no store: it does not begin like one"
        )
    if version != _FORMAT:
        raise StoreVersionError(
            f"{path} was written by another LMDB engine (data format {version}, not "
            f"{_FORMAT}); "
            "it was not touched: open it with the release that wrote it"
        )
    if page < 512 or page > 65536 or page & (page - 1):
        raise StoreCorruptError(f"{path} is damaged: it gives its page size as {page}")
    return _Meta(page, last, transaction)


def _in_turn(even: _Meta, odd: _Meta) -> bool:
    """Return whether two meta pages were written by transactions that follow each
    other.
    """
    if even.transaction == odd.transaction == 0:  # as LMDB makes them
        return True
    return even.transaction % 2 == 0 and abs(even.transaction - odd.transaction) == 1
