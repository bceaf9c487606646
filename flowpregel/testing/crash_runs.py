"""One run of a workflow that may be killed: the process it runs in, and the folder it leaves.

`flowpregel.testing.crash` says what runs are made and compares what became of them.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from flowpregel.testing.crash_child import LENGTH, REPLY, Came, Order

_MOST_LINES = 8


class CrashError(Exception):
    """The harness cannot do its work: the workflow fails when nobody disturbs it."""


class Nursery:
    """The process that forks the children; see `crash_child`.

    Args:
        modules: Names of modules that it imports before it forks.
        timeout: Seconds that a child may take.
    """

    def __init__(self, modules: tuple[str, ...], timeout: float) -> None:
        self._timeout = timeout
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flowpregel.testing.crash_child", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, order: Order) -> int:
        """Run a child; return its exit code, or the negative number of the signal that ended it.

        Raises:
            CrashError: The nursery itself did not start.
            TimeoutError: The child took too long, and was killed.
        """
        data = pickle.dumps(order)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(LENGTH.pack(len(data)) + data)
        pid = self._reply(self._timeout)
        if pid is None:
            raise CrashError("the process that forks the runs did not start: see its output")
        status = self._reply(self._timeout)
        if status is None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._reply(self._timeout)
            raise TimeoutError
        return status

    def _reply(self, timeout: float) -> int | None:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], timeout)[0]:
            return None
        data = stdout.read(REPLY.size)
        return None if len(data) < REPLY.size else int(REPLY.unpack(data)[0])


class Series:
    """The folder of one workflow that is killed and goes on: its store, its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.log, self.once = folder / "log", folder / "once"
        self.result, self.output = folder / "result", folder / "output"
        self.work.mkdir(parents=True, exist_ok=True)

    def copy(self, folder: Path) -> Series:
        """Return a copy in another folder."""
        shutil.copytree(self.folder, folder)
        return Series(folder)

    def lines(self) -> list[list[str]]:
        """Return the log: (name, pid, n, about) of each line."""
        if not self.log.exists():
            return []
        return [line.split("\t", 3) for line in self.log.read_text().splitlines()]

    def came(self) -> Came:
        """Return what the last run that ended came to."""
        came = pickle.loads(self.result.read_bytes())
        assert isinstance(came, Came)
        return came

    def printed(self) -> str:
        """Return the end of what the runs printed."""
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return "\n".join(text.splitlines()[-_MOST_LINES:])
