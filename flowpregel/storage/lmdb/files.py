"""The folder of a store: created whole or not at all, and checked before it is opened.

A store may come from another user: no link in it is followed, and nothing in it is
made or changed before it is known to be ours.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import lmdb

from flowpregel._urls import check_folder
from flowpregel.errors import StoreCorruptError, StoreError, StoreVersionError
from flowpregel.storage.drafts import ABANDONED, draft_in, sync
from flowpregel.storage.errors import named
from flowpregel.storage.lmdb.errors import DATA, of_commit
from flowpregel.storage.locks import open_file
from flowpregel.storage.records import HEADER, TABLE_NAMES

READER_TABLE = "lock.mdb"
WRITE_LOCK = "write.lock"
OPEN_LOCK = "open.lock"
ENGINE = 0
"""The major version of LMDB whose format we write; py-lmdb ships two."""
SMALLEST_MAP = 1 << 20
READERS = 1024
_READER_TABLE_SIZE = (READERS + 2) * 64
"""Bytes that LMDB maps of it."""
_BALLAST = "ballast"
_BALLAST_SIZE = 128 << 10
DRAFT = ".compact."
"""The prefix of a folder in a store's folder, in which new data are made."""
_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xII16xI92xQQ")
"""Magic, format, page size (which LMDB keeps in the first database's md_pad), last page
in use, and the transaction that wrote the page.
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
    real = os.path.realpath(path)
    with named(real):
        if os.path.lexists(real) and not stat.S_ISDIR(os.stat(real).st_mode):
            raise StoreError(
                f"{real} is a file; a store is a folder: give the path of one"
            )
    return real


def exists(folder: str) -> bool:
    """Return True if there is a store in *folder*."""
    with named(folder), suppress(FileNotFoundError):
        os.stat(os.path.join(folder, DATA))
        return True
    return False


def close_to_others(folder: str) -> None:
    """Let only their owner use *folder* and the files in it that are this user's."""
    names = os.listdir(folder)
    for path in (folder, *(os.path.join(folder, name) for name in names)):
        status = os.lstat(path)
        mode = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        is_ours = status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)
        if is_ours and stat.S_IMODE(status.st_mode) != mode:
            os.chmod(path, mode)


def make_ballast(folder: str) -> None:
    """Put a file beside the data that only takes up room, if there is room for it.

    On a full disk even a deletion needs room; `drop_ballast` makes it.
    """
    path = os.path.join(folder, _BALLAST)
    with suppress(OSError):  # it is there, or this user may make no file here
        file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(file, "wb", buffering=0) as ballast:
            try:
                # Random, so that no file system compresses it.
                ballast.write(os.urandom(_BALLAST_SIZE))
            except OSError:  # the disk is full already
                os.unlink(path)


def drop_ballast(folder: str) -> bool:
    """Give the room of the ballast back; return True if there was any."""
    with suppress(OSError):
        os.unlink(os.path.join(folder, _BALLAST))
        return True
    return False


# ---------------------------------------------------------------- drafts


