"""The `Runtime` of a task, and the objects by which a task or its run is stopped."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

from flowpregel._pickling.copies import private_copy
from flowpregel.context import Scope, current_scope, nothing, report_progress

__all__ = [
    "ExecutionInfo",
    "RunControl",
    "Runtime",
    "StopSignal",
    "get_runtime",
    "report_progress",
]

SchemaT = TypeVar("SchemaT")
if TYPE_CHECKING:
    # As in LangGraph: a bare `Runtime` is that of a run whose context is None. Type
    # checkers bring this module along; a program does not need it.
    from typing_extensions import TypeVar as TypeVarWithDefault

    ContextT = TypeVarWithDefault("ContextT", default=None)
else:
    ContextT = TypeVar("ContextT")
STOP_LOOK: Final = 0.05
"""Seconds between two checks by a task that waits for the run to end."""
pauses: ContextVar[bool] = ContextVar("pauses", default=False)
"""True where a run that must wait for a time or a signal stops instead of waiting."""
SLEEPS_UNTIL: Final = "sleeps_until"
AWAITS_SIGNAL: Final = "waits_for_signal"
"""The keys of the mapping with which such a run stops, in place of a question."""


class RunControl:
    """Asks a run to stop at the next barrier; safe from any OS thread.

    Example:
        >>> control = RunControl()
        >>> control.request_drain("deploy")
        >>> control.drain_reason
        'deploy'
    """

    __slots__ = ("_reason",)

    def __init__(self) -> None:
        self._reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the run to stop when the tasks that are running have ended."""
        self._reason = reason

    @property
    def drain_requested(self) -> bool:
        """True once the run was asked to stop."""
        return self._reason is not None

    @property
    def drain_reason(self) -> str | None:
        """The reason that was given, or None."""
        return self._reason


