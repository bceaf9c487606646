"""Reports of how and why a worker process has ended, and the memory that the process
used.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any, Final

from flowpregel import _linux
from flowpregel.errors import OUT_OF_MEMORY

_TAIL_LINES: Final = 30
_LONGEST_LINE: Final = 2_000


def last_lines(text: str) -> str:
    """Return the last lines of *text*. Very long lines are shortened."""
    return "\n".join(
        line[:_LONGEST_LINE] for line in text.split("\n")[-1 - _TAIL_LINES :]
    )


def reap(process: Any) -> tuple[int | None, int | None] | None:
    """Collect the exit status of the loky *process*, or return None if it has not
    ended.

    Returns:
        The exit code, which is negative for a signal, and the peak memory in bytes. The
        peak memory is None if other code in this program has already collected the
        status.
    """
    try:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    except ChildProcessError:
        # multiprocessing has already collected the status, as it does for all children
        # whenever it starts a new one. The exit code is then read from
        # multiprocessing's process object.
        process.join(0)
        return process.exitcode, None
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    # The exit code is stored in loky's process object. Otherwise loky would wait for a
    # process that no longer exists.
    process._popen.returncode = code  # noqa: SLF001 - there is no public way to tell it
    process.join(0)
    return code, usage.ru_maxrss * _linux.RSS_UNIT


def memory_sizes(pid: int) -> dict[str, int]:
    """Return the kernel's memory figures for a process, such as its peak, in bytes, by
    their name in ``/proc``.

    The dict is empty if the system has no such figures.
    """
    fields = (line.split() for line in _linux.read_proc(f"{pid}/status").splitlines())
    return {field[0]: int(field[1]) << 10 for field in fields if field[2:] == ["kB"]}


def memory_of(pid: int) -> int:
    """Return the resident memory of a process and its children in bytes, or 0 if it is
    unknown.

    Shared memory, such as arrays that tasks get as inputs, is not included.
    """
    sizes = memory_sizes(pid)
    size = sizes.get("RssAnon:", 0) + sizes.get("RssFile:", 0)
    for thread in _linux.list_proc(f"{pid}/task"):
        children = _linux.read_proc(f"{pid}/task/{thread}/children").split()
        size += sum(memory_of(int(child)) for child in children)
    return size


def forget_peak(pid: int) -> None:
    """Make the kernel start its measurement of a process's peak memory again, if the
    system supports that.
    """
    file = _linux.open_proc(f"{pid}/clear_refs", os.O_WRONLY)
    if file is not None:
        try:
            with suppress(OSError):
                os.write(file, b"5")
        finally:
            os.close(file)


def peak_of(pid: int) -> int:
    """Return the peak memory of a process since `forget_peak` in bytes, or 0 if it is
    unknown.
    """
    return memory_sizes(pid).get("VmHWM:", 0)


def cpu_of(pid: int) -> float:
    """Return the CPU time that a process has used in seconds, or 0 if it is unknown."""
    fields = _linux.read_proc(f"{pid}/stat").rpartition(")")[2].split()
    if not fields:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_oom_kills() -> int:
    """Return the number of processes that the OOM killer has killed so far, or 0 if it
    is unknown.
    """
    # On some systems this count, which includes processes that were killed because of a
    # cgroup's limit, is missing.
    for line in _linux.read_proc("vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def cause_of(exit_code: int | None, *, oom: bool) -> str:
    """Describe why a worker ended that the pool did not kill.

    Args:
        exit_code: The exit code, which is negative for a signal, or None if it is
            unknown.
        oom: True if the OOM killer has killed a process since the last end of a worker.
    """
    if exit_code is None:
        return "it ended for an unknown reason"
    if exit_code >= 0:
        return f"it exited with code {exit_code}"
    if exit_code == -signal.SIGKILL and oom:
        return OUT_OF_MEMORY
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def unreadable_message(error: BaseException) -> str:
    """Describe why a worker or a task was ended: the coordinator could not unpickle its
    message, because of *error*.
    """
    cause = f"{type(error).__name__}: {error}"
    return f"the coordinator cannot read its message ({cause})"


def describe(peak_rss: int | None, tail: str) -> str:
    """Describe a worker that has ended: its peak memory and the last lines on its
    stderr.
    """
    parts = [] if peak_rss is None else [f"peak memory: {peak_rss / 2**20:.0f} MiB"]
    if tail.strip():
        parts.append(f"last lines of its stderr:\n{tail.rstrip()}")
    return "\n".join(parts)
