"""The buttons of the page: each starts the command, as a process of its own.

So no code of the user's runs in the server, and a run that a button started outlives it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from flowpregel._text import printable
from flowpregel.errors import ConfigurationError

Words: TypeAlias = list[str]
_MOST = 50
"""Of the commands that have ended, the last ones are known."""
_SHOWN = 4_000
"""Bytes of what a command printed, from its end."""


def _answer(question: str, value: str, text: bool) -> tuple[Words, Words]:
    return ["--quiet", f"--id={question}", *(["--text"] if text else [])], [value]


_COMMANDS: Mapping[str, Callable[..., tuple[Words, Words]]] = {
    "answer": _answer,
    "cancel": lambda: (["--wait=0"], []),
    "resume": lambda: (["--quiet"], []),
    "retry": lambda: (["--quiet", "--failed"], []),
    "redo": lambda call: ([], [call]),
    "fork": lambda checkpoint, name: ([f"--at={checkpoint}"], [name]),
}
"""By name: makes the options of a command, and its arguments after the thread."""
ACTIONS = (*_COMMANDS,)


@dataclass(frozen=True)
class StartedCommand:
    """A command that a button started."""

    number: int
    thread: str
    line: str
    """As it would be written in a shell."""
    process: subprocess.Popen[bytes]
    output: int
    """The descriptor of a file that has no name."""

    def to_json(self) -> dict[str, Any]:
        """Return what is known of it now."""
        code = self.process.poll()
        begin = max(os.fstat(self.output).st_size - _SHOWN, 0)
        text = os.pread(self.output, _SHOWN, begin).decode(errors="replace").strip()
        told = {"number": self.number, "thread": self.thread, "line": self.line}
        return {**told, "code": code, "output": printable(text)}


class Actions:
    """Starts commands on a store, and knows how they ended.

    Args:
        store: The store's folder.
        options: What every command is given, such as ``--trust``.
    """

    def __init__(self, store: str, options: Sequence[str] = ()) -> None:
        self._options = [*options, f"--store={store}"]
        self._started: list[StartedCommand] = []
        self._numbers = count(1)

    def start(self, action: str, thread: str, **asked: Any) -> int:
        """Start a command, and return its number.

        Args:
            action: One of `ACTIONS`.
            thread: Whose run.
            asked: What else it needs: texts, and for ``answer`` whether it is one (``text``).

        Raises:
            ConfigurationError: That is no request for this action.
        """
        try:
            options, arguments = _COMMANDS[action](**asked)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"the request for {action!r} is not complete") from error
        # What follows the two dashes is no option, however it begins.
        words: list[Any] = [action, *options, *self._options, "--", thread, *arguments]
        if not all(isinstance(each, str) and "\0" not in each for each in words):
            raise ConfigurationError(f"what {action!r} is given has to be text")
        output, path = tempfile.mkstemp()
        os.unlink(path)
        process = subprocess.Popen(
            [sys.executable, "-m", "flowpregel.cli", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        line = shlex.join(["flowpregel", *words])
        made = StartedCommand(next(self._numbers), thread, line, process, output)
        self._started.append(made)
        for forgotten in self._started[:-_MOST]:
            os.close(forgotten.output)
        del self._started[:-_MOST]
        return made.number

    def told(self, thread: str) -> list[dict[str, Any]]:
        """Return what is known of the commands for a thread, the last started first."""
        return [each.to_json() for each in reversed(self._started) if each.thread == thread]
