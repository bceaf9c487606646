"""Shared memory without a name, so that nothing of it can be left behind."""

from __future__ import annotations

import os


def new_shared_file(size: int) -> int:
    """Return a descriptor of *size* zero bytes that several processes can map."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("flowpregel", os.MFD_CLOEXEC)
    else:
        import tempfile  # noqa: PLC0415 - only where there is no memfd

        fd, name = tempfile.mkstemp(prefix="flowpregel-")
        os.unlink(name)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd
