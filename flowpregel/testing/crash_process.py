"""One run of a workflow in a process of its own, which may be killed, and what it leaves.

The processes are forks of multiprocessing's fork server, which has imported what a
workflow needs: a run costs milliseconds. `flowpregel.testing.crash` decides which runs
are made and compares their results.
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
from flowpregel._core.digest import digest_of
from flowpregel._core.records import ASKED, ERROR, ERROR_SOURCE, INTERRUPT, RESUME

_LONGEST_TEXT = 300
_MOST_LINES = 8
_IDS = re.compile(r":[0-9a-f]{8}-[0-9a-f-]{27}")
_PRELOADED = (
    "__main__", "lmdb", "cloudpickle", "loky", "flowpregel.func", "flowpregel.checkpoint.lmdb",
    "flowpregel.executors.processes", "flowpregel.graph", "flowpregel.testing.crash_process",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a workflow, in a form that can be compared with that of another run."""

    value: tuple[str, str]
    """A digest, and a text for people."""
    history: tuple[tuple[str, ...], ...]
    """A line for each checkpoint of each thread, oldest first."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one workflow that is killed and goes on: its store, its log."""

    path: Path

    @property
    def work(self) -> Path:
        """The folder that the workflow gets."""
        return self.path / "work"

    @property
    def acted(self) -> Path:
        """The file that exists once the fault has acted."""
        return self.path / "acted"

    def log(self) -> list[list[str]]:
        """Return the passed fault points and the effects: (name, pid, n, about) of each."""
        log = self.path / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split("\t", 3) for line in lines]

    def result(self) -> RunResult:
        """Return the result of the last run that ended."""
        result = pickle.loads((self.path / "result").read_bytes())
        assert isinstance(result, RunResult)
        return result

    def printed(self) -> str:
        """Return the end of what the runs printed."""
        output = self.path / "output"
        text = output.read_text(errors="replace") if output.exists() else ""
        return "\n".join(text.splitlines()[-_MOST_LINES:])


@dataclass(frozen=True, slots=True)
class Workflow:
    """A function of a folder, and how it is run."""

    function: bytes
    """Pickled."""
    history: bool
    """Whether the histories in its stores are part of its result."""
    timeout: float
    """Seconds that a run may take."""
    modules: Sequence[str] = ()
    """Names of modules that the fork server imports."""

    def run(self, folder: RunFolder, fault: str) -> int:
        """Run it in a new process; return its exit code, or the negative signal number.

        Args:
            folder: Where it keeps its store, its log and its result.
            fault: Where to kill it, as ``FLOWPREGEL_FAULT`` says it; empty: nowhere.

        Raises:
            TimeoutError: It took too long, and was killed.
        """
        folder.work.mkdir(parents=True, exist_ok=True)
        variables = {
            # Stores of a test need no key of the user's, and must not make one.
            "FLOWPREGEL_STORE_KEY": "the key of a test",
            **os.environ,
            _fault.TRACE: str(folder.path / "log"),
            _fault.FAULT: fault,
            _fault.ONCE: str(folder.acted),
        }
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*_PRELOADED, *self.modules])
        process = context.Process(target=_child, args=(self, folder, variables, [*sys.path]))
        process.start()
        process.join(self.timeout)
        if process.exitcode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.ident or 0, signal.SIGKILL)
            process.kill()
            process.join()
            raise TimeoutError
        return process.exitcode


def _child(
    workflow: Workflow, folder: RunFolder, variables: Mapping[str, str], path: list[str]
) -> None:
    """Run the workflow in this process, and write its result to the folder."""
    os.setsid()
    output = os.open(folder.path / "output", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(variables)
    _fault.arm()
    try:
        value = pickle.loads(workflow.function)(folder.work)
        _fault.fault("workflow.returned")
        # The history is read by the harness, not by the workflow: no faults any more.
        for name in (_fault.TRACE, _fault.FAULT, _fault.ONCE):
            del os.environ[name]
        _fault.arm()
        history = (*_history_of(folder.work),) if workflow.history else ()
        result = RunResult(_shown(value), history)
        (folder.path / "result").write_bytes(pickle.dumps(result))
    finally:
        # multiprocessing ends its processes without the functions of atexit.
        atexit._run_exitfuncs()  # noqa: SLF001 - it has no other name


def _history_of(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield what the stores in *folder* hold, without what differs from run to run.

    Each line has the store, the thread, the namespace, the superstep, its source,
    the values and the pending writes. Ids and times are left out.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - loads LMDB

    for file in sorted(folder.rglob("data.mdb")):
        with LMDBSaver(file.parent, readonly=True) as saver:
            lines = [_line(saved) for each in saver.namespaces() for saved in saver.history(each)]
        for line in sorted(lines, key=lambda line: (line[:2], int(line[2]))):
            yield str(file.parent.relative_to(folder)), *line


def _line(saved: Any) -> tuple[str, ...]:
    deltas = {name: (*delta.writes,) for name, delta in saved.deltas.items()}
    values = [*sorted(saved.checkpoint.values.items()), *sorted(deltas.items())]
    return (
        saved.address.thread_id,
        _IDS.sub("", saved.address.namespace),
        str(saved.checkpoint.step),
        saved.checkpoint.source,
        repr([(name, _shown(value)) for name, value in values]),
        repr([item for write in saved.writes if (item := _written(write))]),
    )


def _written(write: Any) -> Any:
    """Return what is compared of a pending write; None: nothing.

    Failures are left out: one that was overcome stays beside the result, and the death of
    a worker makes its task fail.
    """
    if write.channel in (ERROR, ERROR_SOURCE):
        return None
    if write.channel == INTERRUPT:  # the id of an interrupt is made from that of its task
        return write.channel, [_shown(item.value) for item in write.value]
    if write.channel == ASKED:  # and so is that of a question
        return write.channel, [_shown(each[1:]) for each in write.value]
    return write.channel, "" if write.channel == RESUME else _shown(write.value)


def _shown(value: Any) -> tuple[str, str]:
    return digest_of(value, "a value of the workflow", strict=False), repr(value)[:_LONGEST_TEXT]
