"""The guard: a small process that kills the processes that tasks started, if the
coordinator cannot.

When the coordinator dies, the kernel kills its workers before they can run any code.
The processes that their tasks had started (a shell, a subprocess) would survive. The
guard is also a child of the coordinator, but in another session. It waits for the
coordinator's end, and then kills the process groups of all workers. On Linux it also
finds the processes that have left those groups, by a tag in the environment that every
program inherits from its worker. A worker uses such a tag too, to find the processes of
a task that was stopped.

The guard reads a line for each change of a worker from its standard input: the change,
the pid, and the tag. The guard runs as a separate script and imports nothing from the
package, so that it is small and starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

PROCESS_TAG = "FLOWPREGEL_WORKER"
"""The environment variable that tags a worker and the processes that it starts."""
TASK_TAG = "FLOWPREGEL_TASK"
"""The environment variable that tags the processes that one task starts."""
_CHECK_EVERY = 1.0
"""The seconds between two checks whether the coordinator lives."""
_MOST_SEARCHES = 20
"""The greatest number of searches. More than one may be necessary, because a process
may be started while a search runs.
"""


# the guard's own process ---------------------------------------------------


def end_processes_with(entries: set[bytes], since: float = 0.0) -> None:
    """Kill every process that has one of *entries*, such as ``NAME=value``, in its
    environment (Linux).

    The calling process, and processes that began before *since* in monotonic seconds,
    are not killed.
    """
    for _ in range(_MOST_SEARCHES):
        pids = [
            pid
            for pid in processes_with(entries)
            if pid != os.getpid() and since <= start_time_of(pid)
        ]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.01)


def processes_with(entries: set[bytes]) -> list[int]:
    """Return the pids of all processes that have one of *entries* in their
    environment.
    """
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/environ", "rb") as file,
            ):
                if entries.intersection(file.read().split(b"\0")):
                    pids.append(int(name))
    return pids


def start_time_of(pid: int) -> float:
    """Return the time at which process *pid* was started, in monotonic seconds, rounded
    up to a clock tick (Linux), or 0 if it is unknown.
    """
    with (
        contextlib.suppress(OSError, AttributeError),
        open(f"/proc/{pid}/stat", "rb") as file,
    ):
        ticks = int(file.read().rpartition(b")")[2].split()[19])
        # The kernel counts clock ticks since the boot, and rounds them down, so one
        # tick is added.
        asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        return (ticks + 1) / os.sysconf("SC_CLK_TCK") - asleep
    return 0.0


def guard(coordinator: int) -> None:
    """Watch over the workers of *coordinator* until it ends or closes its pool."""
    workers: dict[int, bytes] = {}
    watched = [0]
    with contextlib.suppress(OSError, AttributeError):  # Some systems have no pidfds.
        watched.append(os.pidfd_open(coordinator))
    unread = b""
    while True:
        if 0 not in select.select(watched, [], [], _CHECK_EVERY)[0]:
            # The guard ends only when the pipe is empty, since the last lines must be
            # read first. So this is checked only while there is nothing to read.
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
    """Add the worker of *line* to *workers*, or remove it and clean up after it."""
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
    """Remove the scratch folders of ended workers; if *kill*, kill the processes that
    they started.
    """
    if kill:
        end_processes_with({PROCESS_TAG.encode() + b"=" + tag for tag in tags})
    with contextlib.suppress(OSError):
        for name in os.listdir(sys.argv[2]):
            if name.startswith("flowpregel-") and name.split("-")[1].encode() in tags:
                import shutil  # noqa: PLC0415 - seldom needed

                shutil.rmtree(f"{sys.argv[2]}/{name}", ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard(int(sys.argv[1]))
