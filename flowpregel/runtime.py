"""The `Runtime` of a task, and the objects that ask a task or a run to stop."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    cast,
    overload,
)

from flowpregel._core.effects import Notice
from flowpregel._core.records import Kind
from flowpregel._pickling.copies import private_copy
from flowpregel._pickling.file_digests import WrittenFile, note_output, written_file
from flowpregel.context import (
    Scope,
    configurable_of_tasks,
    current,
    current_scope,
    nothing,
    report_progress,
)
from flowpregel.errors import ConfigurationError

__all__ = [
    "ExecutionInfo",
    "RunControl",
    "Runtime",
    "StopSignal",
    "get_runtime",
    "has_answers",
    "is_inside_run",
    "number_interrupts_apart",
    "read_channels",
    "read_state",
    "report_progress",
    "set_in_configs",
    "write_channels",
]

SchemaT = TypeVar("SchemaT")
if TYPE_CHECKING:
    # As in LangGraph, `Runtime` without a parameter means that the context is None.
    # Only type checkers need typing_extensions, and they include it.
    from typing_extensions import TypeVar as TypeVarWithDefault

    ContextT = TypeVarWithDefault("ContextT", default=None)
else:
    ContextT = TypeVar("ContextT")
STOP_LOOK: Final = 0.05
"""Seconds between two checks by a task that waits until its run is asked to end."""
pauses: ContextVar[bool] = ContextVar("pauses", default=False)
"""True if a run must stop where it would wait for a time or a signal, so that its
process need not wait. Another process resumes the run later.
"""
SLEEPS_UNTIL: Final = "sleeps_until"
AWAITS_SIGNAL: Final = "waits_for_signal"
"""`SLEEPS_UNTIL` and `AWAITS_SIGNAL` are keys of a dict: the value of the interrupt
that a run raises when it stops instead of waiting for a time or a signal.
"""


class RunControl:
    """Asks a run to stop at the next barrier (the end of a superstep), from any OS
    thread.

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
        """Ask the run to stop once the running tasks have ended.

        Args:
            reason: A text that `drain_reason` returns.

        Example:
            >>> control = RunControl()
            >>> control.request_drain()
            >>> control.drain_requested, control.drain_reason
            (True, 'shutdown')
        """
        self._reason = reason

    @property
    def drain_requested(self) -> bool:
        """True once the run was asked to stop."""
        return self._reason is not None

    @property
    def drain_reason(self) -> str | None:
        """The reason of the request to stop, or None without a request."""
        return self._reason


