"""The guard: a small process that kills the processes that tasks started, if the
coordinator cannot.

When the coordinator dies, the kernel kills its workers before they can run any code.
The processes that their tasks had started (a shell, a subprocess) would survive. The
guard is also a child of the coordinator, but in another session. It waits for the
coordinator's end, and then kills the process groups of all workers. On Linux it also
finds the processes that have left those groups, by a tag in the environment that every
program inherits from its worker. A worker uses such a tag too, to find the processes of
a task that was stopped.

When a worker starts or ends, the coordinator writes a line to the guard's standard
input: the change (``+``, ``-`` or ``x``), the pid, and the tag. The guard runs this
file as a script, and imports nothing from the package, so that it is small and starts
quickly.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

PROCESS_TAG = "FLOWPREGEL_WORKER"
"""The environment variable with the tag of a worker, which the processes that it starts
inherit.
"""
TASK_TAG = "FLOWPREGEL_TASK"
"""The environment variable with the tag of a task, which the processes that the task
starts inherit.
"""
_CHECK_EVERY = 1.0
"""Seconds between two checks whether the coordinator is alive."""
_MOST_SEARCHES = 20
"""The maximum number of searches for processes with a tag. More than one may be
necessary, because such a process may start another one while a search runs.
"""
_SEARCH_EVERY = 0.01
"""Seconds between two searches for processes with a tag."""
_OF_KERNEL = 0x0020_0000
"""The flag (``PF_KTHREAD``) in ``/proc/PID/stat`` that marks a thread of the kernel."""


# ------------------------------------------------ functions of the guard process


def end_processes_with(entries: set[bytes], since: float = 0.0) -> None:
    """Kill every process that has one of *entries*, such as ``NAME=value``, in its
    environment (Linux).

    The calling process, and processes that began before *since* in monotonic seconds,
    are not killed.
    """
    for _ in range(_MOST_SEARCHES):
        tagged, starting = search_processes(entries, since)
        for pid in tagged:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not tagged and not starting:
            return
        time.sleep(_SEARCH_EVERY)


def search_processes(entries: set[bytes], since: float) -> tuple[list[int], list[int]]:
    """Search the other processes that began at *since* or later. Return two lists of
    pids: the processes that have one of *entries* in their environment, and the
    programs whose environment is still empty.

    A program that is being started has no environment for some microseconds, although
    for its parent the start has already succeeded. It may get one of *entries*.
    """
    tagged: list[int] = []
    starting: list[int] = []
    for pid, environment in environments():
        is_tagged = not entries.isdisjoint(environment)
        is_empty = environment == [b""]
        if pid == os.getpid() or not (is_tagged or is_empty):
            continue
        fields = stat_fields_of(pid)
        if start_time_in(fields) < since:
            continue
        if is_tagged:
            tagged.append(pid)
        elif is_program(fields):
            starting.append(pid)
    return tagged, starting


def processes_with(entries: set[bytes]) -> list[int]:
    """Return the pids of all processes that have one of *entries* in their
    environment.
    """
    return [
        pid
        for pid, environment in environments()
        if not entries.isdisjoint(environment)
    ]


def environments() -> list[tuple[int, list[bytes]]]:
    """Return the pids and the environments of all processes whose environment this
    process may read (Linux). The environment of a process that has none is a list with
    one empty entry.
    """
    result: list[tuple[int, list[bytes]]] = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/environ", "rb") as file,
            ):
                result.append((int(name), file.read().split(b"\0")))
    return result


def stat_fields_of(pid: int) -> list[bytes]:
    """Return the fields that follow the name in ``/proc/PID/stat`` (Linux), or nothing
    if the process is gone.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
    return []


def is_program(fields: list[bytes]) -> bool:
    """Return whether the process with these *fields* of ``/proc/PID/stat`` is a living
    program, and not a thread of the kernel.
    """
    if not fields:
        return False
    is_dead = fields[0] in (b"Z", b"X")
    is_of_kernel = int(fields[6]) & _OF_KERNEL != 0
    return not (is_dead or is_of_kernel)


def start_time_in(fields: list[bytes]) -> float:
    """Return the start time in *fields* of ``/proc/PID/stat``, in monotonic seconds,
    rounded up to a clock tick, or 0 if there are no fields.
    """
    if not fields:
        return 0.0
    # The kernel counts clock ticks since the boot, and rounds them down, so one tick is
    # added.
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK") - asleep


def guard(coordinator: int) -> None:
    """Keep a list of the workers of *coordinator*, a pid, until it ends or closes its
    pool. Then kill the remaining workers, and the processes that they have started.
    """
    workers: dict[int, bytes] = {}
    watched = [0]
    with contextlib.suppress(OSError, AttributeError):  # Some systems have no pidfds.
        watched.append(os.pidfd_open(coordinator))
    unread = b""
    while True:
        if 0 not in select.select(watched, [], [], _CHECK_EVERY)[0]:
            # The guard must read all lines in the pipe before it ends. So it checks
            # whether the coordinator is still there only when the pipe is empty.
            if os.getppid() != coordinator:
                break
            continue
        data = os.read(0, 1 << 16)
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            follow_change(workers, line)
        if not data:  # The coordinator has closed its pool.
            break
    end_workers(workers)


def follow_change(workers: dict[int, bytes], line: bytes) -> None:
    """Add the worker that *line* names to *workers*, or remove it and clean up after
    it.
    """
    verb, pid, tag = line.split(b" ")
    if verb == b"+":
        workers[int(pid)] = tag
    else:
        workers.pop(int(pid), None)
        clean_up_after({tag}, kill=verb == b"x")


def end_workers(workers: dict[int, bytes]) -> None:
    """Kill *workers*, and all processes that they started."""
    for pid in workers:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    if workers:
        clean_up_after({*workers.values()}, kill=True)


def clean_up_after(tags: set[bytes], *, kill: bool) -> None:
    """Remove the scratch folders of ended workers. If *kill*, also kill the processes
    that the workers have started.
    """
    if kill:
        end_processes_with({PROCESS_TAG.encode() + b"=" + tag for tag in tags})
    scratch = sys.argv[2]
    with contextlib.suppress(OSError):
        for name in os.listdir(scratch):
            if not name.startswith("flowpregel-"):
                continue
            tag = name.split("-")[1].encode()
            if tag in tags:
                import shutil  # noqa: PLC0415 - seldom needed

                shutil.rmtree(f"{scratch}/{name}", ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guard(int(sys.argv[1]))
