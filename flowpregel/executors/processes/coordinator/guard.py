"""The coordinator's connection to the guard: a small process that outlives the
coordinator, and then kills what its tasks have started.
"""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import count
from typing import TYPE_CHECKING

from flowpregel.executors.processes.wire import guard_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen


class Guard:
    """The coordinator's connection to the guard process, which kills the processes that
    tasks started if the coordinator dies. It is used on the I/O thread, and after the
    I/O thread has ended.
    """

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        name = os.urandom(8).hex()
        self.tags: Iterator[str] = (f"{name}.{number}" for number in count(1))
        """The tags (unique strings) for the workers that will be started. The processes
        that a worker starts inherit its tag in their environment, by which the guard
        finds them.
        """

    def add(self, pid: int, tag: str) -> None:
        """Start the guard process if it does not run yet, and pass it the *pid* and the
        *tag* of a worker.
        """
        import subprocess  # noqa: PLC0415 - 6 ms, and only a pool that starts needs it
        import tempfile  # noqa: PLC0415

        if self._process is None:
            # The pool can work without the guard process: the kernel ends the workers
            # with the coordinator in any case. Only processes and scratch folders of
            # their tasks may then be left behind.
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        guard_process.__file__,
                        str(os.getpid()),
                        tempfile.gettempdir(),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        self._send(f"+ {pid} {tag}\n")

    def remove(self, pid: int, tag: str, *, killed: bool) -> None:
        """Report to the guard that worker *pid* has ended.

        If the worker was *killed*, the guard also kills the processes that its task has
        started.
        """
        self._send(f"{'x' if killed else '-'} {pid} {tag}\n")

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            # An error means that the guard process was killed. The pool continues
            # without it.
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), line.encode())

    def close(self) -> None:
        """Wait until the guard has handled all reports and has ended."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.communicate()
            self._process = None
