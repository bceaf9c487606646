"""Crash reports: how a worker process ended, and what is known about the cause."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flowpregel.executors.processes.wire.protocol import RSS_UNIT

_TAIL_LINES: Final = 30
_LONGEST_LINE: Final = 2_000


def last_lines(text: str) -> str:
    """Return the last lines of *text*, the very long ones cut."""
    return "\n".join(
        line[:_LONGEST_LINE] for line in text.split("\n")[-1 - _TAIL_LINES :]
    )


def reap(process: Any) -> tuple[int | None, int | None] | None:
    """Return how the loky *process* ended, or None if it has not; leaves no zombie.

    The result is its exit code (negative: the signal) and its peak memory in bytes,
    which is None if another part of the program was the first to ask the kernel.
    """
    try:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    except ChildProcessError:
        # multiprocessing looks after its children whenever it starts one, and was
        # first.
        process.join(0)
        return process.exitcode, None
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    # loky would ask the kernel itself, which forgets a child once it was asked.
    process._popen.returncode = code  # noqa: SLF001 - there is no public way to tell it
    process.join(0)
    return code, usage.ru_maxrss * RSS_UNIT


def memory_sizes(pid: int) -> dict[str, int]:
    """Return the kernel's figures of the memory of a process, in bytes, by name; an
    empty dict where it has none.
    """
    with suppress(OSError):
        fields = (
            line.split()
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return {
            field[0]: int(field[1]) << 10 for field in fields if field[2:] == ["kB"]
        }
    return {}


def memory_of(pid: int) -> int:
    """Return the resident memory of a process and its children; 0 where that cannot be
    known.

    In bytes, without what they share with others, such as the arrays that its tasks are
    given.
    """
    sizes = memory_sizes(pid)
    size = sizes.get("RssAnon:", 0) + sizes.get("RssFile:", 0)
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            size += sum(
                memory_of(int(child))
                for child in (thread / "children").read_text().split()
            )
    return size


def forget_peak(pid: int) -> None:
    """Let the kernel measure the peak memory of a process from now on, where it can."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    """Return the most memory (bytes) that a process had since `forget_peak`; 0: not
    known.
    """
    return memory_sizes(pid).get("VmHWM:", 0)


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process has used; 0 where that cannot be
    known.
    """
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def count_oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has killed so far, as far as we
    see.
    """
    # not every system counts; those that a cgroup's limit ended count too
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def cause_of(exit_code: int | None, *, oom: bool) -> str:
    """Return in words how a worker ended that the pool did not kill.

    Args:
        exit_code: Negative: the signal.
        oom: Whether the OOM killer killed something since the worker's tasks began.
    """
    if exit_code is None:
        return "it ended, nobody knows how"
    if exit_code >= 0:
        return f"it exited with code {exit_code}"
    if exit_code == -signal.SIGKILL and oom:
        return "the kernel's OOM killer killed it (SIGKILL): no memory was left for it"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def describe(peak_rss: int | None, tail: str) -> str:
    """Return what else is known about a worker that ended: its memory (bytes), its
    stderr.
    """
    parts = [] if peak_rss is None else [f"peak memory: {peak_rss / 2**20:.0f} MiB"]
    if tail.strip():
        parts.append(f"last lines of its stderr:\n{tail.rstrip()}")
    return "\n".join(parts)