@dataclass(frozen=True, slots=True)
class StopSignal:
    """A flag that is true once the run was asked to end soon, like a
    `threading.Event` that the run sets.

    Example:
        >>> bool(StopSignal())
        False
    """

    is_set: Callable[[], bool | None] = lambda: False
    """Return whether the flag is set."""

    def __bool__(self) -> bool:
        return bool(self.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, and return whether it is set.

        Args:
            timeout: The maximum number of seconds to wait, or None for no limit.

        Example:
            >>> StopSignal().wait(timeout=0)
            False
        """
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
    """The ids of the running code's task, run and checkpoint, and the attempt.

    Example:
        >>> from flowpregel.func import entrypoint
        >>> from flowpregel.runtime import Runtime
        >>> @entrypoint()
        ... def flow(_: int, *, runtime: Runtime) -> int:
        ...     return runtime.execution_info.node_attempt
        >>> flow.run(0)
        1
    """

    checkpoint_id: str | None
    """The id of the checkpoint that the superstep began with, or None without one."""
    checkpoint_ns: str
    """The namespace of the task's checkpoints; empty in an outermost graph."""
    task_id: str
    """The id of the task, which is the same in each attempt and in a resumed run."""
    thread_id: str | None = None
    """The thread of the run, or None without a checkpointer."""
    run_id: str | None = None
    """The id of the run, or None without one."""
    node_attempt: int = 1
    """The number of this attempt, counted from 1."""
    node_first_attempt_time: float | None = None
    """The time at which the first attempt began, in seconds since the epoch."""

    def patch(self, **changes: Any) -> ExecutionInfo:
        """Return a copy with some fields changed.

        Args:
            changes: The new values of fields.

        Example:
            >>> info = ExecutionInfo(None, "", "task-1")
            >>> info.patch(node_attempt=2).node_attempt
            2
        """
        return replace(self, **changes)


class OutputPath(NamedTuple):
    """The path of an output file or folder, which a task writes with
    `Runtime.output`.
    """

    path: Path
    """The absolute path of the output."""
    name: str
    """The path as the task gave it."""
    folder: str
    """The working directory if the task gave a relative path, otherwise an empty
    string.
    """


@dataclass(slots=True)
class AttemptFiles:
    """The files of one attempt of a task: its scratch folder, and its outputs."""

    task_id: str
    folder: Path | None = None
    """The scratch folder of the attempt, or None until the folder is created."""
    outputs: dict[Path, OutputPath] = field(default_factory=dict)
    """The unpublished outputs of the attempt, by temporary path."""
    written: list[WrittenFile] = field(default_factory=list)
    """The records of the published outputs."""

    def scratch(self) -> Path:
        """Return the scratch folder, which is created at the first call."""
        if self.folder is None:
            # The name contains the worker's tag, so that the guard process can find and
            # remove the folder if the worker is killed.
            owner = os.environ.get("FLOWPREGEL_WORKER", str(os.getpid()))
            self.folder = Path(tempfile.mkdtemp(prefix=f"flowpregel-{owner}-"))
        return self.folder

    def output(self, path: str | os.PathLike[str]) -> Path:
        """Return the temporary path to write instead of *path*. It is the same for each
        attempt.
        """
        name = os.fspath(path)
        target = Path(name).absolute()
        part = target.with_name(f".{self.task_id[:8]}.part.{target.name}")
        if part in self.outputs:
            return part
        target.parent.mkdir(parents=True, exist_ok=True)
        # A killed attempt may have left an output, which is removed.
        _remove_path(part)
        if name.endswith(os.sep):
            part.mkdir()
        folder = "" if os.path.isabs(name) else os.getcwd()
        self.outputs[part] = OutputPath(target, name, folder)
        return part

    def publish(self, *, takes_digests: bool) -> None:
        """Sync the outputs to disk, and move them to their paths.

        Args:
            takes_digests: Whether to record the outputs with digests of their contents.
        """
        for part in self.outputs:
            _sync_tree(part)
        for part, output in self.outputs.items():
            _move_output(part, output.path)
            _sync_file(output.path.parent)
        # The digests are computed after the move, because the cache of digests is keyed
        # by path.
        if takes_digests:
            for output in self.outputs.values():
                record = written_file(output.name, output.folder)
                note_output(record, str(output.path))
                self.written.append(record)
        self.outputs.clear()

    def discard(self) -> None:
        """Remove the outputs that were not published."""
        for part in self.outputs:
            # An error in the removal of the file is ignored, because it would hide the
            # outcome of the attempt. The next attempt removes the file, or fails with
            # that error.
            with suppress(OSError):
                _remove_path(part)
        self.outputs.clear()

    def remove(self) -> None:
        """Remove the remaining files when the attempt has ended."""
        self.discard()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _sync_tree(path: Path) -> None:
    """Sync a file, or a folder with everything in it, to disk."""
    if path.is_dir():
        for folder, _, files in os.walk(path):
            for name in files:
                file = Path(folder, name)
                # Only regular files are synced: syncing a pipe would wait, and syncing
                # a link would sync the target of the link.
                if file.is_file() and not file.is_symlink():
                    _sync_file(file)
            _sync_file(Path(folder))
    else:
        _sync_file(path)


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _move_output(part: Path, path: Path) -> None:
    """Move an output to its path, in place of an earlier file or folder."""
    if _is_folder(part) and _is_folder(path):
        # If *path* is a folder with content, it must be moved away before the new
        # folder can take its name.
        earlier = part.with_name(f"{part.name}.earlier")
        _remove_path(earlier)
        os.rename(path, earlier)
        os.rename(part, path)
        _remove_path(earlier)
    else:
        os.replace(part, path)


def _remove_path(path: Path) -> None:
    """Remove a file, or a folder with everything in it, if it exists."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_folder(path: Path) -> bool:
    """Return whether *path* is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


# The class has no slots, because ``Runtime[str]()`` fails for a frozen dataclass with
# slots in Python 3.11.
@dataclass(frozen=True, kw_only=True)
class Runtime(Generic[ContextT]):
    """The services of a run for its tasks, passed to a parameter named ``runtime``.

    Example:
        >>> from flowpregel.func import entrypoint
        >>> @entrypoint()
        ... def greet(name: str, *, runtime: Runtime[str]) -> str:
        ...     return f"{runtime.context}, {name}"
        >>> greet.run("Ada", context="Hello")
        'Hello, Ada'
    """

    context: ContextT = cast(Any, None)
    """The ``context`` that was passed to the run."""
    store: Any = None
    """The long-term store of the run, or None if there is none."""
    stream_writer: Callable[[Any], None] = nothing
    """Send a value to streams of mode ``custom``: ``stream_writer(value)``."""
    heartbeat: Callable[[], None] = nothing
    """Report a sign of life, which restarts an idle timeout: ``heartbeat()``."""
    progress: Callable[..., None] = nothing
    """Report the progress of the task: ``progress(done, total, message)``, like
    `report_progress`.
    """
    metric: Callable[..., None] = nothing
    """Record a number with the task: ``metric("loss", 0.25)``, or
    ``metric("loss", 0.25, step=epoch)``.

    The last value of each name is recorded when the task ends, also if it fails.
    `flowpregel show` and the page show it beside the task. If a task records several
    values under a name, up to 200 of them are recorded with their times and steps,
    spread evenly over the call. The page draws these as a line. While the task runs,
    some values are sent to the page twice a second.
    """
    spent: Callable[[float], None] = nothing
    """Correct the cost of this call for its ``rate=``: ``spent(1_850)``, the cost in
    total. It may be more or less than the function ``cost=`` has returned. Without
    ``rate=``, this does nothing.
    """
    report: Callable[..., None] = nothing
    """Record a preview of a value with the task: ``report(figure, title="losses")``.

    The value is a figure, an image, a table, Markdown, a string or any other object.
    The preview is made at once, and is recorded when the task ends, also if it fails. A
    report replaces an earlier one with the same title.
    """
    save: Callable[[Any], None] = nothing
    """Store a state for the task's next attempt: ``save(state)``.

    The state is any picklable value. It replaces the state saved before, and is kept
    until the task has finished. The function returns when the state is stored as the
    run's ``durability`` requires (in a coroutine: at once). After a failure, a kill or
    a stop, the next attempt finds the state in `saved`.
    """
    saved: Any = None
    """The last state that the previous attempt saved, or None."""
    rng: Callable[[], Any] = Random
    """Return a random number generator for this call: a ``numpy.random.Generator``, or
    a `random.Random` if numpy is not installed.

    The seed depends on the run's thread and on the call. So the numbers are the same
    with any number of workers, in each attempt, and in a resumed run. Each use of the
    function within an attempt returns a generator with a different seed.
    """
    stopping: StopSignal = field(default_factory=StopSignal)
    """True once the run was asked to end: save your state, and return or raise. The
    object has ``is_set()`` and ``wait(timeout)``, like a `threading.Event`.
    """
    previous: Any = None
    """The value that the previous run of the workflow saved on this thread, or None."""
    execution_info: ExecutionInfo | None = None
    """The ids and the attempt of the running code."""
    server_info: None = None
    """Always None; LangGraph's server would add information here."""
    control: RunControl | None = None
    """The object that was passed to the run as ``control``, or None."""

    @property
    def scratch(self) -> Path:
        """An empty folder for this attempt only, which is removed when the attempt ends
        or is killed.
        """
        return files_of("runtime.scratch").scratch()

    def output(self, path: str | os.PathLike[str]) -> Path:
        """Return a temporary path to write to; the complete file appears at *path* when
        the task has returned.

        The temporary file is in the same folder. It is synced to disk and moved to
        *path* just before the task's result is recorded. If the task fails, it is
        removed. In a run with a store, the size and a digest of the file are recorded
        with the call, so that ``flowpregel check`` finds out whether the file is gone
        or was changed. Return ``File(path)`` to pass it to other tasks.

        Args:
            path: The path of the complete file. Missing parent folders are created. If
                it is a string that ends with a slash, the result is a new, empty
                folder, which replaces an earlier folder as a whole.

        Raises:
            RuntimeError: Called outside of a run.
            OSError: A folder cannot be created, or an earlier attempt's output cannot
                be removed.

        Example:
            >>> from pathlib import Path
            >>> from flowpregel.func import entrypoint, task
            >>> @task(executor="inline")
            ... def write(text: str, *, runtime: Runtime) -> None:
            ...     runtime.output("report.txt").write_text(text)
            >>> @entrypoint()
            ... def flow(text: str) -> None:
            ...     write(text).result()
            >>> flow.run("done")
            >>> Path("report.txt").read_text()
            'done'
        """
        return files_of("runtime.output()").output(path)

    @property
    def drain_requested(self) -> bool:
        """True once the run was asked to stop at the next barrier (the end of a
        superstep).
        """
        return self.control is not None and self.control.drain_requested

    @property
    def drain_reason(self) -> str | None:
        """The reason of the request to stop, or None without a request."""
        return None if self.control is None else self.control.drain_reason

    def override(self, **changes: Any) -> Runtime[ContextT]:
        """Return a copy with some fields changed.

        Args:
            changes: The new values of fields.

        Example:
            >>> Runtime(context=1).override(context=2).context
            2
        """
        return replace(self, **changes)


@overload
def get_runtime(context_schema: None = None) -> Runtime[Any]: ...
@overload
def get_runtime(context_schema: type[SchemaT]) -> Runtime[SchemaT]: ...
def get_runtime(context_schema: type[Any] | None = None) -> Runtime[Any]:
    """Return the runtime of the running task.

    Args:
        context_schema: The type of the run's context, used only by type checkers.

    Raises:
        RuntimeError: Called outside of a run.

    Example:
        >>> from flowpregel.func import entrypoint
        >>> @entrypoint()
        ... def flow(_: int) -> str:
        ...     return get_runtime(str).context
        >>> flow.run(0, context="here")
        'here'
    """
    return runtime_of(current_scope("get_runtime()"))


def is_inside_run() -> bool:
    """Return whether the calling code runs in a task, so that `get_runtime` works."""
    return current.get() is not None


def has_answers() -> bool:
    """Return whether the running task has called `interrupt` and has got an answer
    since.

    The result is False outside of a run.
    """
    scope = current.get()
    return scope is not None and bool(scope.job.task.attempt.answers)


def number_interrupts_apart() -> None:
    """Number the interrupts of the calling OS thread or coroutine independently, from
    the first one on, because it runs beside other parts of the same task.

    If `has_answers` returns True, the parts must run one after the other instead, so
    that each gets the answers to its own questions. This does nothing outside of a run.
    """
    scope = current.get()
    if scope is not None:
        current.set(replace(scope))


def read_state() -> Any:
    """Return the state of the graph as an edge would pass it to the running node.

    This is for a node that got a different input by `Send`. Such a node must be an
    object with the attribute ``reads_state = True``, because the state is sent to a
    worker process only then. In any other node, and outside of a run, the state is
    empty.

    Example:
        >>> from flowpregel.runtime import read_state
        >>> read_state()
        {}
    """
    scope = current.get()
    if scope is None or not scope.job.task.node.reads_state:
        return {}
    node = scope.job.task.node
    if isinstance(node.channels, str):
        return scope.read_at_start((node.channels,)).get(node.channels)
    values = scope.read_at_start(node.channels)
    return values if node.mapper is None else node.mapper(values)


def read_channels(names: str | Sequence[str], *, with_own_writes: bool = False) -> Any:
    """Return values of channels at the start of the superstep.

    Unlike the input of a node, the channels need not be declared. A worker process gets
    them from the run when they are first read.

    Args:
        names: The name of one channel, or a list of names. Managed values have names
            too.
        with_own_writes: Whether the writes that the running task has made so far with
            `write_channels` are applied.

    Returns:
        For one name, the value, or None if the channel has none. For a list, a dict of
        the values that exist.

    Raises:
        KeyError: There is no such channel.
        RuntimeError: Called outside of a run.
        ExecutorUnavailableError: The executor has no connection to the run while a task
            runs.

    Example:
        >>> from typing import TypedDict
        >>> from flowpregel.graph import START, StateGraph
        >>> class State(TypedDict):
        ...     text: str
        ...     length: int
        >>> def measure(_: State) -> dict:
        ...     return {"length": len(read_channels("text"))}
        >>> graph = StateGraph(State).add_node(measure).add_edge(START, "measure")
        >>> graph.compile(executor="inline").invoke({"text": "ada"})
        {'text': 'ada', 'length': 3}
    """
    scope = current_scope("read_channels()")
    selection = (names,) if isinstance(names, str) else (*names,)
    unknown = set(selection) - scope.fetch(selection)
    if unknown:
        raise KeyError(
            f"node {scope.job.task.name!r} reads channels that do not exist: "
            f"{', '.join(sorted(unknown))}"
        )
    read = scope.read if with_own_writes else scope.read_at_start
    values = read(selection)
    return values.get(names) if isinstance(names, str) else values


def write_channels(writes: Iterable[tuple[str, Any]]) -> None:
    """Write to channels in the name of the running node, before the node's own output.

    The writes are applied at the end of the superstep, if this attempt of the node
    succeeds. A write to a channel that does not exist is ignored, with a notice.

    Args:
        writes: The channel and the value of each write.

    Raises:
        ConfigurationError: The caller is a `@task`, which writes to no channels.
        RuntimeError: Called outside of a run.
        ExecutorUnavailableError: The executor has no connection to the run while a task
            runs.

    Example:
        >>> from typing import TypedDict
        >>> from flowpregel.graph import START, StateGraph
        >>> class State(TypedDict):
        ...     text: str
        >>> def greet(_: State) -> None:
        ...     write_channels([("text", "Hello")])
        >>> graph = StateGraph(State).add_node(greet).add_edge(START, "greet")
        >>> graph.compile(executor="inline").invoke({"text": ""})
        {'text': 'Hello'}
    """
    scope = current_scope("write_channels()")
    requested = [*writes]
    known = scope.fetch([name for name, _ in requested])
    task = scope.job.task
    if known and task.kind is Kind.CALL:
        channels = ", ".join(map(repr, sorted(known)))
        raise ConfigurationError(
            f"task {task.name!r} writes to {channels}, but a @task has no channels: "
            "return the value, and write it in the node"
        )
    for name, value in requested:
        if name in known:
            scope.writes.append((name, value))
        else:
            notice = Notice(
                f"node {task.name!r} wrote to channel {name!r}, which does not exist: "
                "the write is ignored"
            )
            scope.run_client.emit(notice)


def set_in_configs(key: str, value: Any) -> None:
    """Set ``configurable[key]`` in the config that tasks of this process get.

    This is for plug-ins. Worker processes have configs of their own, so a plug-in has
    them call this function too (``FLOWPREGEL_PRELOAD``).

    Args:
        key: The name of the entry in ``configurable``.
        value: A value that can be pickled, because code may pass on its config. None
            removes the key.

    Example:
        >>> from flowpregel.config import get_config
        >>> from flowpregel.func import entrypoint
        >>> @entrypoint()
        ... def flow(_: int) -> str:
        ...     return get_config()["configurable"]["region"]
        >>> set_in_configs("region", "north")
        >>> flow.run(0)
        'north'
        >>> set_in_configs("region", None)
    """
    if value is None:
        configurable_of_tasks.pop(key, None)
    else:
        configurable_of_tasks[key] = value


def files_of(asked_by: str) -> AttemptFiles:
    """Return the files of the attempt that the calling code belongs to."""
    scope = current_scope(asked_by)
    if scope.files is None:
        scope.files = AttemptFiles(scope.job.task.id)
    files: AttemptFiles = scope.files
    return files


def runtime_of(scope: Scope) -> Runtime[Any]:
    """Return the runtime for the code of the task of *scope*."""
    job, task, run = scope.job, scope.job.task, scope.job.run
    return Runtime(
        context=run.context,
        store=run.store,
        stream_writer=scope.run_client.emit,
        heartbeat=scope.run_client.beat,
        progress=scope.progress,
        metric=scope.metric,
        spent=scope.spent,
        report=partial(scope.add_report, scope),
        save=scope.run_client.save,
        stopping=StopSignal(scope.run_client.is_ending),
        saved=None if task.attempt.saved is None else private_copy(task.attempt.saved),
        rng=scope.rng,
        previous=job.step.previous,
        execution_info=ExecutionInfo(
            checkpoint_id=job.step.checkpoint_id,
            checkpoint_ns=task.namespace,
            task_id=task.id,
            thread_id=run.thread_id,
            run_id=run.run_id,
            node_attempt=job.key[1],
            node_first_attempt_time=(task.attempt.first_started or 0) / 1e9,
        ),
        control=run.control,
    )
