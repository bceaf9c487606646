"""What workflows are provided with: the tasks `shell`, `sleep` and `signal`; the
argument `File`.

`sleep` and `signal` are waiting that survives the end of the program: for a time, and
for a value from elsewhere. Each is a call like others: recorded, waited for beside
others, answered from its record. It takes no worker: it waits on an event loop of the
process that drives the run.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as TimeOfDay
from signal import SIGKILL, SIGTERM
from typing import IO, Any, Final, TypeAlias

from flowpregel._core.files import note_file
from flowpregel._core.ids import CallKey, text_digest
from flowpregel._core.records import Node
from flowpregel._engine.nested import RunContext
from flowpregel.context import current, current_scope, interrupt, nothing
from flowpregel.errors import CommandFailedError, ConfigurationError, RunStopped
from flowpregel.executors.calls import CallFuture
from flowpregel.func.decorator import task
from flowpregel.func.options import TaskOptions
from flowpregel.func.tasks import TaskFunction
from flowpregel.pregel.file_digests import content_digest
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL, StopSignal, pauses

_LOOK_EVERY: Final = 0.05
"""Seconds between two looks whether a command is to end."""
_CHUNK: Final = 1 << 16
_KEPT_ERRORS: Final = 1 << 14
"""Bytes of a command's stderr that are kept for the message that it failed."""
_STDERR: Final = 2
"""The descriptor of stderr."""
_AFTERWARDS: Final = 1.0
"""Seconds that what a command has left behind may write on."""
_LONGEST: Final = 5.0
"""Seconds between two looks at the clock, which may be set meanwhile."""
_SIGNAL_EVERY: Final = 0.2
"""Seconds between two looks for a signal."""


# ---------------------------------------------------------------- commands


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

    What it writes to stderr goes to the task's stderr at once. When its run is to end
    in time, it gets SIGTERM.

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
    if not isinstance(command, str | Sequence):
        raise TypeError(f"shell({command!r}): use a text, or a list of texts")
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors, was_told = _read(process, max(keep, 1))
        code = process.wait()
    finally:
        _signal(process, SIGKILL)
        process.wait()
    text = command if isinstance(command, str) else shlex.join(command)
    if code and was_told:
        raise RunStopped(f"{text!r} was told to end")
    if code and check:
        raise CommandFailedError(text, code, output, errors)
    return CommandResult(code, output)


def _read(process: subprocess.Popen[bytes], keep: int) -> tuple[str, str, bool]:
    """Return the end of both streams of *process*, once it has ended; and whether it
    was told to.

    Args:
        process: The command.
        keep: How many bytes of its stdout; of its stderr there is need of a few lines
            alone.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = (
        StreamEnd(process.stdout, keep),
        StreamEnd(process.stderr, _KEPT_ERRORS),
    )
    was_told, deadline = False, math.inf
    scope = current.get()
    stopping = StopSignal(nothing if scope is None else scope.ends.is_ending)
    is_open = {output.pipe: output, errors.pipe: errors}
    with output.pipe, errors.pipe:
        while is_open and time.monotonic() < deadline:
            if process.poll() is not None:
                deadline = min(deadline, time.monotonic() + _AFTERWARDS)
            if stopping and not was_told:
                was_told = True
                _signal(process, SIGTERM)
            readable = select.select([*is_open], [], [], _LOOK_EVERY)[0]
            for pipe in readable:
                data = is_open[pipe].read()
                if not data:
                    del is_open[pipe]
                elif pipe is errors.pipe:
                    _pass_on(data)
            if not readable and deadline < math.inf:
                break
    return output.text(), errors.text(), was_told


class StreamEnd:
    """The last bytes that a command has written to one of its streams.

    Args:
        pipe: Our end of it.
        keep: How many bytes are kept.
    """

    def __init__(self, pipe: IO[bytes], keep: int) -> None:
        self.pipe = pipe
        self._keep = keep
        self._data = bytearray()

    def read(self) -> bytes:
        """Return what the pipe has now, and keep its end; nothing: the stream has
        ended.
        """
        data = os.read(self.pipe.fileno(), _CHUNK)
        self._data += data
        if len(self._data) > 2 * self._keep:
            del self._data[: -self._keep]
        return data

    def text(self) -> str:
        """Return what is kept."""
        return self._data[-self._keep :].decode(errors="replace")


def _pass_on(data: bytes) -> None:
    """Write to the stderr of this process, where the command itself would have
    written.
    """
    with contextlib.suppress(OSError):  # it may be closed
        while data:
            data = data[os.write(_STDERR, data) :]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and to all that it has started, if there are any
    left.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


# ---------------------------------------------------------------- waiting


End: TypeAlias = datetime | TimeOfDay | float
"""When a sleep may end: a time, a time of day, or seconds since the epoch."""


def sleep(seconds: float | None = None, *, until: End | None = None) -> None:
    """Wait inside a run; when that is killed and run again, it waits for what is left.

    When the wait ends is recorded as it begins. The first sleep of a body that is run
    again is the first that was recorded, the second the second, whatever time it
    computes then.

    Args:
        seconds: How long.
        until: When to end, in place of *seconds*: a time, the next such time of day
            (``datetime.time``), either of them local if it has no zone, or seconds
            since the epoch.

    Raises:
        RuntimeError: Called outside of a run, or on an event loop: there `asleep`
            waits.
        ConfigurationError: Neither or both were given, or no time.

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
    """`sleep`, on the running event loop."""
    await _until(await _due(seconds, until))


