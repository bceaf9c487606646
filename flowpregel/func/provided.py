"""The built-in tasks `shell`, `sleep` and `signal`, and the argument type `File`.

`sleep` waits for a time and `signal` for a value from elsewhere, in a way that survives
the end of the program. Both are ordinary task calls: they are recorded, run in parallel
with other calls, and return the recorded result in a resumed run. They occupy no
worker, because they wait on an event loop of the process that drives the run.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as TimeOfDay
from signal import SIGKILL, SIGTERM
from typing import IO, Any, Final, TypeAlias

from flowpregel import _clock
from flowpregel._core.files import collect_file
from flowpregel._core.ids import CallKey, text_digest
from flowpregel._core.records import Node
from flowpregel._engine.nested import RunContext
from flowpregel._pickling.file_digests import present_or_recorded_digest
from flowpregel.context import current, current_scope, interrupt, nothing
from flowpregel.errors import CommandFailedError, ConfigurationError, RunStopped
from flowpregel.executors.calls import CallFuture
from flowpregel.func.decorator import task
from flowpregel.func.options import TaskOptions
from flowpregel.func.tasks import TaskFunction
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL, StopSignal, pauses

_CHECK_EVERY: Final = 0.05
"""Seconds between two checks, while a command runs, whether the run was asked to stop.
"""
_CHUNK: Final = 1 << 16
_STDERR_SIZE: Final = 1 << 14
"""The number of bytes at the end of a command's stderr that are kept for the error
message if the command fails.
"""
_STDERR: Final = 2
"""The file descriptor of stderr."""
_READ_AFTER_END: Final = 1.0
"""Seconds for which output is still read after the command has ended, because processes
that it started may still write.
"""
_SIGNAL_EVERY: Final = 0.2
"""Seconds between two checks whether a value was sent to a waiting `signal`."""


# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command that has ended.

    Example:
        >>> from flowpregel import shell
        >>> shell.func("exit 3", check=False).exit_code
        3
    """

    exit_code: int
    """The exit code. If a signal killed the command, the negative signal number."""
    output: str
    """The end of the command's stdout."""


@task
def shell(
    command: str | Sequence[str],
    *,
    check: bool = True,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    keep: int = 1 << 20,
) -> CommandResult:
    """Run a command in a task.

    Processes that the command starts are killed when the command or the task ends. The
    command's stderr is passed on to the task's stderr at once. The command gets SIGTERM
    when the run is asked to stop.

    Args:
        command: A shell command as a string, or a list of a program and its arguments.
        check: Whether an exit code other than 0 is an error.
        cwd: The folder that the command runs in.
        env: Environment variables, in addition to those of the worker.
        keep: The number of bytes to keep from the end of stdout.

    Raises:
        CommandFailedError: The command failed, and *check* is set.
        RunStopped: The command failed after it got SIGTERM.

    Example:
        >>> shell.func("echo hello").output
        'hello\\n'
    """
    if not isinstance(command, str | Sequence):
        raise TypeError(f"shell({command!r}): use a text, or a list of texts")
    environment = None if env is None else {**os.environ, **env}
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors, was_asked_to_end = _read(process, max(keep, 1))
        code = process.wait()
    finally:
        _signal(process, SIGKILL)
        process.wait()
    text = command if isinstance(command, str) else shlex.join(command)
    if code and was_asked_to_end:
        raise RunStopped(f"{text!r} was asked to end")
    if code and check:
        raise CommandFailedError(text, code, output, errors)
    return CommandResult(code, output)


