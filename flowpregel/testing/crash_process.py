"""The run of a workflow in a separate process, which may be killed, and the result.

The processes are forks of multiprocessing's fork server, which has imported the modules
that a workflow needs, so that a run starts within milliseconds.
`flowpregel.testing.crash` decides which runs are made, and compares their results.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowpregel import _fault
from flowpregel._core import records
from flowpregel._core.records import PendingWrite, Saved
from flowpregel._pickling.digest import digest_of

_LONGEST_TEXT = 300
_MOST_LINES = 8
_IDS = re.compile(r":[0-9a-f]{8}-[0-9a-f-]{27}")
_PRELOADED = (
    "__main__",
    "lmdb",
    "cloudpickle",
    "loky",
    "flowpregel.func",
    "flowpregel.checkpoint.lmdb",
    "flowpregel.executors.processes",
    "flowpregel.graph",
    "flowpregel.testing.crash_process",
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line in the log of a run, which records a fault point that was passed or a side
    effect.
    """

    name: str
    """The name of the point."""
    count: int
    """The number of times that the process has passed the point so far, including this
    time.
    """
    about: str
    """The ids of the tasks that the fault point concerns, or the task id and the
    description of a side effect.
    """


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a workflow, in a form that can be compared with other runs."""

    value: tuple[str, str]
    """A digest of the returned value, and the beginning of the value's `repr`."""
    history: tuple[tuple[str, ...], ...]
    """A line for each checkpoint of each thread, oldest first."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder with the store and the log of a workflow that is killed and resumed."""

    path: Path

    @property
    def work(self) -> Path:
        """The folder that is passed to the workflow."""
        return self.path / "work"

    @property
    def acted(self) -> Path:
        """The file that is created just before a process is killed."""
        return self.path / "acted"

    def log(self) -> list[LogLine]:
        """Return the passed fault points and the side effects, in order of time."""
        path = self.path / "log"
        if not path.exists():
            return []
        lines = []
        for line in path.read_text().splitlines():
            name, _, count, about = line.split("\t", 3)
            lines.append(LogLine(name, int(count), about))
        return lines

    def result(self) -> RunResult:
        """Return the result of the last run that ended."""
        result = pickle.loads((self.path / "result").read_bytes())
        assert isinstance(result, RunResult)
        return result

    def printed(self) -> str:
        """Return the last lines of text that the runs have printed."""
        output = self.path / "output"
        if not output.exists():
            return ""
        lines = output.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_MOST_LINES:])


@dataclass(frozen=True, slots=True)
class Workflow:
    """A function that takes a folder, with the options for running it."""

    function: bytes
    """The function, pickled."""
    history: bool
    """True if the histories in the stores are part of the result."""
    timeout: float
    """Seconds that a run may take."""
    modules: Sequence[str] = ()
    """Names of modules that the fork server imports."""

    def run(self, folder: RunFolder, fault: str) -> int:
        """Run the workflow in a new process, and return the exit code of the process.

        If a signal ended the process, the exit code is the negative signal number.

        Args:
            folder: The folder for the store, the log and the result.
            fault: The point at which to kill the workflow, in the form of
                ``FLOWPREGEL_FAULT``, or an empty string to let it run to its end.

        Raises:
            TimeoutError: The workflow took too long, and was killed.
        """
        folder.work.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*_PRELOADED, *self.modules])
        process = context.Process(
            target=_child,
            args=(
                self,
                folder,
                _environment(folder, fault),
                list(sys.path),
            ),
        )
        process.start()
        process.join(self.timeout)
        if process.exitcode is not None:
            return process.exitcode
        with suppress(ProcessLookupError):
            os.killpg(process.ident or 0, signal.SIGKILL)
        process.kill()
        process.join()
        raise TimeoutError


