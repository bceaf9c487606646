"""The process state that a task may change, and how the state is restored.

A worker runs one task after another in one process. The operating system keeps much of
a process's state, such as its working directory, limits, timers and descriptors.
`ProcessState` records this state once the pool's initializer has run. After each task
it compares the present state with the record, and restores what has changed. Since this
happens after every task, each part is read with the fastest possible call::

    task ends -> settle: timers, signal handlers -> the result is sent -> restore: rest
                 (they could call the task's code)

There is no fast way to detect that a task has changed nothing: an audit hook is called
only for ``setrlimit`` and ``chdir``, and not for changes by C code, and it makes each
call of `id` several times as expensive.

A worker whose state cannot be restored (a hard limit was lowered, the user or the root
directory was changed) is replaced. The interpreter's state is not restored: imported
modules, ``sys.path``, random generators, warning filters, loggers, OS threads. Modules
remain imported and may depend on this state. A task that must not share it with other
tasks needs ``isolation="fresh"``.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # typeshed has none
import faulthandler
import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from flowpregel import _linux

_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_ALARMS: Final = frozenset({signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF})
"""The signals that the timers send. Without a handler they end the process."""
_LIMITS: Final = tuple(
    # RLIMIT_RSS is left out, because it has no effect.
    {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    - {resource.RLIMIT_RSS}
)
_STANDARD: Final = (0, 1, 2)
_FIRST_COPY: Final = 64
"""The lowest number for the worker's own copies of the standard descriptors. It is
high, because tasks close and reuse low numbers.
"""
_MARKS: Final = (int(signal.SIGURG), int(signal.SIGWINCH), int(signal.SIGCONT))
"""The marks by which the open files of the standard descriptors are recognized. A mark
is the number of the signal that a file would send in asynchronous mode (`F_SETSIG`), in
which none of these files is. All three signals are ignored by default.
"""
_GET_MARK: Final = (getattr(fcntl, "F_GETSIG", 0),) * len(_STANDARD)
"""The `fcntl` command that reads the mark, once for each standard descriptor."""
_OFF: Final = (0.0, 0.0)
_PRIVATE: Final = 0o077
_HAS_AFFINITY: Final = hasattr(os, "sched_getaffinity")
_HAS_SAVED_IDS: Final = hasattr(os, "getresuid")
_LONGEST_TEXT: Final = 1 << 12


class _Now(NamedTuple):
    """The parts of a process's state at one moment, which are compared before and after
    a task. Messages show the names of the fields.
    """

    environment: tuple[bool, dict[bytes, bytes]]
    """A pair: whether `os.environ` is still the original mapping, and the variables in
    that mapping.
    """
    working_directory: str
    root_directory: tuple[int, int]
    umask: int
    resource_limits: Any
    """The content of ``/proc/self/limits``, because reading it takes a third of the
    time of reading the limits one by one. Without such a file, a list of the limits.
    """
    standard_descriptors: list[Any]
    blocking_modes: list[bool]
    signal_mask: Collection[int]
    nice_value: int
    locale: str
    users_and_groups: tuple[Any, ...]
    cpu_affinity: Collection[int]
    streams: tuple[Any, ...]


class ProcessState:
    """The state in which every task must find this process: its state when this object
    was created.

    Args:
        streams: A function that returns the worker's ``sys.stdin``, ``sys.stdout`` and
            ``sys.stderr``, with new streams in place of closed streams.
        blocking: The descriptors whose blocking mode is restored, each with True if it
            must block.
    """

    def __init__(
        self, streams: Callable[[], tuple[Any, Any, Any]], blocking: Mapping[int, bool]
    ) -> None:
        self._streams = streams
        self._blocking = blocking
        self._timers = [timer for timer in _TIMERS if signal.getitimer(timer) == _OFF]
        self._environment: Any = os.environ
        self._folder = os.getcwd()
        self._identify: Callable[[int, int], Any] = (
            fcntl.fcntl if _has_marks() else _identify_by_status
        )
        """A function that returns the identity of a descriptor's open file: its mark,
        which can be read in a fifth of the time of fstat, or, on systems without marks,
        its device and inode.
        """
        self._copies = [
            fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_COPY)
            for number in _STANDARD
        ]
        self._limits = _read_limits()
        self._limits_file = _open_limits()
        self._handlers = [*map(_signal.getsignal, _NUMBERS)]
        self._has_lost_handler = False
        """True if a signal handler that C code had set was replaced, because Python
        cannot restore such a handler.
        """
        now = _Now._make(self._read())
        self._before = now._replace(environment=(True, {**now.environment[1]}))
        self._repairs: dict[str, Callable[[Any], object]] = {
            "environment": self._set_environment,
            "working_directory": self._change_folder,
            "umask": os.umask,
            "resource_limits": self._set_limits,
            "standard_descriptors": self._duplicate,
            "blocking_modes": self._set_modes,
            "signal_mask": _block,
            "nice_value": _set_nice,
            "locale": _set_locale,
            "cpu_affinity": _set_cpus,
            "streams": self._set_streams,
        }
        """The functions that restore parts of the state, by the name of the part, in
        the order in which they are called. Each gets the recorded value.
        """

    def set_variable(self, name: bytes, value: bytes) -> None:
        """Set an environment variable for this task and the next tasks.

        The C library never frees *value*, so use only a few values.
        """
        # `os.environ` is bypassed, because writing to it takes five times as long, and
        # this is called for each task.
        os.putenv(name, value)
        self._environment._data[name] = value  # noqa: SLF001 - as in `_read`
        self._before.environment[1][name] = value

    def settle(self) -> None:
        """Stop the timers of a task that has ended, and restore the signal handlers.

        Raises:
            BaseException: One of the task's signal handlers ran during this call and
                raised the error.
        """
        for timer in self._timers:
            signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        try:  # noqa: SIM105 - costs nothing, `suppress` more than the call
            signal.set_wakeup_fd(-1)
        except ValueError:
            # An error means that the descriptor which the task had set is closed by
            # now.
            pass
        handlers = [*map(_signal.getsignal, _NUMBERS)]
        if handlers != self._handlers:
            self._restore_handlers(handlers)

    def _restore_handlers(self, handlers: list[Any]) -> None:
        """Restore each recorded signal handler that a task has replaced. *handlers* are
        the present handlers.
        """
        for number, handler, before in zip(
            _NUMBERS, handlers, self._handlers, strict=True
        ):
            if handler == before:
                continue
            if before is None:
                self._has_lost_handler = True
                continue
            if number in _ALARMS:
                # The last signal of a timer may not have been delivered yet. To ignore
                # the signal for a moment discards it.
                _signal.signal(number, _signal.SIG_IGN)
            _signal.signal(number, before)

    def restore(self) -> str:
        """Restore the rest of the process state after `settle`.

        Returns:
            The names of the parts that cannot be restored, or an empty string.
        """
        if not faulthandler.is_enabled():
            faulthandler.enable(file=2, all_threads=True)
        # `try` costs no time here, and `suppress` would cost more than a system call.
        try:
            if self._read() == self._before and not self._has_lost_handler:
                return ""
        except (OSError, ValueError):
            # An error means that the state has changed: a folder was deleted, or a
            # descriptor or stream was closed. The changes are repaired below.
            pass
        for name, repair in self._repairs.items():
            # The error of a failed repair is ignored, because the comparison below
            # finds the remaining difference.
            with suppress(Exception):
                repair(getattr(self._before, name))
        try:
            now = _Now._make(self._read())
        except (OSError, ValueError) as error:
            return str(error)
        lasting = ["signal handlers"] if self._has_lost_handler else []
        lasting.extend(
            name.replace("_", " ")
            for name in _Now._fields
            if getattr(now, name) != getattr(self._before, name)
        )
        return ", ".join(lasting)

    def _read(self) -> tuple[Any, ...]:
        """Read the fields of `_Now`, in their order.

        Since this is called after each task, it is one function and returns a tuple. To
        create a `_Now` would take as long as five system calls.
        """
        file = self._limits_file
        root = os.stat("/")
        # The mask is set and then restored, because it cannot be read in any other way.
        mask = os.umask(_PRIVATE)
        os.umask(mask)
        streams = sys.stdin, sys.stdout, sys.stderr
        return (
            # The dict of bytes inside `os.environ` is read, because the methods of the
            # mapping would decode each name and value.
            (os.environ is self._environment, self._environment._data),  # noqa: SLF001
            os.getcwd(),
            (root.st_dev, root.st_ino),
            mask,
            _read_limits() if file is None else os.pread(file, _LONGEST_TEXT, 0),
            [*map(self._identify, _STANDARD, _GET_MARK)],
            [*map(os.get_blocking, self._blocking)],
            _signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            os.getpriority(os.PRIO_PROCESS, 0),
            _locale.setlocale(_locale.LC_ALL, None),
            (os.getresuid(), os.getresgid()) if _HAS_SAVED_IDS else _own_ids(),
            os.sched_getaffinity(0) if _HAS_AFFINITY else (),
            (*streams, *[getattr(stream, "closed", None) for stream in streams]),
        )

    # ------------------------------------------------ parts of the state

    def _set_environment(self, before: tuple[bool, dict[bytes, bytes]]) -> None:
        # A task may have assigned another object to `os.environ`, so the original
        # mapping is assigned again.
        os.environ = self._environment  # noqa: B003
        _, variables = before
        current = os.environb
        for name in [*current]:
            if name not in variables:
                del current[name]
        for name, value in variables.items():
            if current.get(name) != value:
                current[name] = value
        time.tzset()

    def _set_limits(self, _: Any) -> None:
        for limit, values in zip(_LIMITS, self._limits, strict=True):
            if resource.getrlimit(limit) != values:
                resource.setrlimit(limit, values)

    def _change_folder(self, _: Any) -> None:
        os.chdir(self._folder)

    def _duplicate(self, before: list[Any]) -> None:
        for copy, number, identity in zip(self._copies, _STANDARD, before, strict=True):
            # If the identity of a copy has changed, a task has closed it, and the
            # number belongs to another file now. It is not used.
            if self._identify(copy, _GET_MARK[number]) == identity:
                os.dup2(copy, number)

    def _set_modes(self, _: Any) -> None:
        for number, mode in self._blocking.items():
            os.set_blocking(number, mode)

    def _set_streams(self, _: Any) -> None:
        sys.stdin, sys.stdout, sys.stderr = streams = self._streams()
        # Closed streams were replaced by new ones, so these are recorded as the state
        # to restore from now on.
        self._before = self._before._replace(streams=(*streams, False, False, False))


def _has_marks() -> bool:
    """Mark the open files of the standard descriptors, and return whether that worked.

    A mark belongs to the open file, as the blocking mode does. All copies of the
    descriptor share the mark, and a file that is opened later does not have it.
    """
    try:
        for number, mark in zip(_STANDARD, _MARKS, strict=True):
            fcntl.fcntl(number, fcntl.F_SETSIG, mark)
        return tuple(map(fcntl.fcntl, _STANDARD, _GET_MARK)) == _MARKS
    # `F_SETSIG` exists on Linux only.
    except (OSError, AttributeError):
        return False


def _identify_by_status(number: int, _: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _read_limits() -> list[tuple[int, int]]:
    return [*map(resource.getrlimit, _LIMITS)]


def _open_limits() -> int | None:
    """Open ``/proc/self/limits`` and return its descriptor, or None on a system without
    this file.
    """
    opened = _linux.open_proc("self/limits")
    if opened is None:
        return None
    try:
        return fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _FIRST_COPY)
    finally:
        os.close(opened)


def _own_ids() -> tuple[int, ...]:
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid()


def _block(before: Collection[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_nice(before: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, before)


def _set_locale(before: str) -> None:
    _locale.setlocale(_locale.LC_ALL, before)


def _set_cpus(before: Collection[int]) -> None:
    if before:
        os.sched_setaffinity(0, before)