@dataclass(frozen=True, slots=True)
class StopSignal:
    """True once the run was told to end soon: like a `threading.Event` that the run
    sets.

    Example:
        >>> bool(StopSignal())
        False
    """

    is_set: Callable[[], bool | None] = lambda: False

    def __bool__(self) -> bool:
        return bool(self.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most *timeout* seconds; return whether it is."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            pause = STOP_LOOK
            if end is not None:
                pause = min(pause, end - time.monotonic())
            if pause <= 0:
                return False
            time.sleep(pause)
        return True


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    """The position of the running code in its run."""

    checkpoint_id: str | None
    checkpoint_ns: str
    task_id: str
    thread_id: str | None = None
    run_id: str | None = None
    node_attempt: int = 1
    """The number of this attempt, counted from 1."""
    node_first_attempt_time: float | None = None
    """The begin of the first attempt, in seconds since the epoch."""

    def patch(self, **changes: Any) -> ExecutionInfo:
        """Return the same with these fields changed."""
        return replace(self, **changes)


@dataclass(slots=True)
class AttemptFiles:
    """The files of one attempt of a task."""

    task_id: str
    folder: Path | None = None
    """The scratch folder of the attempt, once it has one."""
    outputs: dict[Path, Path] = field(default_factory=dict)
    """The files that the attempt writes, and the paths that they are moved to."""

    def scratch(self) -> Path:
        """Return the scratch folder, made when first asked for."""
        if self.folder is None:
            # By this name the guard finds what a worker that was killed has left.
            owner = os.environ.get("FLOWPREGEL_WORKER", str(os.getpid()))
            self.folder = Path(tempfile.mkdtemp(prefix=f"flowpregel-{owner}-"))
        return self.folder

    def output(self, path: Path) -> Path:
        """Return what is written in the place of *path*; the same for each attempt."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{self.task_id[:8]}.part")
        self.outputs[part] = path
        return part

    def publish(self) -> None:
        """Put what was written in its place, for good."""
        for part, path in self.outputs.items():
            for synced, to in ((part, path), (path.parent, None)):
                handle = os.open(synced, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
                if to is not None:
                    os.replace(part, to)

    def remove(self) -> None:
        """Remove what is left when the attempt has ended."""
        for part in self.outputs:
            part.unlink(missing_ok=True)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime(Generic[ContextT]):
    """The services of a run for its tasks; a parameter named ``runtime`` gets it."""

    context: ContextT = cast(Any, None)
    store: Any = None
    stream_writer: Callable[[Any], None] = nothing
    heartbeat: Callable[[], None] = nothing
    progress: Callable[..., None] = nothing
    """Report the progress of the task: ``progress(done, total, message)``, as
    `report_progress` does.
    """
    save: Callable[[Any], None] = nothing
    """Keep a state for the task's next attempt, until it has finished: ``save(state)``.

    The state replaces the one before; any picklable value. It returns when the state is
    kept as the run's ``durability`` says (in a coroutine: at once). After a failure, a
    kill or a stop the next attempt finds it in `saved`.
    """
    saved: Any = None
    """The state that the attempt before this one saved last; None: nothing."""
    rng: Callable[[], Any] = Random
    """Return random numbers of this call's own: a ``numpy.random.Generator``, or
    without numpy a `random.Random`. They are those of the run's thread and of what was
    asked: the same with any number of workers, in each attempt, and when the run goes
    on. Each use gives others.
    """
    stopping: StopSignal = field(default_factory=StopSignal)
    """True once the run was told to end in time: save, and return or raise. It has
    ``is_set()`` and ``wait(timeout)``, as a `threading.Event` has.
    """
    previous: Any = None
    execution_info: ExecutionInfo | None = None
    server_info: None = None
    """The information that LangGraph's server adds; here always None."""
    control: RunControl | None = None

    @property
    def scratch(self) -> Path:
        """An empty folder for this attempt alone, which is removed when it ends, or is
        killed.
        """
        return files_of("runtime.scratch").scratch()

    def output(self, path: str | os.PathLike[str]) -> Path:
        """Return where to write the file *path*, which appears whole when the task has
        returned.

        That is a file beside it: synced to disk, it takes its place just before the
        result is recorded. If the task fails, it is removed.
        """
        return files_of("runtime.output()").output(Path(path).absolute())

    @property
    def drain_requested(self) -> bool:
        """True once the run was asked to stop at the next barrier."""
        return self.control is not None and self.control.drain_requested

    @property
    def drain_reason(self) -> str | None:
        """The reason that was given for it, or None."""
        return None if self.control is None else self.control.drain_reason

    def override(self, **changes: Any) -> Runtime[ContextT]:
        """Return a runtime with these fields changed."""
        return replace(self, **changes)


@overload
def get_runtime(context_schema: None = None) -> Runtime[Any]: ...
@overload
def get_runtime(context_schema: type[SchemaT]) -> Runtime[SchemaT]: ...
def get_runtime(context_schema: type[Any] | None = None) -> Runtime[Any]:
    """Return the runtime of the running task.

    Args:
        context_schema: The type of the run's context, for type checkers alone.

    Raises:
        RuntimeError: Called outside of a run.
    """
    return runtime_of(current_scope("get_runtime()"))


def files_of(asked_by: str) -> AttemptFiles:
    """Return the files of the attempt that the calling code belongs to."""
    scope = current_scope(asked_by)
    if scope.files is None:
        scope.files = AttemptFiles(scope.job.task.id)
    files: AttemptFiles = scope.files
    return files


def runtime_of(scope: Scope) -> Runtime[Any]:
    """Return the runtime that the task of *scope* is shown."""
    job, task, run = scope.job, scope.job.task, scope.job.run
    return Runtime(
        context=run.context,
        store=run.store,
        stream_writer=scope.ends.emit,
        heartbeat=scope.ends.beat,
        progress=scope.progress,
        save=scope.ends.save,
        stopping=StopSignal(scope.ends.is_ending),
        saved=None if task.attempt.saved is None else private_copy(task.attempt.saved),
        rng=scope.rng,
        previous=job.place.previous,
        execution_info=ExecutionInfo(
            checkpoint_id=job.place.checkpoint_id,
            checkpoint_ns=task.namespace,
            task_id=task.id,
            thread_id=run.thread_id,
            run_id=run.run_id,
            node_attempt=job.key[1],
            node_first_attempt_time=(task.attempt.first_started or 0) / 1e9,
        ),
        control=run.control,
    )
