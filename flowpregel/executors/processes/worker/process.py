"""The setup of a worker's process: its process group, signals, streams, watchdog, and
first imports.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
import time
from importlib import import_module
from typing import Any, Final

from flowpregel import _linux

_CHECK_EVERY: Final = 1.0
PRELOAD: Final = "FLOWPREGEL_PRELOAD"
"""The environment variable with the names of modules and functions that a worker
imports and calls before its first task.
"""
_fork: Final = threading.local()
"""Thread-local storage for the signal mask that an OS thread had before a fork, in the
attribute ``signal_mask``.
"""


# ------------------------------------------------ making the process a worker


def become_worker(stdout: int, stderr: int, coordinator: int) -> None:
    """Set up this process as a worker: process group, signal handlers, standard
    streams, and the OS thread that ends the process with the coordinator.

    Args:
        stdout: The pipe that becomes descriptor 1.
        stderr: The pipe that becomes descriptor 2.
        coordinator: The pid of the coordinator. This process ends when the coordinator
            has ended.
    """
    # The worker gets its own process group for two reasons. It gets no Ctrl-C from the
    # terminal, because the coordinator handles Ctrl-C. And the processes that a task
    # starts can be killed with their worker.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    # SIGINT gets a handler that does nothing. It is not set to SIG_IGN, because the
    # programs that a task starts would inherit that.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    # SLURM and systemd send SIGTERM to all processes of a job. The coordinator gets it
    # too, and decides how long tasks may still run.
    signal.signal(signal.SIGTERM, leave_to_coordinator)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(
        before=block_sigterm,
        after_in_parent=unblock_sigterm,
        after_in_child=restore_sigterm,
    )
    # The OOM killer must kill a worker rather than the coordinator, which has all
    # results.
    _linux.be_killed_first()
    _linux.die_with_parent()
    os.register_at_fork(after_in_child=_linux.die_with_parent)
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

    # multiprocessing's start method is set to "spawn". With loky's start method, pools
    # that tasks make would restart their workers without end.
    multiprocessing.set_start_method("spawn", force=True)
    part_from_trackers()


def leave_to_coordinator(number: int, frame: Any) -> None:
    """Ignore a signal, because the coordinator gets it too, and decides what
    happens.
    """


def block_sigterm() -> None:
    """Block SIGTERM in this OS thread, which is about to fork, until the child is ready
    for it.

    Otherwise a child that gets SIGTERM at once would lose it, because it starts with
    the handler of this process, which does nothing.
    """
    _fork.signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def unblock_sigterm() -> None:
    """Restore the signal mask of this OS thread after it has forked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _fork.signal_mask)


def restore_sigterm() -> None:
    """Let SIGTERM end this process, which a task has forked."""
    if signal.getsignal(signal.SIGTERM) is leave_to_coordinator:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    unblock_sigterm()


def watch_coordinator(coordinator: int) -> None:
    """End this process and its process group when the coordinator has ended."""
    ended = _linux.process_fd(coordinator)
    # no mutant: Without this wait, the loop below has the same effect a moment later.
    if ended is not None and os.getppid() == coordinator:
        select.select([ended], [], [])
    while os.getppid() == coordinator:
        time.sleep(_CHECK_EVERY)
    with contextlib.suppress(OSError):
        # no mutant: A mutant with group 1 would kill all processes of the machine.
        os.killpg(0, signal.SIGKILL)
    # no mutant: The parent is gone, so no process reads the exit code.
    os._exit(1)


# ------------------------------------------------ imports before the first task


def preload(references: str) -> None:
    """Import the modules, and call the functions, that *references* names.

    Args:
        references: The names of modules, separated by commas. The name of a function to
            call follows a colon, as in ``package.module:function``.

    Raises:
        BaseException: An import, or a function, has failed.
    """
    for reference in filter(None, references.split(",")):
        name, _, function = reference.strip().partition(":")
        module = import_module(name)
        if function:
            getattr(module, function)()


# ------------------------------------------------ inherited descriptors


def part_from_trackers() -> None:
    """Open the pipes to the resource trackers of multiprocessing and loky again, so
    that this process shares no open file description with other processes. Child
    processes do not inherit the new descriptors.

    Every process of the program writes to these pipes. If a task made a shared pipe
    non-blocking, it would be non-blocking for the whole program.
    """
    # In a worker, loky has already imported both modules. `import flowpregel` must not
    # import them.
    from multiprocessing import resource_tracker  # noqa: PLC0415

    from loky.backend import resource_tracker as loky_tracker  # noqa: PLC0415

    modules: tuple[Any, ...] = (resource_tracker, loky_tracker)
    trackers = [module._resource_tracker for module in modules]  # noqa: SLF001
    for fd in {tracker._fd for tracker in trackers} - {None}:  # noqa: SLF001
        _linux.own_description(fd, os.O_WRONLY)
