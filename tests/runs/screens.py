"""A terminal for tests: a program runs in it, and its lines are read as a person
would.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PARTS = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """The lines of a terminal that is high enough for all of them.

    It obeys what rich writes: ends of lines, the cursor up, and what is erased.
    """

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Show *text* as a terminal would."""
        for part in _PARTS.finditer(text):
            if part[0] == "\r":
                self._column = 0
            elif part[0] == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
            elif part[2] is not None:
                self._obey(
                    part[2],
                    int(part[1] or 1) if part[1].isdigit() or not part[1] else 0,
                )
            else:
                line = self.lines[self._row].ljust(self._column)
                end = self._column + len(part[0])
                self.lines[self._row] = line[: self._column] + part[0] + line[end:]
                self._column = end

    def _obey(self, command: str, number: int) -> None:
        match command:
            case "A":
                self._row = max(0, self._row - number)
            case "K":
                self.lines[self._row] = ""
            case "m" | "h" | "l":
                pass  # colours, and whether the cursor is seen
            case _:
                raise AssertionError(f"the screen does not know ESC[{number}{command}")


def run_on_terminal(program: str, folder: Path) -> list[str]:
    """Run a Python *program* in *folder* on a terminal of its own; return the lines it
    shows.
    """
    script = folder / "program.py"
    script.write_text(program)
    ours, its = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=folder,
        env=env,
    )
    os.close(its)
    parts = []
    try:
        while part := os.read(ours, 1 << 16):
            parts.append(part)
    except OSError:
        pass  # so ends what is read of a terminal that nobody has any more
    finally:
        os.close(ours)
    screen = Screen()
    screen.write(b"".join(parts).decode())
    lines = [line.rstrip() for line in screen.lines]
    assert 0 == process.wait(), "\n".join(lines)
    return lines


_ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]|\x1b[()][A-Z0-9]")
_LONG = 60.0
"""Seconds after which a test gives up: no test is about how long anything takes."""


class Terminal:
    """A program on a terminal of its own, and a person who reads and presses keys."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self.written = ""
        """All that the program has written, with its escape sequences."""
        self._read = 0
        """The length of what was written when a key was pressed last."""

    def until(self, *texts: str) -> str:
        """Wait until all texts were written since a key was pressed last; return what
        was written since.
        """
        end = time.monotonic() + _LONG
        shown = ""
        while not all(text in shown for text in texts):
            assert time.monotonic() < end, f"{texts} not seen in: {shown[-3000:]}"
            assert self._take(), f"{texts} not seen before the end: {shown[-3000:]}"
            shown = plain(self.written[self._read :])
        return shown

    def press(self, keys: str) -> None:
        """Press keys. What was written before is not waited for any more."""
        self._read = len(self.written)
        os.write(self._descriptor, keys.encode())

    def wait(self) -> int:
        """Read until the program ends, and return its exit code."""
        while self._take():
            pass
        return self._process.wait(_LONG)

    def _take(self) -> bool:
        """Read something that the program writes, or return False at its end."""
        ready, _, _ = select.select([self._descriptor], [], [], _LONG)
        assert ready, f"nothing is written any more: {self.written[-3000:]}"
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:
            return False  # so ends what is read of a terminal that nobody has any more
        self.written += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def plain(text: str) -> str:
    """Return *text* without escape sequences."""
    return _ESCAPES.sub("", text)


@contextmanager
def on_terminal(
    command: Sequence[str],
    folder: Path,
    *,
    columns: int = 100,
    **variables: str,
) -> Iterator[Terminal]:
    """Run a command on a terminal with 30 lines, until the end of the ``with`` block.

    Args:
        command: The words of the command.
        folder: The folder in which it runs.
        columns: The width of the terminal.
        variables: Further variables of its environment.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    ignored = ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")
    environment = {k: v for k, v in os.environ.items() if k not in ignored}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **variables}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