def create(folder: str, fill: Callable[[str], None]) -> bool:
    """Make *folder* with the files that *fill* puts into a draft of it, in one step.

    A crash leaves either nothing or the whole. Of two processes that create the same
    store, one succeeds and the other, which gets False, can use that store.

    Raises:
        StoreError: *folder* has other files in it.
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
        with draft_in(parent, f".{name}.new.", ABANDONED) as draft:
            os.chmod(draft, 0o700)
            fill(draft)
            for file in os.listdir(draft):
                sync(os.path.join(draft, file))
            sync(draft)
            try:
                os.rename(draft, folder)
            except OSError as error:
                is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
                if not is_taken or not exists(folder):
                    raise
                return False
            sync(parent)
    return True


def put_in_place(draft: str, folder: str) -> None:
    """Put the data of *draft* in the place of the data of *folder*, in one step."""
    data = os.path.join(draft, DATA)
    sync(data)
    os.replace(data, os.path.join(folder, DATA))
    sync(folder)


def fill_draft(draft: str, header: bytes) -> None:
    """Make a store with its databases and a *header* in the folder *draft*."""
    try:
        with open_lmdb(draft, SMALLEST_MAP, readonly=False, lock=True) as env:
            for name in TABLE_NAMES:
                env.open_db(name)
            with env.begin(write=True, db=env.open_db(b"meta")) as transaction:
                transaction.put(HEADER, header)
    except lmdb.Error as error:
        raise of_commit(error, draft) from error
    close_to_others(draft)


def open_lmdb(
    path: str,
    map_size: int,
    *,
    readonly: bool,
    lock: bool,
) -> Any:
    """Return LMDB's own environment at *path*.

    It has LMDB's default flags: without ``sync`` or ``metasync`` a power cut loses
    acknowledged commits; with ``writemap`` a full disk ends the interpreter.
    """
    # Otherwise a commit keeps the GIL while the disk syncs: no other OS thread could
    # join its group.
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
    path = os.path.join(folder, READER_TABLE)
    with named(folder):
        try:
            file = open_file(path, os.O_RDWR | os.O_CREAT)
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


# ---------------------------------------------------------------- damage


class _Meta(NamedTuple):
    """The numbers in a meta page: LMDB keeps two, and writes them in turn."""

    page_size: int
    last_page: int
    transaction: int


def check_files(
    folder: str,
    *,
    pages: bool = False,
    readonly: bool = False,
) -> None:
    """Refuse a store that LMDB would misread, or that would end the process.

    LMDB opens a file that was cut off, and the process gets SIGBUS at the first read;
    it takes an empty file for a new store; and where the number in its newer meta page
    is damaged, it goes back by one transaction.

    Args:
        folder: The folder of the store.
        pages: Check every page; the caller must keep other writers out.
        readonly: Do not change the file.

    Raises:
        StoreCorruptError: The file is shorter than it says, damaged, or no LMDB file.
        StoreVersionError: It has the format of another engine.
    """
    path = os.path.join(folder, DATA)
    with named(folder), open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        metas = _metas_in_turn(file, path)
        size = os.fstat(file.fileno()).st_size
    needed = max((meta.last_page + 1) * meta.page_size for meta in metas)
    # LMDB counts pages at the end that a transaction took and gave back, and never
    # writes them.
    is_short = size < needed
    problems = unsound_pages(folder) if is_short or pages else []
    if problems:
        problem = f"is damaged: {problems[0]} ({len(problems)} problems)"
        if is_short:
            problem = f"is cut off: it has {size} bytes of {needed}"
        raise StoreCorruptError(f"{path} {problem}; restore a backup")
    if is_short and not readonly:
        # The verifier accepts a large value that is cut off: its checksum must refuse
        # it.
        with named(folder):
            os.truncate(path, needed)


def _metas_in_turn(file: BinaryIO, path: str) -> tuple[_Meta, _Meta]:
    """Return the two meta pages of a file.

    Raises:
        StoreCorruptError: They were not written by two transactions in a row.
    """
    metas = _metas(file, path)
    while not _in_turn(*metas):
        earlier = metas
        metas = _metas(file, path)
        # If a commit came between the two reads, the second look finds other pages.
        if earlier == metas:
            raise StoreCorruptError(
                f"{path} is damaged: its meta pages say that they were written by "
                f"transactions {metas[0].transaction} and {metas[1].transaction}; "
                "restore a backup"
            )
    return metas


def unsound_pages(folder: str) -> list[str]:
    """Return the problems of the pages of a store's file.

    The caller must keep other writers out.
    """
    from lmdb.verify import VerifyError, verify  # noqa: PLC0415 - heavy, seldom used

    try:
        return list(verify(folder))  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]


def _metas(file: BinaryIO, path: str) -> tuple[_Meta, _Meta]:
    """Return the two meta pages of a file."""
    first = _meta(file, 0, path)
    return first, _meta(file, first.page_size, path)


def _meta(
    file: BinaryIO,
    position: int,
    path: str,
) -> _Meta:
    """Return the numbers in a meta page, or refuse bytes that are none."""
    file.seek(position)
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
            f"{_FORMAT}); it was not touched: open it with the release that wrote it"
        )
    if page < 512 or page > 65536 or page & (page - 1):
        raise StoreCorruptError(f"{path} is damaged: it gives its page size as {page}")
    return _Meta(page, last, transaction)


def _in_turn(even: _Meta, odd: _Meta) -> bool:
    """Return True if two meta pages were written by two transactions in a row."""
    if even.transaction == odd.transaction == 0:  # as LMDB makes them
        return True
    return even.transaction % 2 == 0 and abs(even.transaction - odd.transaction) == 1