def _read(process: subprocess.Popen[bytes], keep: int) -> tuple[str, str, bool]:
    """Read both streams of *process* until it has ended.

    Args:
        process: The process that runs the command.
        keep: The number of bytes to keep from the end of stdout. For stderr, this is a
            constant.

    Returns:
        The ends of stdout and stderr, and whether the command got SIGTERM.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    output = StreamEnd(process.stdout, keep)
    errors = StreamEnd(process.stderr, _STDERR_SIZE, is_passed_on=True)
    scope = current.get()
    is_ending = nothing if scope is None else scope.run_client.is_ending
    stopping = StopSignal(is_ending)
    was_asked_to_end = False
    deadline = math.inf
    with output.pipe, errors.pipe, selectors.DefaultSelector() as open_streams:
        for stream in (output, errors):
            open_streams.register(stream.pipe, selectors.EVENT_READ, stream)
        while open_streams.get_map() and time.monotonic() < deadline:
            if process.poll() is not None:
                deadline = min(deadline, time.monotonic() + _READ_AFTER_END)
            if stopping and not was_asked_to_end:
                was_asked_to_end = True
                _signal(process, SIGTERM)
            has_read = _read_available(open_streams)
            if deadline < math.inf and not has_read:
                break
    return output.text(), errors.text(), was_asked_to_end


def _read_available(open_streams: selectors.BaseSelector) -> bool:
    """Wait a short time for data of *open_streams*, and read it.

    Streams that have ended are removed.

    Returns:
        True if a stream had data, or has ended.
    """
    ready = open_streams.select(_CHECK_EVERY)
    for key, _ in ready:
        stream: StreamEnd = key.data
        if not stream.read():
            open_streams.unregister(stream.pipe)
    return bool(ready)


class StreamEnd:
    """The last bytes that a command has written to an output stream.

    Args:
        pipe: The end of the pipe to read from.
        keep: The number of bytes to keep.
        is_passed_on: Whether the data is also written to the stderr of this process.
    """

    def __init__(
        self, pipe: IO[bytes], keep: int, *, is_passed_on: bool = False
    ) -> None:
        self.pipe = pipe
        self._keep = keep
        self._is_passed_on = is_passed_on
        self._data = bytearray()

    def read(self) -> bytes:
        """Read data from the pipe, return it, and keep the last bytes for `text`.

        The data is empty if the stream has ended.
        """
        data = os.read(self.pipe.fileno(), _CHUNK)
        if self._is_passed_on:
            _pass_on(data)
        self._data += data
        if len(self._data) > 2 * self._keep:
            del self._data[: -self._keep]
        return data

    def text(self) -> str:
        """Return the kept bytes, decoded."""
        return self._data[-self._keep :].decode(errors="replace")


def _pass_on(data: bytes) -> None:
    """Write *data* to the file descriptor of stderr, as the command itself would have
    done.
    """
    # If the descriptor is closed, there is no place for the output, so the error is
    # ignored.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(_STDERR, data) :]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and to all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


# ---------------------------------------------------------------- waiting


End: TypeAlias = datetime | TimeOfDay | float
"""The end of a sleep: a time, a time of day, or seconds since the epoch."""


def sleep(seconds: float | None = None, *, until: End | None = None) -> None:
    """Wait inside a run. A run that is killed and resumed waits only for the remaining
    time.

    The end of the wait is recorded when the wait begins. When a body runs again, its
    first sleep gets the first recorded end, its second sleep the second, and so on,
    even if the body computes other times then.

    Args:
        seconds: The number of seconds to wait.
        until: The end of the wait, instead of *seconds*: a ``datetime``, a time of day
            (``datetime.time``; the next such time), or seconds since the epoch. A time
            without a time zone is local.

    Raises:
        RuntimeError: Called outside of a run, or on an event loop (use `asleep` there).
        ConfigurationError: Neither or both arguments were passed, or a value is not a
            time.

    Example:
        >>> from flowpregel import entrypoint
        >>> @entrypoint
        ... def remind(seconds: float) -> str:
        ...     sleep(seconds)
        ...     return "now"
        >>> remind.run(0.01)
        'now'
    """
    _until(_due(seconds, until).result()).result()


async def asleep(seconds: float | None = None, *, until: End | None = None) -> None:
    """`sleep`, on the running event loop.

    Args:
        seconds, until: As for `sleep`.

    Raises:
        RuntimeError: Called outside of a run.
        ConfigurationError: As for `sleep`.

    Example:
        >>> import asyncio
        >>> from flowpregel import entrypoint
        >>> @entrypoint
        ... async def remind(seconds: float) -> str:
        ...     await asleep(seconds)
        ...     return "now"
        >>> asyncio.run(remind.arun(0.01))
        'now'
    """
    await _until(await _due(seconds, until))


def signal(name: str) -> CallFuture[Any]:
    """Start to wait for a value that is sent to the run, and return a future at once.

    Send values with ``flow.signal(id, name, value)``, or with ``flowpregel signal ID
    NAME VALUE``, from any process, before or while the run waits for them. Each value
    is received once, in the order of sending. If several calls wait at the same time,
    any of them may get the first value. If that matters, wait for one value before you
    wait for the next.

    Args:
        name: The name under which the values are sent.

    Raises:
        RuntimeError: Called outside of a run.
        ValueError: *name* is empty.
        ConfigurationError: The run has no checkpointer that keeps signals. The future
            raises this error.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> @entrypoint(checkpointer=InMemorySaver())
        ... def order(number: int) -> str:
        ...     return "sent" if signal("approved").result() else "refused"
        >>> order.signal("order-7", "approved", True)  # or later
        >>> order.run(7, id="order-7")
        'sent'
    """
    if not isinstance(name, str):
        raise TypeError(f"signal({name!r}): use a text, the name of the signal")
    if not name:
        raise ValueError("signal(''): the name of the signal is empty")
    return _receive_signal(name)


class _SleepTask(TaskFunction[[float | None, End | None], float]):
    """The task that computes when a sleep ends. A resumed run matches its calls with
    the recorded ones by their order alone.
    """

    def _call_key(
        self, node: Node, args: Any, kwargs: Any, *, is_placed: bool = True
    ) -> CallKey:
        """Return the key by which recorded calls are found. It does not depend on the
        arguments, so a resumed run finds the recorded end even if it passes other
        arguments.
        """
        seconds, until = args
        text = repr(seconds) if until is None else f"until={_shown_end(until)}"
        return CallKey(
            self.name, text_digest("any end"), self.code, f"sleep({text})", is_placed
        )


class _WaitTask(TaskFunction[[float], None]):
    """The task that waits for the end of a sleep."""

    def _call_key(
        self, node: Node, args: Any, kwargs: Any, *, is_placed: bool = True
    ) -> CallKey:
        """Return the key by which recorded calls are found. The key's text, which
        describes the call, shows the time in ISO format.
        """
        key = super()._call_key(node, args, kwargs, is_placed=is_placed)
        return key._replace(text=f"sleep until({_shown_end(args[0])})")


def _begin_sleep(seconds: float | None, until: End | None) -> float:
    """Return the end of a sleep, in seconds since the epoch. It is recorded, because it
    is the result of a task.
    """
    now = _clock.wall()
    if until is None:
        if not isinstance(seconds, int | float):
            raise ConfigurationError(f"sleep({seconds!r}): use seconds, or until=")
        return now + seconds
    if seconds is not None:
        raise ConfigurationError("sleep() takes seconds, or until, not both")
    match until:
        case datetime():
            return until.timestamp()
        case TimeOfDay():
            return _next_at(until, now)
        case int() | float():
            return float(until)
    raise ConfigurationError(
        f"sleep(until={until!r}): use a datetime, a datetime.time, or seconds since "
        "the epoch"
    )


def _next_at(time_of_day: TimeOfDay, now: float) -> float:
    """Return the next occurrence of a time of day after *now*, in seconds since the
    epoch.
    """
    today = datetime.fromtimestamp(now, time_of_day.tzinfo).date()
    end = datetime.combine(today, time_of_day).timestamp()
    if end > now:
        return end
    # The day is added to the date, and not to the time stamp, because a day is not
    # always 24 hours long.
    return datetime.combine(today + timedelta(days=1), time_of_day).timestamp()


def _shown_end(until: object) -> str:
    """Return the end of a sleep as a string for messages."""
    match until:
        case datetime():
            end = until if until.tzinfo else until.astimezone()
            return end.isoformat()
        case TimeOfDay():
            return until.isoformat()
        case int() | float():
            # `datetime` has no infinity and no year 10,000, so times that it cannot
            # represent are shown as numbers.
            with contextlib.suppress(ValueError, OverflowError, OSError):
                return datetime.fromtimestamp(until, UTC).isoformat()
            return repr(until)
    return f"<{type(until).__qualname__}>"


async def _wait_until(due: float) -> None:
    """Wait until *due* on an event loop of the process that drives the run."""
    if pauses.get() and due > _clock.wall():
        # Instead of waiting, stop the run with an interrupt. An answer to the interrupt
        # ends the sleep early.
        interrupt({SLEEPS_UNTIL: _shown_end(due)})
        return
    await _clock.wait_until(due, current_scope("sleep()").job.task.id)


_due = _SleepTask(
    _begin_sleep, TaskOptions(name="sleep", executor="inline", version="1")
)
_until = _WaitTask(_wait_until, TaskOptions(name="sleep until", version="1"))


@task(name="signal", version="1")
async def _receive_signal(name: str) -> Any:
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    job = current_scope("signal()").job
    if not isinstance(job.run, RunContext) or job.run.committer is None:
        raise ConfigurationError(
            f"signal({name!r}): the run has no checkpointer to keep the values sent "
            "to it; write @entrypoint(checkpointer='runs.lmdb'), with the path of a "
            "folder"
        )
    saver = job.run.committer.saver
    thread_id = str(job.run.thread_id)
    with _clock.waiting(_clock.TimedWait(nothing, task_id=job.task.id)):
        while True:
            received = await asyncio.to_thread(
                saver.receive_signal, thread_id, name, job.task.id
            )
            if received is not None:
                (value,) = received
                return value
            if pauses.get():
                interrupt({AWAITS_SIGNAL: name})
            await asyncio.sleep(_SIGNAL_EVERY)


# ---------------------------------------------------------------- files


class File(os.PathLike[str]):
    """A file path as an argument that is identified by the content of the file, not by
    its location.

    A call with a plain path is identified by the path alone: if the file changes, the
    recorded result is still used. You can pass a `File` to `open`, `os` and `pathlib`
    like any path; ``str()`` and f-strings give the path.

    Args:
        path: The path of the file, or of a folder. Of a folder, the names and the
            contents of all files are compared. The file is read when a call with this
            argument is made. In this process the file is not read again as long as its
            inode, size and modification time are the same, unless it was written just
            before. The output of a task (see `Runtime.output`) is read once, where it
            was written; if it is deleted later, the recorded digest is used.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile("w", suffix=".csv") as table:
        ...     _ = table.write("a,b")
        ...     table.flush()
        ...     Path(File(table.name)).read_text()
        'a,b'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"File({self.path!r})"

    def __str__(self) -> str:
        return self.path

    def __format__(self, spec: str) -> str:
        return format(self.path, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __flowpregel_text__(self) -> str:
        """Return the string that shows this argument in the description of a call."""
        return repr(self)

    def __flowpregel_digest__(self) -> str:
        """Return a digest of the file's content.

        Raises:
            OSError: The file does not exist, or cannot be read.
        """
        digest, state = present_or_recorded_digest(self.path)
        collect_file(self.path, digest, state.size)
        return digest
