"""The parts of Linux that other systems lack, each with a fallback.

A worker pool and a store use these if they can: descriptors of processes, unnamed files
in memory, the kernel's signal at a parent's end, and the numbers in ``/proc``. On macOS
each function uses its fallback: a temporary file, `os.kill`, a check of the parent once
a second, or no numbers. With ``FLOWPREGEL_PORTABLE=1`` in the environment, the
fallbacks are used on Linux too, so that tests can run them.

The guard, the process that cleans up after a killed coordinator
(`flowpregel.executors.processes.wire.guard_process`), imports nothing, and has its own
fallbacks.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Final

IS_USED: Final = sys.platform == "linux" and not os.environ.get("FLOWPREGEL_PORTABLE")
"""True if the functions of Linux are used, and not the fallbacks."""
PID_NAMESPACE: Final = "/proc/self/ns/pid" if IS_USED else ""
"""The file whose inode identifies the pid namespace of this process. It is an empty
string, which is no path, if the functions of Linux are not used.
"""
RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
"""The number of bytes in the unit in which the kernel reports peak memory."""
_PR_SET_PDEATHSIG: Final = 1
_SCORE_OF_WORKERS: Final = 300
"""The handicap of a worker: the OOM killer adds this many thousandths of the machine's
memory to the worker's size when it compares processes.
"""


# ------------------------------------------------ processes


def process_fd(pid: int) -> int | None:
    """Return a descriptor of a process that becomes readable when the process ends, or
    None if the system has no such descriptors.
    """
    if IS_USED and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def send_signal(pid: int, fd: int | None, number: int) -> None:
    """Send a signal to a process, by its descriptor if it has one.

    Raises:
        OSError: The process does not exist.
    """
    if fd is None:
        os.kill(pid, number)
    else:
        signal.pidfd_send_signal(fd, number)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the OS thread that started it ends.

    Without Linux, this does nothing.
    """
    # no mutant: Without this, `watch_coordinator` ends the process a moment later.
    if IS_USED:
        import ctypes  # noqa: PLC0415 - only a worker needs it

        libc = ctypes.CDLL(None)
        # no mutant: The kernel ignores the last three arguments of this operation.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def be_killed_first() -> None:
    """Have the kernel's OOM killer prefer this process, and the processes that it
    starts, over other processes of the same size.
    """
    score = read_proc("self/oom_score_adj").strip()
    file = open_proc("self/oom_score_adj", os.O_WRONLY)
    if file is not None:
        with suppress(OSError, ValueError):
            os.write(file, b"%d" % min(int(score) + _SCORE_OF_WORKERS, 1000))
        os.close(file)


# ------------------------------------------------ files


def unnamed_file() -> int:
    """Return the descriptor of an empty, unnamed file, which is in memory if the system
    supports that.
    """
    if IS_USED and hasattr(os, "memfd_create"):
        return os.memfd_create("flowpregel", os.MFD_CLOEXEC)
    import tempfile  # noqa: PLC0415 - 6 ms, and Linux does without it

    fd, name = tempfile.mkstemp(prefix="flowpregel-")
    os.unlink(name)
    return fd


def own_description(fd: int, mode: int) -> None:
    """Give *fd*, one end of a pipe, its own file description.

    If a task then changes the blocking mode of *fd*, the change affects no other
    process. Without Linux, the descriptor stays shared.
    """
    opened = open_proc(f"self/fd/{fd}", mode)
    if opened is not None:
        os.dup2(opened, fd, inheritable=False)
        os.close(opened)


# ------------------------------------------------ /proc


def open_proc(name: str, mode: int = os.O_RDONLY) -> int | None:
    """Open a file below ``/proc``, and return its descriptor, or None if there is no
    such file.
    """
    if IS_USED:
        with suppress(OSError):
            return os.open(f"/proc/{name}", mode | os.O_CLOEXEC)
    return None


def read_proc(name: str) -> str:
    """Return the content of a file below ``/proc``, or an empty string if there is no
    such file.
    """
    if IS_USED:
        with suppress(OSError), open(f"/proc/{name}", errors="surrogateescape") as file:
            return file.read()
    return ""


def list_proc(name: str) -> list[str]:
    """Return the names in a folder below ``/proc``, or an empty list if there is no
    such folder.
    """
    if IS_USED:
        with suppress(OSError):
            return os.listdir(f"/proc/{name}")
    return []
