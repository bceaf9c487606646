"""The setup of a worker's process: its group, signals, streams, and watchdog."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_CHECK_EVERY: Final = 1.0


# ------------------------------------------------ making the process a worker


def become_worker(stdout: int, stderr: int, coordinator: int) -> None:
    """Give this process its group, its signals, its streams and its watchdog.

    Args:
        stdout: The pipe that becomes descriptor 1.
        stderr: The pipe that becomes descriptor 2.
        coordinator: The pid of the process to end with.
    """
    # The worker gets its own process group for two reasons. It gets no Ctrl-C from the
    # terminal, because the coordinator handles Ctrl-C. And the processes that a task
    # starts can be killed with their worker.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    # A handler that does nothing is used, because programs that a task starts would
    # inherit SIG_IGN, but do not inherit handlers.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    threading.Thread(
        target=watch_coordinator,
        args=(coordinator,),
        name="flowpregel-watchdog",
        daemon=True,
    ).start()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    faulthandler.enable(file=2, all_threads=True)
    import multiprocessing  # noqa: PLC0415 - loaded by loky anyway

    # The start method is changed, because with loky's start method, pools that tasks
    # make would restart their workers without end.
    multiprocessing.set_start_method("spawn", force=True)
    part_from_trackers()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the OS thread that started it ends
    (Linux).
    """
    # no mutant: Otherwise `watch_coordinator` ends the process, a moment later.
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        # no mutant: The kernel ignores the last three arguments of this operation.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def watch_coordinator(coordinator: int) -> None:
    """End this process and its process group when the coordinator has ended."""
    with contextlib.suppress(OSError, AttributeError):  # Some systems have no pidfds.
        ended = os.pidfd_open(coordinator)
        # no mutant: Without this wait, the loop below ends, a moment later.
        if os.getppid() == coordinator:
            select.select([ended], [], [])
    while os.getppid() == coordinator:
        time.sleep(_CHECK_EVERY)
    with contextlib.suppress(OSError):
        # no mutant: A mutant with group 1 would kill all processes of the machine.
        os.killpg(0, signal.SIGKILL)
    # no mutant: The parent is gone, so no process reads the exit code.
    os._exit(1)


# ------------------------------------------------ inherited descriptors


def own_description(fd: int, mode: int) -> None:
    """Give *fd*, one end of a pipe, its own file description (Linux).

    If a task then changes the blocking mode of *fd*, the change affects no other
    process.
    """
    with contextlib.suppress(OSError):  # Without /proc the descriptor stays shared.
        opened = os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC)
        os.dup2(opened, fd, inheritable=False)
        os.close(opened)


def part_from_trackers() -> None:
    """Replace the inherited file descriptions of the resource trackers' pipes, and let
    no child inherit the new ones.

    Every process of the program writes to these pipes. If a task made a shared one
    non-blocking, it would be non-blocking for the whole program.
    """
    from multiprocessing import resource_tracker  # noqa: PLC0415 - loaded by loky anyway

    from loky.backend import resource_tracker as loky_tracker  # noqa: PLC0415 - loaded anyway

    trackers: tuple[Any, ...] = (resource_tracker, loky_tracker)
    for fd in {tracker._resource_tracker._fd for tracker in trackers} - {None}:  # noqa: SLF001
        own_description(fd, os.O_WRONLY)
