"""The buttons of the page, each of which starts a command as a process of its own.

So no user code runs in the server, and a run that a button has started continues when
the server ends.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from flowpregel.errors import ConfigurationError
from flowpregel.watching import printable

Words: TypeAlias = list[str]
_MOST_COMMANDS = 50
"""The maximum number of started commands that are remembered. The oldest ones are
forgotten first.
"""
_OUTPUT_SIZE = 4_000
"""The maximum number of bytes of a command's output that are shown. They are the end of
the output.
"""


def _answer_words(
    thread: str,
    answers: Sequence[Mapping[str, Any]],
) -> tuple[Words, Words]:
    """Return the options and the arguments for the command ``flowpregel answer``.

    Args:
        thread: The id of the run.
        answers: The answers, at least one. Each has the id of the ``question``, the
            ``value``, which is JSON or text, and ``text``, which is true if the value
            is text even if it looks like JSON.

    Raises:
        KeyError: An answer lacks one of these three items.
        TypeError: There is no answer, or a value is not a string.
    """
    if not answers:
        raise TypeError("there is no answer")
    options = ["--quiet"]
    values: Words = []
    for answer in answers:
        question = answer["question"]
        options.append(f"--id={question}")
        values.append(_as_json(answer["value"], text=answer["text"]))
    return options, [thread, *values]


def _retry_words(
    thread: str,
    task: str | None = None,
    error: str | None = None,
) -> tuple[Words, Words]:
    """Return the options and the argument for the command ``flowpregel retry``.

    Args:
        thread: The id of the run.
        task: The name of the task whose failed calls are tried again, or None for all.
        error: The error of these calls, or None for all errors.
    """
    options = ["--quiet", "--failed"]
    if task is not None:
        options.append(f"--task={task}")
    if error is not None:
        options.append(f"--error={error}")
    return options, [thread]


def _unpause_words(
    thread: str,
    scope: str | None = "",
) -> tuple[Words, Words]:
    """Return the options and the arguments for the command ``flowpregel unpause``.

    Args:
        thread: The id of the run.
        scope: The name of a flow whose pause ends too, None to end all pauses, or an
            empty string to end only the pause of the run.
    """
    if scope is None:
        return ["--all"], []
    options = [f"--flow={scope}"] if scope else []
    return options, [thread]


_JSON_BEGINNINGS = ("[", "{", '"')
"""The characters with which a list, an object or a string begins in JSON."""


def _as_json(value: str, *, text: bool) -> str:
    """Return the JSON of a value that the user has typed, either as JSON or as plain
    text.

    Raises:
        ConfigurationError: The value begins like JSON, but is not valid JSON, so it is
            unclear whether it is meant as text.
    """
    if not isinstance(value, str):
        raise TypeError("a value must be text")
    if text:
        return json.dumps(value)
    try:
        return json.dumps(json.loads(value))
    except ValueError as error:
        if value.lstrip().startswith(_JSON_BEGINNINGS):
            raise ConfigurationError(
                f"{value!r} is not valid JSON ({error}); correct it, or choose "
                "'as text' to send it as it is"
            ) from error
    return json.dumps(value)


_COMMANDS: Mapping[str, Callable[..., tuple[Words, Words]]] = {
    "answer": _answer_words,
    "cancel": lambda thread: ([], [thread]),
    "wake": lambda thread: (["--quiet"], [thread]),
    "signal": lambda thread, name, value, text: (
        ["--wake"],
        [thread, name, _as_json(value, text=text)],
    ),
    "resume": lambda thread: (["--quiet"], [thread]),
    "retry": _retry_words,
    "pause": lambda thread: ([], [thread]),
    "unpause": _unpause_words,
    "redo": lambda thread, call: ([], [thread, call]),
    "fork": lambda thread, checkpoint, name: (
        [f"--at={checkpoint}"],
        [thread, name],
    ),
}
"""The functions that return the options and the arguments of a command about a run, by
the name of the command.
"""
ACTIONS = tuple(_COMMANDS)
ACTION_PATHS = ("/api/form", "/api/start", *(f"/api/actions/{x}" for x in ACTIONS))
"""The paths that accept POST requests: those of the form that starts a run, and of the
buttons.
"""


@dataclass(frozen=True)
class StartedCommand:
    """A command that a button started."""

    number: int
    action: str
    thread: str
    line: str
    """The command line, as a shell takes it."""
    process: subprocess.Popen[bytes]
    output: int
    """The descriptor of an unnamed file with the command's output."""

    def to_json(self) -> dict[str, Any]:
        """Return the exit code, if the command has ended, and the last output."""
        exit_code = self.process.poll()
        size = os.fstat(self.output).st_size
        begin = max(size - _OUTPUT_SIZE, 0)
        output = os.pread(self.output, _OUTPUT_SIZE, begin).decode(errors="replace")
        return {
            "number": self.number,
            "action": self.action,
            "thread": self.thread,
            "line": self.line,
            "code": exit_code,
            "output": printable(output.strip()),
        }


