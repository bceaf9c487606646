"""`shell`: a task that runs a command."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flowpregel.context import current, nothing
from flowpregel.errors import CommandFailedError, RunStopped
from flowpregel.func.decorator import task
from flowpregel.runtime import StopSignal

_LOOK_EVERY: Final = 0.05
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    exit_code: int
    """Negative: the signal that killed it."""
    output: str
    """The end of what it wrote to its stdout."""


@task
def shell(
    command: str | Sequence[str],
    *,
    check: bool = True,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    keep: int = 1 << 20,
) -> CommandResult:
    """Run a command in a task; what it has started ends with it, and with its task.

    Its stderr is that of the task. When its run is to end in time, it gets SIGTERM.

    Args:
        command: A text for the shell, or a program and its arguments.
        check: Whether an exit code other than 0 is an error.
        cwd: The folder it runs in.
        env: Environment variables, beside those of the worker.
        keep: How many bytes of its stdout are kept, of the last.

    Raises:
        CommandFailedError: It failed, and *check* is set.
        RunStopped: It was told to end, and has not ended well.

    Example:
        >>> shell.func("echo hello").output
        'hello\\n'
    """
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, was_told = _read(process, max(keep, 1))
        code = process.wait()
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()
    text = command if isinstance(command, str) else shlex.join(command)
    if code and was_told:
        raise RunStopped(f"{text!r} was told to end")
    if code and check:
        raise CommandFailedError(text, code, output)
    return CommandResult(code, output)


def _read(process: subprocess.Popen[bytes], keep: int) -> tuple[str, bool]:
    """Return the last of what *process* writes, once it has ended; and whether it was told to."""
    assert process.stdout is not None
    output, was_told = bytearray(), False
    scope = current.get()
    stopping = StopSignal(nothing if scope is None else scope.ends.is_ending)
    with process.stdout as pipe:
        while True:
            if stopping and not was_told:
                was_told = True
                _signal(process, signal.SIGTERM)
            if select.select([pipe], [], [], _LOOK_EVERY)[0]:
                data = os.read(pipe.fileno(), _CHUNK)
                if not data:
                    break
                output += data
                if len(output) > 2 * keep:
                    del output[:-keep]
            elif process.poll() is not None:  # what it has left behind may write for ever
                break
    return output[-keep:].decode(errors="replace"), was_told


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started, if there are any left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
