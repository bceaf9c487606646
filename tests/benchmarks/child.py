"""Starts a side's process, talks to it, and adds up the CPU time of all processes below
it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.benchmarks.model import Side

START, TURN = 180.0, 240.0
"""Seconds that a side may take to get ready, and for one turn."""
ROOT = Path(__file__).parents[2]
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_HOME": os.path.join(tempfile.gettempdir(), "flowpregel-bench-prefect"),
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What keeps peers from talking to the world, and from writing into one's home."""


class SideError(Exception):
    """A side failed, or took too long; the message has the end of what it printed."""


class Child:
    """A side in a process of its own.

    Args:
        side: What it does.
        environment: Environment variables that it gets besides ours.
    """

    def __init__(self, side: Side, environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = [sys.executable, "-m", "tests.benchmarks.side", side.maker]
        self._process = subprocess.Popen(
            [*command, json.dumps(dict(side.options))],
            cwd=ROOT,
            stderr=self._log,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(environment),
        )

    def __enter__(self) -> Child:
        return self

    def ready(self) -> None:
        """Wait until the work can begin."""
        self._answer(START)

    def go(self) -> dict[str, float]:
        """Have it do the work once; return its figures, and the CPU seconds as
        ``cpu``.
        """
        before = cpu_seconds(self._process.pid)
        figures: dict[str, float] = self._ask("go")
        if before is not None:
            figures.setdefault("cpu", (cpu_seconds(self._process.pid) or 0.0) - before)
        return figures

    def profile(self) -> dict[str, Any]:
        """Have it do the work once under cProfile; return where the time went."""
        found: dict[str, Any] = self._ask("profile")
        return found

    def _ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{what}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SideError(self._said()) from None
        return self._answer(TURN)

    def _answer(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            left = max(0.0, until - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise SideError(f"no answer within {seconds:.0f} s; {self._said()}")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise SideError(self._said())
            line += part
        return json.loads(line)

    def _said(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-12:])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(5 if kind is not None else 30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()


def _environment(more: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join(
        each for each in (str(ROOT), os.environ.get("PYTHONPATH")) if each
    )
    # With bytecode at hand, as an installed package has it.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **QUIET, "PATH": search_path(), "PYTHONPATH": path, **more}


def search_path() -> str:
    """Return where a side finds programs: first those of packages beside ours, as if
    the environment were activated.
    """
    folder = str(Path(sys.executable).parent)
    return os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU seconds of a process and all below it, the ended ones too; None if
    unknown.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        try:
            fields = (
                Path(f"/proc/{each}/stat").read_text("utf-8").rpartition(")")[2].split()
            )
            tasks = [*Path(f"/proc/{each}/task").iterdir()]
            children = " ".join(
                (task / "children").read_text("utf-8") for task in tasks
            )
        except OSError:
            if each == pid:
                return None
            continue
        total += sum(int(field) for field in fields[11:15])
        waiting += [int(child) for child in children.split()]
    return total / ticks
