"""Changes that a task may make to its process, and what shows them."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import locale
import os
import resource
import signal
import sys
import time
from typing import Any

import pytest

from flowpregel.executors.processes.wire.guard_process import TASK_TAG


def folder() -> str:
    return os.getcwd()


def change_folder() -> None:
    os.chdir("/")


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def change_umask() -> None:
    os.umask(0o777)


def open_files() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def lower_open_files() -> None:
    _, most = open_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, most))


def variables() -> dict[str, str]:
    # But for the mark of the task itself, by which what it starts is found.
    return {name: text for name, text in os.environ.items() if name != TASK_TAG}


def change_variables() -> None:
    os.environ["LEFT_BEHIND"] = "1"
    os.environ["PATH"] = "/nowhere"
    del os.environ["HOME"]


def replace_variables() -> None:
    os.environ = {"LEFT_BEHIND": "1"}  # type: ignore[assignment]  # noqa: B003 - users do


def zone() -> tuple[str, str]:
    return time.tzname


def change_zone() -> None:
    os.environ["TZ"] = "XYZ-7"
    time.tzset()


def timer() -> float:
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    return left


def set_timer() -> None:
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(3))
    signal.alarm(1)


def handlers() -> list[str]:
    return [
        repr(signal.getsignal(number)) for number in (signal.SIGALRM, signal.SIGUSR1)
    ]


def change_handlers() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def mask() -> set[int]:
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})


def streams() -> tuple[str, bool, bool]:
    return type(sys.stdout).__name__, sys.stdout.closed, sys.stderr.closed


def replace_streams() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - left open on purpose


class Unusual:
    """Lacks what streams have."""


def replace_streams_by_others() -> None:
    sys.stdin = sys.stderr = None  # type: ignore[assignment]
    sys.stdout = Unusual()  # type: ignore[assignment]


def close_streams() -> None:
    sys.stdout.close()
    sys.stderr.close()


def detach_streams() -> None:
    sys.stdout.detach()


def descriptors() -> list[str]:
    return [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]


def close_descriptors() -> None:
    os.closerange(0, 3)


def redirect_descriptors() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def exchange_descriptors() -> None:
    third = os.dup(0)
    os.dup2(1, 0)
    os.dup2(2, 1)
    os.dup2(third, 2)
    os.close(third)


def open_output_anew() -> None:
    os.dup2(os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NONBLOCK), 1)


def open_output_to_append() -> None:
    os.dup2(os.open("/proc/self/fd/1", os.O_WRONLY | os.O_APPEND), 1)


def output_flags() -> int:
    return fcntl.fcntl(1, fcntl.F_GETFL)


def blocking_modes() -> list[bool]:
    return [os.get_blocking(number) for number in (0, 1, 2)]


def stop_blocking() -> None:
    for number in (0, 1, 2):
        os.set_blocking(number, False)


def forget_marks() -> None:
    del fcntl.F_SETSIG


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def become_nicer() -> None:
    os.nice(3)


def cpus() -> set[int]:
    return os.sched_getaffinity(0)


def leave_cpus() -> None:
    os.sched_setaffinity(0, {min(cpus())})


def language() -> str:
    return locale.setlocale(locale.LC_ALL)


def change_language() -> None:
    locale.setlocale(locale.LC_ALL, "C")


def wakeup() -> int:
    return signal.set_wakeup_fd(-1)


def set_wakeup() -> None:
    _, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)


def reports() -> bool:
    return faulthandler.is_enabled()


def stop_reports() -> None:
    faulthandler.disable()


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may go back")
CHANGES: Any = [
    (change_folder, folder),
    (change_umask, umask),
    (lower_open_files, open_files),
    (change_variables, variables),
    (replace_variables, variables),
    (change_zone, zone),
    (set_timer, timer),
    (set_timer, handlers),
    (change_handlers, handlers),
    (block, mask),
    (replace_streams, streams),
    (replace_streams_by_others, streams),
    (close_streams, streams),
    (detach_streams, streams),
    (close_descriptors, descriptors),
    (redirect_descriptors, descriptors),
    (exchange_descriptors, descriptors),
    (open_output_anew, output_flags),
    (open_output_to_append, output_flags),
    (stop_blocking, blocking_modes),
    (change_language, language),
    pytest.param(become_nicer, niceness, marks=AS_ROOT),
    pytest.param(
        leave_cpus,
        cpus,
        marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux has affinity"),
    ),
    (set_wakeup, wakeup),
    (stop_reports, reports),
]


# ------------------------------------------------ what cannot be put back


def enter(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    os.chdir(path)


def remove_and_leave(path: str) -> None:
    os.rmdir(path)
    os.chdir("/")


def lose_copies() -> int:
    """Close stdout, and the copies of standard descriptors that the worker has."""
    standard = [os.fstat(number) for number in (0, 1, 2)]
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        # Only copies: the worker's link may have a number as high.
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            if number > 2 and any(os.path.samestat(status, one) for one in standard):
                os.close(number)
    os.close(1)
    return os.getpid()