def signal(name: str) -> CallFuture[Any]:
    """Start to wait for a value that somebody sends to the run; return its future at
    once.

    Values are sent by ``flow.signal(id, name, value)``, or ``flowpregel signal ID NAME
    VALUE``, from any process, before the run waits for them or while it does. Each is
    received once, in the order in which they were sent. Of several calls that wait at
    the same time any may be the first: where that matters, wait for one after the
    other.

    Args:
        name: Which values.

    Raises:
        RuntimeError: Called outside of a run.
        ConfigurationError: The run has no checkpointer that keeps signals (when its
            result is asked for).

    Example:
        >>> approved = signal("approved").result()  # in a run  # doctest: +SKIP
    """
    if not isinstance(name, str):
        raise TypeError(f"signal({name!r}): use a text, the name of the values")
    return _received(name)


class _SleepTask(TaskFunction[[float | None, End | None], float]):
    """The task that a sleep begins with. Its calls are known by their order alone."""

    def _asked(
        self, node: Node, args: Any, kwargs: Any, *, is_placed: bool = True
    ) -> CallKey:
        """Return what is compared with the record: which time it computes is no part of
        it.
        """
        seconds, until = args
        shown = repr(seconds) if until is None else f"until={_shown_end(until)}"
        return CallKey(
            self.name, text_digest("any end"), self.code, f"sleep({shown})", is_placed
        )


class _WaitTask(TaskFunction[[float], None]):
    """The task that waits for the end of a sleep."""

    def _asked(
        self, node: Node, args: Any, kwargs: Any, *, is_placed: bool = True
    ) -> CallKey:
        """Return what is compared with the record; its text is a time that people
        read.
        """
        asked = super()._asked(node, args, kwargs, is_placed=is_placed)
        return asked._replace(text=f"sleep until({_shown_end(args[0])})")


def _begin_sleep(seconds: float | None, until: End | None) -> float:
    """Return when a sleep ends, in seconds since the epoch; it is recorded."""
    now = time.time()
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
    """Return when it is that time of day next, after *now*; both in seconds since the
    epoch.
    """
    today = datetime.fromtimestamp(now, time_of_day.tzinfo).date()
    end = datetime.combine(today, time_of_day).timestamp()
    if end > now:
        return end
    # A day is not always 24 hours long: the date is moved, and not the time.
    return datetime.combine(today + timedelta(days=1), time_of_day).timestamp()


def _shown_end(until: object) -> str:
    """Return the end of a sleep as people read it."""
    match until:
        case datetime():
            return (until if until.tzinfo else until.astimezone()).isoformat()
        case TimeOfDay():
            return until.isoformat()
        case int() | float():
            # No calendar has infinity, or the year 10,000.
            with contextlib.suppress(ValueError, OverflowError, OSError):
                return datetime.fromtimestamp(until, UTC).isoformat()
            return repr(until)
    return f"<{type(until).__qualname__}>"


async def _wait_until(due: float) -> None:
    """Wait on the event loop of the process that drives the run."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    while (left := due - time.time()) > 0:
        if pauses.get():
            interrupt({SLEEPS_UNTIL: _shown_end(due)})
        await asyncio.sleep(min(left, _LONGEST))


_due = _SleepTask(
    _begin_sleep, TaskOptions(name="sleep", executor="inline", version="1")
)
_until = _WaitTask(_wait_until, TaskOptions(name="sleep until", version="1"))


@task(name="signal", version="1")
async def _received(name: str) -> Any:
    import asyncio  # noqa: PLC0415 - as above

    job = current_scope("signal()").job
    if not isinstance(job.run, RunContext) or job.run.committer is None:
        raise ConfigurationError(
            f"signal({name!r}): the run has no checkpointer to keep what is sent to "
            "it; write @entrypoint(checkpointer='runs.lmdb'), with the path of a folder"
        )
    saver, thread_id = job.run.committer.saver, str(job.run.thread_id)
    while True:
        found = await asyncio.to_thread(
            saver.receive_signal, thread_id, name, job.task.id
        )
        if found is not None:
            return found[0]
        if pauses.get():
            interrupt({AWAITS_SIGNAL: name})
        await asyncio.sleep(_SIGNAL_EVERY)


# ---------------------------------------------------------------- files


class File(os.PathLike[str]):
    """A path to a file whose content an argument is to be known by, wherever the file
    lies.

    A call with a plain path is known by the path alone: the file may change, and its
    result is still the recorded one. Pass it to `open`, `os` and `pathlib` like any
    path; as text, and in an f-string, it is its path.

    Args:
        path: The file. It is read when a call with it is made, and not again
            in this process as long as its inode, size and time are the same,
            unless it was written in the last two seconds.

    Example:
        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile("w", suffix=".csv") as table:
        ...     _ = table.write("a,b")
        ...     table.flush()
        ...     open(File(table.name)).read()
        'a,b'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

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
        """Return how a call with the file is shown."""
        return repr(self)

    def __flowpregel_digest__(self) -> str:
        """Return a digest of the content.

        Raises:
            OSError: There is no such file, or it cannot be read.
        """
        digest, size = content_digest(self.path)
        note_file(self.path, digest, size)
        return digest
