"""A terminal for tests: a program runs in it, and its lines are read as a person
would.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

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
