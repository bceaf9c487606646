"""A disk that takes a millisecond more for each flush, made of a small shared library.

The library stands before libc's (``LD_PRELOAD``) and delays whatever waits for the
disk: ``fsync``, ``fdatasync``, ``msync(MS_SYNC)``, ``sync_file_range`` and a write to a
file that was opened with ``O_DSYNC`` or ``O_SYNC`` (LMDB's second flush of a commit).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_disk.c")


def compiler() -> str | None:
    """Return a C compiler, or None where there is none or the trick does not work."""
    return (
        shutil.which("cc") or shutil.which("gcc") if sys.platform == "linux" else None
    )


def environment(stack: contextlib.ExitStack) -> dict[str, str]:
    """Build the library; return what a process needs in its environment to get the slow
    disk.
    """
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="flowpregel-bench-")
    )
    library = Path(folder, "slow_disk.so")
    subprocess.run(
        [str(compiler()), "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"],
        check=True,
    )
    return {"LD_PRELOAD": str(library)}
