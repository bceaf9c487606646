"""The file systems on which a store may be: local file systems, and those in memory.

LMDB and SQLite map files into memory and lock them. On a network file system the
mappings of two machines differ, locks may have no effect, and acknowledged commits are
lost. A list of network file systems would never be complete, so this module lists the
local file systems, and every other file system is refused.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

from flowpregel import _linux
from flowpregel.errors import StoreError

LOCAL: Final = frozenset(
    {
        # Linux
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "jfs",
        "reiserfs",
        "nilfs2",
        "ecryptfs",
        "vfat",
        "msdos",
        "exfat",
        "ntfs",
        "ntfs3",
        "hfsplus",
        "fuseblk",
        # Linux, in memory
        "tmpfs",
        "ramfs",
        "rootfs",
        # Linux, read-only
        "squashfs",
        "erofs",
        "iso9660",
        "udf",
        "cramfs",
        # container layers on top of one of these file systems
        "overlay",
        "aufs",
        "shiftfs",
        "fuse.fuse-overlayfs",
        # macOS
        "apfs",
        "hfs",
    }
)
"""The kernel's names of local file systems."""
_BY_MAGIC: Final = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x3153464A: "jfs",
    0x52654973: "reiserfs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0x61756673: "aufs",
    0x73717368: "squashfs",
    0xE0F5E1E2: "erofs",
    0x4D44: "vfat",
    0x2011BAB0: "exfat",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x65735546: "fuse",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x5346414F: "afs",
    0x564C: "ncpfs",
}
"""The names of file systems, by the number that Linux's `statfs` returns."""
_DARWIN_NAME: Final = slice(72, 88)
"""The position of the file system's name in the ``struct statfs`` of macOS."""
_STATFS_SIZE: Final = 4_096
"""A number of bytes that exceeds the ``struct statfs`` of any system."""


def refuse_network_folder(folder: str, engine: str = "LMDB") -> None:
    """Refuse a folder on a file system that is not known to be local.

    Args:
        folder: The folder, which need not exist.
        engine: The engine that could lose data on another file system, for the message.

    Raises:
        StoreError: The file system is not known to be local. The message explains how
            to allow it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     refuse_network_folder(folder)  # no error: the disk is local
    """
    kind = file_system(folder)
    if kind not in LOCAL:
        raise StoreError(
            f"{folder} is on a file system ({kind or 'of unknown type'}) that is not "
            f"known to be local, and {engine} loses data on network file systems; "
            "keep the store on a local disk, or pass StoreOptions(allow_network=True)"
        )


def file_system(folder: str) -> str:
    """Return the type of the file system that contains *folder*, or an empty string if
    it is unknown.
    """
    if sys.platform == "darwin":
        return _name_in(_statfs(folder))
    if kind := mounted(_linux.read_proc("self/mountinfo"), folder):
        return kind
    return _BY_MAGIC.get(_magic_in(_statfs(folder)), "")


def mounted(table: str, folder: str) -> str:
    """Return the type of the mounted file system that contains *folder*.

    *table* is the text of ``/proc/self/mountinfo``.
    """
    best = ""
    kind = ""
    for line in table.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # Of two mounts at the same mount point, the later one hides the earlier one, so
        # the last match counts.
        if inside and len(point) >= len(best):
            best = point
            kind = rest.split()[0]
    return kind


def _statfs(folder: str) -> bytes:
    """Return the ``struct statfs`` of a folder, or of the nearest parent that exists.

    The result is empty if the system call fails or is missing.
    """
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    library = ctypes.CDLL(None, use_errno=True)
    # On Intel Macs, the variant of `statfs` with 64-bit inodes has a name of its own,
    # so both names are tried.
    statfs = getattr(library, "statfs$INODE64", None) or getattr(
        library, "statfs", None
    )
    if statfs is None or statfs(os.fsencode(folder), buffer) != 0:
        return b""
    return buffer.raw


def _magic_in(data: bytes) -> int:
    return (
        int.from_bytes(data[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF
    )


def _name_in(data: bytes) -> str:
    return data[_DARWIN_NAME].partition(b"\0")[0].decode("utf-8", "replace")
