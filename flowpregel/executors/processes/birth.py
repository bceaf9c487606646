"""What a new worker does with its process before it takes orders."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
STOP_SIGNAL: Final = signal.SIGRTMIN + 3 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Sent to a worker whose task is to stop; hardly anything else uses it."""
_LOOK_EVERY: Final = 1.0


def settle(stdout: int, stderr: int, coordinator: int) -> None:
    """Make this process a worker: its group, its signals, its streams, its end.

    Args:
        stdout: The pipe that becomes descriptor 1.
        stderr: The pipe that becomes descriptor 2.
        coordinator: The pid of the process to end with.
    """
    # An own process group: Ctrl-C in the terminal is the coordinator's to handle, and
    # what a task starts can be ended with its worker.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, _ignore)
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    threading.Thread(
        target=_watch, args=(coordinator,), name="flowpregel-watchdog", daemon=True
    ).start()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    faulthandler.enable(file=2, all_threads=True)
    _start_processes_with_spawn()


def _ignore(number: int, frame: object) -> None:
    """Do nothing: unlike SIG_IGN, this is not inherited by programs a task starts."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the OS thread that started it ends (Linux)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _start_processes_with_spawn() -> None:
    """Let ``multiprocessing`` in tasks use spawn: with loky's method pools respawn for ever."""
    import multiprocessing  # noqa: PLC0415 - loaded by loky anyway

    multiprocessing.set_start_method("spawn", force=True)


def _watch(coordinator: int) -> None:
    """End this process and all of its group when the coordinator is gone."""
    if os.getppid() == coordinator:
        _wait_for_end_of(coordinator)
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _wait_for_end_of(coordinator: int) -> None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            ended = os.pidfd_open(coordinator)
            select.select([ended], [], [])
            return
    idle = threading.Event()
    while os.getppid() == coordinator:
        idle.wait(_LOOK_EVERY)