class Actions:
    """An object that starts commands on a store, and records how they end.

    Args:
        store: The store's folder.
        options: The options of each command, such as ``--trust``.
        flows: The flows that the form offers even if no run in the store has recorded
            them.
    """

    def __init__(
        self,
        store: str,
        options: Sequence[str] = (),
        flows: Sequence[str] = (),
    ) -> None:
        self.flows: tuple[str, ...] = tuple(flows)
        self.options: Words = [*options, f"--store={store}"]
        self._started: list[StartedCommand] = []
        self._numbers = count(1)

    def start(
        self,
        action: str,
        thread: str,
        /,
        **parameters: Any,
    ) -> int:
        """Start a command, and return its number.

        Args:
            action: One of `ACTIONS`.
            thread: The id of the run.
            parameters: The parameters of the action: strings, or for ``answer`` a list
                of ``answers``.

        Raises:
            ConfigurationError: The action does not have these parameters, or a value is
                not valid.
        """
        try:
            options, arguments = _COMMANDS[action](thread, **parameters)
        except ConfigurationError:
            raise
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the request for {action!r} is incomplete"
            ) from error
        return self.launch(action, thread, [action, *options], arguments)

    def launch(
        self,
        action: str,
        thread: str,
        words: Sequence[str],
        arguments: Sequence[str],
    ) -> int:
        """Start a command on the store, and return its number.

        Args:
            action: The name of the button.
            thread: The id of the run.
            words: The name of the command, followed by options other than the store.
            arguments: The arguments of the command.

        Raises:
            ConfigurationError: An argument is not a string.
        """
        # The arguments follow two dashes, so that a word that begins like an option is
        # not read as one.
        all_words = [*words, *self.options, "--", *arguments]
        output, path = tempfile.mkstemp()
        os.unlink(path)
        try:
            line = shlex.join(["flowpregel", *all_words])
            process = _start_process(all_words, output)
        except (TypeError, ValueError) as error:
            os.close(output)
            raise ConfigurationError(
                f"the arguments of {action!r} must be text"
            ) from error
        command = StartedCommand(
            number=next(self._numbers),
            action=action,
            thread=thread,
            line=line,
            process=process,
            output=output,
        )
        self._started.append(command)
        self._forget_oldest()
        return command.number

    def _forget_oldest(self) -> None:
        """Forget the oldest commands if there are too many."""
        for forgotten in self._started[:-_MOST_COMMANDS]:
            os.close(forgotten.output)
        del self._started[:-_MOST_COMMANDS]

    def commands(self, thread: str | None = None) -> list[dict[str, Any]]:
        """Return the exit codes and outputs of the commands that buttons have started
        for a thread, or for all threads. The command that was started last comes first.
        """
        return [
            command.to_json()
            for command in reversed(self._started)
            if thread is None or command.thread == thread
        ]


def _start_process(
    words: Sequence[str],
    output: int,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, which outlives the server."""
    return subprocess.Popen(
        [sys.executable, "-m", "flowpregel.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