def _environment(folder: RunFolder, fault: str) -> dict[str, str]:
    """Return the environment variables of a run in *folder*."""
    return {
        # A separate key for checksums is set, because the stores of a test must neither
        # use nor create the user's key.
        "FLOWPREGEL_STORE_KEY": "the key of a test",
        **os.environ,
        _fault.TRACE: str(folder.path / "log"),
        _fault.FAULT: fault,
        _fault.ONCE: str(folder.acted),
    }


def _child(
    workflow: Workflow,
    folder: RunFolder,
    variables: Mapping[str, str],
    path: list[str],
) -> None:
    """Run the workflow in this process, and write its result to the run folder."""
    os.setsid()
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
    output = os.open(folder.path / "output", flags, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(variables)
    _fault.arm()
    try:
        value = pickle.loads(workflow.function)(folder.work)
        _fault.fault("workflow.returned")
        # The workflow has ended, and the harness itself reads the history from here on.
        # So faults are switched off: they must neither act nor be logged.
        for name in (_fault.TRACE, _fault.FAULT, _fault.ONCE):
            del os.environ[name]
        _fault.arm()
        history: tuple[tuple[str, ...], ...] = ()
        if workflow.history:
            history = tuple(_history_of(folder.work))
        result = RunResult(_digest_and_repr(value), history)
        (folder.path / "result").write_bytes(pickle.dumps(result))
    finally:
        # The atexit functions are run here, because multiprocessing ends its processes
        # without running them.
        atexit._run_exitfuncs()  # noqa: SLF001 - it has no other name


def _history_of(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a line for each checkpoint in the stores below *folder*.

    Each line has the store, the thread, the namespace, the superstep, the source (such
    as ``input`` or ``loop``), the values and the pending writes. Ids and times are left
    out, because they differ from run to run.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - loads LMDB

    for file in sorted(folder.rglob("data.mdb")):
        lines = []
        with LMDBSaver(file.parent, readonly=True) as saver:
            for address in saver.namespaces():
                lines += [_history_line(saved) for saved in saver.history(address)]
        lines.sort(key=lambda line: (line[:2], int(line[2])))
        store = str(file.parent.relative_to(folder))
        for line in lines:
            yield store, *line


def _history_line(saved: Saved) -> tuple[str, ...]:
    """Return the line of a checkpoint, without the store."""
    deltas = {name: tuple(delta.writes) for name, delta in saved.deltas.items()}
    values: list[tuple[str, Any]] = sorted(saved.checkpoint.values.items())
    values += sorted(deltas.items())
    shown_values = [(name, _digest_and_repr(value)) for name, value in values]
    shown_writes = []
    for write in saved.writes:
        shown_write = _comparable(write)
        if shown_write is not None:
            shown_writes.append(shown_write)
    return (
        saved.address.thread_id,
        _IDS.sub("", saved.address.namespace),
        str(saved.checkpoint.step),
        saved.checkpoint.source,
        repr(shown_values),
        repr(shown_writes),
    )


def _comparable(write: PendingWrite) -> tuple[str, object] | None:
    """Return the part of a pending write that is the same in all runs, or None if no
    part is.

    Failures are left out. The death of a worker makes an attempt fail, and the failure
    remains stored beside the result of a later attempt.
    """
    match write.channel:
        case records.ERROR | records.ERROR_SOURCE:
            return None
        case records.RESUME:
            return write.channel, ""
        case records.INTERRUPT:
            # The id of an interrupt is left out, because it is derived from the id of
            # the task, which differs from run to run.
            values = [_digest_and_repr(item.value) for item in write.value]
            return write.channel, values
        case records.ASKED:
            # The id of a question is left out too, because it is derived from the id of
            # the task, which differs from run to run.
            questions = [_digest_and_repr(question[1:]) for question in write.value]
            return write.channel, questions
        case _:
            return write.channel, _digest_and_repr(write.value)


def _digest_and_repr(value: object) -> tuple[str, str]:
    """Return the digest of *value*, and the beginning of the value's repr for
    messages.
    """
    digest = digest_of(value, "a value of the workflow", strict=False)
    return digest, repr(value)[:_LONGEST_TEXT]
