"""The folder of a store: what it is on, and how a file in it is opened."""

from __future__ import annotations

import os
import stat

from flowpregel.errors import StoreError

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "fuse.sshfs", "ncpfs"}
)


def open_file(path: str, flags: int) -> int:
    """Return a descriptor of a store's file, which is made with mode 0600 if *flags* say so.

    A store may come from somebody else, and a link in it lead to a file of ours.

    Raises:
        StoreError: It, or the folder it is in, is a link, or it is no file.
        OSError: It cannot be opened.
    """
    folder, name = os.path.split(path)
    kept = os.O_CLOEXEC | os.O_NOFOLLOW
    place = getattr(os, "O_PATH", os.O_RDONLY)  # it may be one that must not be listed
    inside = -1
    try:
        inside = os.open(folder, place | os.O_DIRECTORY | kept)
        # Not blocking: it may be a pipe, which nobody else opens.
        file = os.open(name, flags | os.O_NONBLOCK | kept, 0o600, dir_fd=inside)
    except OSError as error:
        linked = path if inside >= 0 else folder
        if os.path.islink(linked):
            raise StoreError(
                f"{linked} is a symbolic link, and a store has none; nothing was changed: "
                "remove the link if you know who made it"
            ) from error
        raise
    finally:
        if inside >= 0:
            os.close(inside)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StoreError(f"{path} is no plain file, as all of a store are")
    return file


def refuse_network(folder: str) -> None:
    """Refuse a folder on a network file system, where LMDB loses data.

    Raises:
        StoreError: It is on one; the message says how to allow it.
    """
    kind = file_system(folder)
    if kind in _NETWORK:
        raise StoreError(
            f"{folder} is on a network file system ({kind}), where LMDB loses data; "
            "keep the store on a local disk, or pass StoreOptions(allow_network=True)"
        )


def file_system(folder: str) -> str:
    """Return the type of the file system *folder* is on ("": not told)."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind
