"""The folder of a store, which is created in one step and checked before it is opened.

A store may come from another user. So no link in the folder is followed, and nothing in
it is created or changed before the owner of the folder has been checked.
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
from flowpregel.storage.drafts import draft_in, sync_path
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.lmdb.errors import DATA, of_commit
from flowpregel.storage.locks import open_file
from flowpregel.storage.records import HEADER, TABLE_NAMES

READER_TABLE = "lock.mdb"
WRITE_LOCK = "write.lock"
OPEN_LOCK = "open.lock"
ENGINE = 0
"""The major version of LMDB whose format we write. py-lmdb contains two versions."""
SMALLEST_MAP = 1 << 20
READERS = 1024
_READER_TABLE_SIZE = (READERS + 2) * 64
"""The number of bytes of the reader table that LMDB maps."""
DRAFT = ".compact."
"""The prefix of the name of a folder in which a new data file is built, inside the
store's folder.
"""
_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xII16xI92xQQ")
"""The layout of a meta page: magic, format, page size (which LMDB keeps in the first
database's md_pad), last page in use, and the transaction that wrote the meta page.
"""
# The same numbers in LMDB 1.0, whose page header is longer.
_NEWER_META = struct.Struct("<24xII")
_FORMAT = 1  # The format of LMDB 0.9. That of LMDB 1.0 is 3.


# ---------------------------------------------------------------- the folder


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the canonical path of a folder, without symbolic links.

    Raises:
        ConfigurationError: *path* is a URL.
        StoreError: *path* is a file, leads through a file, or its links form a cycle.
    """
    check_folder(path)
    real = os.path.realpath(path)
    with translate_os_errors(real):
        if os.path.lexists(real) and not stat.S_ISDIR(os.stat(real).st_mode):
            raise StoreError(
                f"{real} is a file; a store is a folder: give the path of one, or, for "
                f"a store in SQLite, its URL: sqlite:///{real}"
            )
    return real


def exists(folder: str) -> bool:
    """Return True if there is a store in *folder*."""
    with translate_os_errors(folder), suppress(FileNotFoundError):
        os.stat(os.path.join(folder, DATA))
        return True
    return False


def close_to_others(folder: str) -> None:
    """Allow only the owner to use *folder* and the files in it. The modes of files of
    other users are not changed.
    """
    names = os.listdir(folder)
    for path in (folder, *(os.path.join(folder, name) for name in names)):
        status = os.lstat(path)
        mode = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        is_ours = status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)
        if is_ours and stat.S_IMODE(status.st_mode) != mode:
            os.chmod(path, mode)


# ---------------------------------------------------------------- drafts


def create(folder: str, fill: Callable[[str], None]) -> bool:
    """Create *folder* in one step, with the files that *fill* puts into a draft of it.

    After a crash, *folder* is either complete or absent. If two processes create the
    same store, one succeeds. The other gets False and can use that store.

    Raises:
        StoreError: *folder* has other files in it.
        StoreReadOnlyError: This user may not create the folder.
        StoreFullError: There is not enough space.
    """
    parent, name = os.path.split(folder)
    with translate_os_errors(folder):
        if os.path.isdir(folder) and os.listdir(folder):
            if exists(folder):
                return False
            raise StoreError(
                f"{folder} is not a store and has other files in it; give an empty or "
                "new folder"
            )
        os.makedirs(parent, exist_ok=True)
        with draft_in(parent, f".{name}.new.") as draft:
            os.chmod(draft, 0o700)
            fill(draft)
            for file in os.listdir(draft):
                sync_path(os.path.join(draft, file))
            sync_path(draft)
            try:
                os.rename(draft, folder)
            except OSError as error:
                is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
                if not is_taken or not exists(folder):
                    raise
                return False
            sync_path(parent)
    return True


def put_in_place(draft: str, folder: str) -> None:
    """Replace the data file of *folder* by the data file of *draft*, in one step."""
    data = os.path.join(draft, DATA)
    sync_path(data)
    os.replace(data, os.path.join(folder, DATA))
    sync_path(folder)


