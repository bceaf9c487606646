"""Fault points, at which a test can make the program die, stop, fail or wait.

The library calls `fault` at each step after which a crash must do no harm. The calls do
nothing unless one of these environment variables is set:

``FLOWPREGEL_FAULT_TRACE=file``
    Appends a line for each point that is passed: ``name<TAB>pid<TAB>n<TAB>about``.
``FLOWPREGEL_FAULT=name:n:kill``
    Acts when a process passes the point *name* for the *n*-th time: ``kill``
    (SIGKILL to itself), ``stop`` (SIGSTOP), ``raise`` (`InjectedFault`), ``delay``
    (0.1 s).
``FLOWPREGEL_FAULT_ONCE=file``
    The file is created before acting. While the file exists, no process acts, so a
    fault in a worker does not happen again in the worker that replaces it.

Each worker process reads the variables itself, and has its own counters. The names of
the points in workers begin with ``worker.``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

TRACE, FAULT, ONCE = (
    "FLOWPREGEL_FAULT_TRACE",
    "FLOWPREGEL_FAULT",
    "FLOWPREGEL_FAULT_ONCE",
)
ACTIONS = ("kill", "stop", "raise", "delay")
_DELAY = 0.1


class InjectedFault(Exception):
    """A fault that a test requested."""


class Points:
    """A counter of the fault points that this process passes. When the process has
    passed the chosen point the chosen number of times, the counter performs the action
    (kill, stop, raise, delay).

    Args:
        trace: The file to append to, if any.
        fault: The point and the action, in the form of ``FLOWPREGEL_FAULT``.
        once: The file whose existence means that the action was done.
        prefix: The prefix of the names of this process's points.

    Raises:
        ValueError: *fault* cannot be read.
    """

    def __init__(
        self, trace: str | None, fault: str | None, once: str | None, prefix: str = ""
    ) -> None:
        self._passed: Counter[str] = Counter()
        self._prefix = prefix
        self._trace, self._once = trace, once
        self._name, at, self._action = [*(fault or "").split(":"), "", ""][:3]
        if fault and not (at.isdigit() and self._action in ACTIONS):
            raise ValueError(
                f"{FAULT}={fault!r}; use name:n:action, where action is one of "
                f"{', '.join(ACTIONS)}"
            )
        self._at = int(at or 0)

    def passed(self, name: str, about: str) -> None:
        """Count a pass of the point *name*, and perform the action if this pass is the
        chosen one.
        """
        name = self._prefix + name
        self._passed[name] += 1
        count = self._passed[name]
        if self._trace:
            append(self._trace, f"{name}\t{os.getpid()}\t{count}\t{about}\n")
        if (name, count) != (self._name, self._at):
            return
        if self._once:
            try:
                open(self._once, "x").close()
            except FileExistsError:
                return
        _act(self._action, f"{name}:{count}")


def append(path: str, line: str) -> None:
    """Append *line* to a file in one write, so that the line is complete even if the
    process dies next.
    """
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _act(action: str, where: str) -> None:
    if action == "raise":
        raise InjectedFault(f"a fault was asked for at {where}")
    if action == "delay":
        # Imported inside the function: every program imports this module, but few
        # inject faults.
        import time  # noqa: PLC0415

        time.sleep(_DELAY)
        return
    import signal  # noqa: PLC0415 - as above

    # The signal addresses this OS thread. If it addressed the process, another thread
    # might receive it, after this one has passed the fault point.
    signal.raise_signal(signal.SIGKILL if action == "kill" else signal.SIGSTOP)


points: Points | None = None
"""The points of this process, or None if no fault point has an effect. Code that every
task passes checks this first, so that it makes no call for points that do nothing.
"""


def arm(prefix: str = "") -> None:
    """Read the environment variables again, and reset the counters.

    Args:
        prefix: The prefix of the names of this process's points.
    """
    global points
    trace, request = os.environ.get(TRACE), os.environ.get(FAULT)
    points = None
    if trace or request:
        points = Points(trace, request, os.environ.get(ONCE), prefix)


def fault(name: str, about: Any = None, tell: Callable[[Any], str] = str) -> None:
    """Pass the fault point *name*.

    Args:
        name: The name of the point.
        about: A value to show in the trace's line.
        tell: Converts *about* to text; called only if the process has points.

    Example:
        >>> fault("my_engine.commit")  # crashes here if a test requests it
    """
    if points is not None:
        points.passed(name, "" if about is None else tell(about))


arm()