def fill_draft(draft: str, header: bytes) -> None:
    """Create a store in the folder *draft*, with its databases and a *header*."""
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

    It is opened with LMDB's default flags. Without ``sync`` or ``metasync``, a power
    cut would lose acknowledged commits. With ``writemap``, a full disk would kill the
    interpreter.
    """
    # LMDB must release the GIL. Otherwise a commit would hold it while the disk syncs,
    # and no other OS thread could queue a request for the next group commit.
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
    """Allocate the space of LMDB's lock file on disk.

    LMDB creates it as a sparse file and maps it, so on a full disk the first write to
    it would kill the interpreter.
    """
    path = os.path.join(folder, READER_TABLE)
    with translate_os_errors(folder):
        try:
            file = open_file(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if readonly and error.errno == errno.EROFS:
                # LMDB uses no lock file on a read-only file system, so none is needed.
                return
            raise
        try:
            room = os.fstat(file).st_blocks * 512
            if room < _READER_TABLE_SIZE and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, _READER_TABLE_SIZE)
        finally:
            os.close(file)


# ---------------------------------------------------------------- damage


class _Meta(NamedTuple):
    """The numbers in a meta page. LMDB has two meta pages, and writes them in turn."""

    page_size: int
    last_page: int
    transaction: int


def check_files(
    folder: str,
    *,
    pages: bool = False,
    readonly: bool = False,
) -> None:
    """Refuse a store that LMDB would misread, or that would kill the process.

    LMDB opens a truncated file, and the process gets SIGBUS at the first read. LMDB
    takes an empty file for a new store. If the transaction number in the newer meta
    page is damaged, LMDB silently uses the state before the last transaction.

    Args:
        folder: The folder of the store.
        pages: True to check every page. The caller must exclude other writers.
        readonly: True if the file must not be changed.

    Raises:
        StoreCorruptError: The file is truncated, damaged, or not an LMDB file.
        StoreVersionError: The file has the format of another engine.
    """
    path = os.path.join(folder, DATA)
    with (
        translate_os_errors(folder),
        open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file,
    ):
        metas = _metas_in_turn(file, path)
        size = os.fstat(file.fileno()).st_size
    needed = max((meta.last_page + 1) * meta.page_size for meta in metas)
    # A short file need not be damaged: LMDB counts pages at the end that a transaction
    # allocated and freed again, and never writes them.
    is_short = size < needed
    problems = unsound_pages(folder) if is_short or pages else []
    if problems:
        problem = f"is damaged: {problems[0]} ({len(problems)} problems)"
        if is_short:
            problem = f"is truncated: it has {size} of {needed} bytes"
        raise StoreCorruptError(f"{path} {problem}; restore a backup")
    if is_short and not readonly:
        # The checks above accept a large value that is truncated. So the file is
        # extended: a reader of such a value then gets a checksum error, instead of
        # being killed by SIGBUS.
        with translate_os_errors(folder):
            os.truncate(path, needed)


def _metas_in_turn(file: BinaryIO, path: str) -> tuple[_Meta, _Meta]:
    """Return the two meta pages of a file.

    Raises:
        StoreCorruptError: The pages were not written by two consecutive transactions.
    """
    metas = _metas(file, path)
    while not _in_turn(*metas):
        earlier = metas
        metas = _metas(file, path)
        # Damage is reported only if two reads agree: if a commit came between them, the
        # second read returns other pages.
        if earlier == metas:
            raise StoreCorruptError(
                f"{path} is damaged: its meta pages say that they were written by "
                f"transactions {metas[0].transaction} and {metas[1].transaction}; "
                "restore a backup"
            )
    return metas


def unsound_pages(folder: str) -> list[str]:
    """Return descriptions of the damaged pages of a store's file.

    The caller must exclude other writers.
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
    """Return the numbers in a meta page.

    Raises:
        StoreCorruptError: The bytes at *position* are not a meta page.
        StoreVersionError: The file has the format of another engine.
    """
    file.seek(position)
    head = file.read(_META.size)
    if len(head) < _META.size:
        raise StoreCorruptError(
            f"{path} is truncated: it does not have two meta pages; restore a backup"
        )
    magic, version, page, last, transaction = _META.unpack(head)
    if magic != _MAGIC:
        magic, version = _NEWER_META.unpack_from(head)
    if magic != _MAGIC:
        raise StoreCorruptError(
            f"{path} is damaged, or not a store: it does not begin with a meta page"
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
    """Return True if two meta pages were written by consecutive transactions.

    LMDB writes the first page in transactions with an even number, and the second page
    in those with an odd number.
    """
    # A new file is an exception: both meta pages have the transaction number 0.
    if even.transaction == odd.transaction == 0:
        return True
    return even.transaction % 2 == 0 and abs(even.transaction - odd.transaction) == 1
