"""The records of a run: nodes, tasks, the outcomes of tasks, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, TypeAlias

from flowpregel._core.chunks import ItemOutcomes
from flowpregel._core.commands import CallTarget
from flowpregel._core.ids import (
    AttemptRecord,
    CallRecord,
    FailedAttempt,
    FailedCall,
    KnownQuestions,
    LazyResults,
    QuestionRecord,
    Sources,
    Span,
    UsedResults,
)
from flowpregel._text import described
from flowpregel._tracebacks import linked
from flowpregel.errors import NodeError
from flowpregel.policies import (
    CachePolicy,
    Resources,
    RetryPolicy,
    TimeoutPolicy,
    TracePolicy,
)

Version: TypeAlias = int | str | float
"""The version of a channel, which grows with each change.

It is an int of nanoseconds, or has the format of another library's saver.
"""

Write: TypeAlias = tuple[str, Any]
"""One write of a task: the channel and the value."""

# The following names may stand in a write in place of a channel's name. Such a write is
# a control write. A task has finished when it has any other write.
INPUT = "__input__"
INTERRUPT = "__interrupt__"
"""The channel of the questions of a task, and their key in the output of a run."""
RESUME = "__resume__"
ERROR = "__error__"
ERROR_SOURCE = "__error_source_node__"
NO_WRITES = "__no_writes__"
RETURN = "__return__"
TASKS = "__pregel_tasks"
PREVIOUS = "__previous__"
CALLED = "__call__"
"""The channel of the record of a call, which consists of the fields of a
`CallRecord`.
"""
ATTEMPT = "__ran__"
"""The channel of a task's `AttemptRecord`, whose fields our savers (flowpregel's) store
beside the task's writes. A loaded checkpoint has it in `Saved.ran`, not in `writes`.
"""
SAVED = "__saved__"
"""The channel of the value that a task has saved for its next attempt. The value is
stored until the task has finished.
"""
ASKED = "__asked__"
"""The channel of a task's questions. Each question consists of the fields of a
`QuestionRecord`.

Questions with answers come first, in the order of the answers, so that each question
gets its own answer.
"""
CONTROL_WRITES = frozenset(
    {ERROR, ERROR_SOURCE, INTERRUPT, RESUME, CALLED, ATTEMPT, SAVED, ASKED}
)
SILENT_WRITES = CONTROL_WRITES | {NO_WRITES, RETURN}
RUN_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""The task id of writes that the run itself makes (`Command.update` and `goto`)."""

MADE_BY = "made_by"
"""The key in the metadata for the code that made a checkpoint: the fields of a
`MadeBy`.

The key is used if the records of attempts are not stored together with the nodes'
writes: at the exit of a run, and by savers of other libraries. The key is left out
wherever metadata is shown to the user.
"""
DURABILITY = "run_durability"
"""The key in the metadata for the durability of the run that made a checkpoint.

Only the stored checkpoints of our own savers have the key. Snapshots, streams and the
methods of LangGraph's savers leave it out: their metadata has LangGraph's keys only.
"""
DRAWING = "run_drawing"
"""The key in the metadata for the digest of a drawing: the drawing of the graph that
made the checkpoint. A store keeps each drawing once. Like `DURABILITY`, it is found
only in checkpoints that our savers have stored.
"""

Source: TypeAlias = Literal["input", "loop", "update", "fork"]

NOTHING_DUE, TASKS_DUE, PAUSED, LIMIT_REACHED = range(4)
"""The values of `Checkpoint.follows`, in this order: nothing is due; tasks are due;
tasks are due but wait for a person, at a breakpoint or after an edit; or the run has
used up its supersteps, which is an error.
"""


class Durability(Enum):
    """The mode that determines when checkpoints and writes reach the disk."""

    SYNC = "sync"
    ASYNC = "async"
    EXIT = "exit"


class Kind(IntEnum):
    """The kind of a task, which depends on its cause: a channel, a `Send`, a call, or a
    failure. The writes of tasks are applied in this order of kinds.

    The writes of a HANDLER replace those of the task whose failure it handles.
    """

    PULL = 0
    PUSH = 1
    CALL = 2
    HANDLER = 3


PULLED = "~__pregel_pull, "
"""The beginning of the path of a task that a channel triggered. The name of the node
follows.
"""


# ---------------------------------------------------------------- nodes and tasks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Node:
    """A function, the channels that trigger it, those it reads, and its writers."""

    name: str
    steps: tuple[CallTarget, ...] = ()
    """The functions to call, each with the output of the previous function. If there
    are none, the output is the input.
    """
    graph: Any = None
    """The graph that the node runs, by its method ``nested_run``; or None if it runs
    none.
    """
    subgraph: Any = None
    """The graph whose states are shown with the node's tasks: the nested graph, or a
    graph that the node calls.
    """
    triggers: tuple[str, ...] = ()
    channels: str | tuple[str, ...] = ()
    """The channels that the node reads. For one name, the node's input is the value of
    that channel. For a tuple of names, the input is a dict of the available values.
    """
    contexts: tuple[str, ...] = ()
    """The `Context` channels in *channels*. They are entered in the process in which
    the node runs.
    """
    mapper: Callable[[Any], Any] | None = None
    """A function that makes the node's input from the values of the channels that it
    reads.
    """
    writers: tuple[Any, ...] = ()
    """Functions, each of which takes the node's output and returns writes to channels.
    """
    reads: tuple[str, ...] = ()
    """The channels that the writers may read again, with the writes of their own task
    applied.
    """
    reads_state: bool = False
    """True if the function may read the values of *channels* while it runs."""
    retry: tuple[RetryPolicy, ...] = ()
    cache: CachePolicy | None = None
    space: tuple[str, ...] = ()
    """The namespace, in the cache, of the results that the node shares."""
    timeout: TimeoutPolicy | None = None
    resources: Resources | None = None
    """The resources that a task of the node takes while it runs, if any."""
    handler: str | None = None
    """The name of the node that handles the failures of this node."""
    on_code_change: Literal["keep", "rerun", "error"] | None = None
    """The policy for a recorded result that different code computed, or None for the
    run's policy.
    """
    adopts: tuple[str, ...] = ()
    """The earlier names of the task. Results that are recorded under them are used as
    results of the task.
    """
    executor: Any = None
    """The executor of the node, or None for the run's default executor."""
    role: Literal["leaf", "body", "graph"] = "leaf"
    """The role of the node. A ``body`` calls tasks and waits for them, a ``graph`` is a
    nested run, and a ``leaf`` does neither.
    """
    is_task: bool = False
    """True for a `@task` function, which sync and async runs may call."""
    home: str = ""
    """The module and the name of the `@task` function, with ``.map`` appended for a
    chunk.
    """
    redacted: frozenset[int | str] = frozenset()
    """The positions and names of the arguments that are neither shown nor stored."""
    parameters: tuple[str, ...] = ()
    """The names of the positional parameters of a `@task` function."""
    hidden: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    trace_policy: TracePolicy | None = None
    """The policy for the values that tracers record, or None."""

    def __str__(self) -> str:
        return f"node {self.name!r}"


@dataclass(slots=True)
class Arguments:
    """The arguments of a call of a `@task` function."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class TaskOrigin:
    """The origin of a task: the call whose result it computes, and the context
    (`contextvars.Context`) in which it runs.
    """

    record: CallRecord | None = None
    """The key of the call, or None if the call is not recorded."""
    stream: tuple[object, ...] = ()
    """The position of the call, from which the task's random numbers are seeded. It
    does not depend on a clock.
    """
    depth: int = 0
    """The number of callers above the task in its run."""
    variables: Any = None
    """The `contextvars.Context` of the body that made the call, or None for the context
    in which the run was started.
    """
    code: Any = None
    """The code of the node, packed (pickled to be sent to another process), or None if
    it is packed when the task starts.
    """
    waiting: list[Any] = field(default_factory=list)
    """The calls (each a `Call`) that wait for the task: one from each attempt of the
    body.
    """
    sources: Sources = ()
    """The tasks from whose results the arguments come, for the preview."""


@dataclass(slots=True, eq=False)
class CacheClaim:
    """The claim of a task on a shared result, which lets other tasks wait for the
    result: its key, and what is known of the result.
    """

    key: tuple[tuple[str, ...], str]
    """The namespace and the key of the result in the cache."""
    ttl: float | None
    """Seconds until the result expires, or None if it never expires."""
    is_busy: bool = False
    """True if the task waits for the result that another task or run computes."""
    writes: Sequence[Write] = ()
    """The writes of the task before the channels prepared them. Other tasks that share
    the result get these writes, and have their own channels prepare them.
    """


@dataclass(slots=True, eq=False)
class Attempt:
    """The current or next attempt of a task, and the results of earlier attempts."""

    number: int = 1
    answers: tuple[Any, ...] = ()
    """The answers to the task's questions so far, in order."""
    questions: KnownQuestions | None = None
    """The questions of earlier attempts, or None if there are none or they are
    unknown.
    """
    saved: Any = None
    """The last value that an earlier attempt saved."""
    first_started: int | None = None
    """The time at which the first attempt started, in wall-clock nanoseconds."""
    span: Span | None = None
    """The time span of the last attempt that has ended."""
    failed: tuple[FailedAttempt, ...] = ()
    """The records of the task's latest failed attempts."""
    deaths: int = 0
    """The number of workers that died while they ran the task."""
    writes: Sequence[Write] = ()
    """The writes of the task. The sequence is empty until the task has finished."""
    activity: Any = None
    """The `TaskActivity` that the task has reported, or None if it has reported
    nothing.
    """
    body: Any = None
    """The calls that the task has made (a `BodyCalls`), or None if it has made
    no call.
    """
    cache: CacheClaim | None = None
    """The task's claim on a shared result, or None if its result is not shared."""


@dataclass(slots=True, eq=False)
class Task:
    """One planned call of a node."""

    id: str
    """The id of the task; the same on every replay."""
    node: Node
    """The node that the task calls."""
    kind: Kind
    """The kind of the task, which names its cause."""
    input: Any
    """The input of the node, or the arguments of a CALL."""
    path: str
    """A string with the position of the task in the superstep; the same on every
    replay.
    """
    triggers: tuple[str, ...] = ()
    """The channels that triggered the task."""
    namespace: str = ""
    """The namespace of the task's interrupts and of the graphs that the task runs,
    ``ns|name:id``: the run's namespace, and the name and the id of the task.
    """
    parent: Task | None = None
    """The caller of a CALL, or the failed task of a HANDLER."""
    timeout: TimeoutPolicy | None = None
    """The time limits of an attempt, or None."""
    error: NodeError | None = None
    """The failure that a HANDLER handles."""
    origin: TaskOrigin | None = None
    """The origin of a CALL, or None for a planned task."""
    attempt: Attempt = field(default_factory=Attempt)
    """The current or next attempt of the task."""

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def depth(self) -> int:
        """The number of callers above the task in its run."""
        return 0 if self.origin is None else self.origin.depth

    @property
    def record(self) -> CallRecord | None:
        """The key of a recorded call, or None if the task is not a call, or the call is
        not recorded.
        """
        return None if self.origin is None else self.origin.record

    @property
    def variables(self) -> Any:
        """The `contextvars.Context` of the body that made the call, or None for the
        context in which the run was started.
        """
        return None if self.origin is None else self.origin.variables

    @property
    def code(self) -> Any:
        """The code of the node, packed (pickled to be sent to another process), if that
        was done at the call.
        """
        return None if self.origin is None else self.origin.code

    @property
    def stream(self) -> tuple[object, ...]:
        """The seed of the task's random numbers, which depends on no clock."""
        if self.origin is None or not self.origin.stream:
            return (self.path,)
        return self.origin.stream

    @property
    def call(self) -> str:
        """The call as readable text, or an empty string if the task is not a call."""
        if self.kind is not Kind.CALL:
            return ""
        record = self.record
        if record is not None:
            return record.text
        # The arguments may have been pickled at the call. Unpickling them here runs
        # code of their classes, which may raise any error. The call is then shown
        # without arguments.
        with suppress(Exception):
            return described(
                self.name, self.input.args, self.input.kwargs, self.node.redacted
            )
        return f"{self.name}(...)"


# ---------------------------------------------------------------- outcomes of tasks


@dataclass(slots=True)
class Returned:
    """The outcome of a task that returned, with its writes."""

    writes: Sequence[Write]


@dataclass(frozen=True, slots=True)
class Raised:
    """The outcome of a task that raised an error, timed out, or lost its worker."""

    error: BaseException
    items: ItemOutcomes | None = None
    """The outcomes of the items, if the task is a chunk that has failed items."""

    def errors(self) -> list[BaseException]:
        """Return the error, or the errors of all failed items."""
        if self.items is None:
            return [self.error]
        # One error, such as a timeout, may have failed several items of a chunk, but is
        # returned once.
        distinct = {id(error): error for error in self.items.errors.values()}
        return list(distinct.values())


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The outcome of a task that asked questions and waits for answers."""

    interrupts: tuple[Any, ...]
    answers: tuple[Any, ...] = ()
    """The answers that the task has used so far, in the order of the questions."""
    refused: BaseException | None = None
    """The error with which the next answer was refused, or None if no answer was
    refused.
    """
    questions: tuple[QuestionRecord, ...] = ()
    """The questions that the task has asked so far. Questions with answers come
    first.
    """


@dataclass(frozen=True, slots=True)
class Escaped:
    """The outcome of a task that ended with a `Command` for the parent graph."""

    command: Any


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The outcome of a task that was cancelled before it ended, and has no effect."""

    goes_on: bool = False
    """True if the task could not be stopped, and the run no longer waits for it."""


Outcome: TypeAlias = Returned | Raised | Interrupted | Escaped | Withdrawn

_FAILED_CALLS = "__flowpregel_calls__"


def add_failed_calls(error: BaseException, calls: Iterable[str]) -> None:
    """Store in *error* the ids of the calls that failed with this error."""
    # The attribute is set in `__dict__`, because the class of the error may refuse
    # `setattr`.
    error.__dict__[_FAILED_CALLS] = {*error.__dict__.get(_FAILED_CALLS, ()), *calls}


def failed_calls(error: BaseException) -> set[str]:
    """Return the ids of the calls that failed with *error*, or with an error that led
    to it.

    The ids are stored on the error itself, so that a copy from a worker has them too.
    """
    call_ids: set[str] = set()
    for link in linked(error):
        call_ids.update(link.__dict__.get(_FAILED_CALLS, ()))
    return call_ids


# ---------------------------------------------------------------- stored records


@dataclass(frozen=True, slots=True)
class Address:
    """The address of checkpoints: a thread, a namespace, and perhaps one checkpoint."""

    thread_id: str
    """The id of the thread."""
    namespace: str = ""
    """The namespace of a nested run, or an empty string for the outermost run."""
    checkpoint_id: str | None = None
    """The id of the checkpoint. None means the newest checkpoint or all checkpoints,
    depending on the method that gets the address.
    """


@dataclass(frozen=True, slots=True)
class Delta:
    """The writes that one superstep added to a DeltaChannel."""

    previous: Version | None
    """The version that the channel had before the writes, or None for an empty channel.
    """
    writes: tuple[Any, ...]
    """The writes, in the order in which the reducer gets them."""


@dataclass(frozen=True, slots=True)
class DeltaHistory:
    """The history of a DeltaChannel. The value of the channel results from folding
    *writes* into *seed*.
    """

    seed: Any
    """The value in the nearest snapshot, or `MISSING` if there is no snapshot."""
    writes: Sequence[tuple[Any, ...]]
    """The writes since the snapshot, as one tuple for each superstep, oldest first."""
    is_stored: bool = True
    """True if the writes are stored as deltas of the channel. Otherwise they were
    collected from pending writes, where LangGraph stores them, and the next checkpoint
    must store the whole value.
    """


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The durable state at a barrier, as a saver stores and returns it.

    A `Batch` contains just the channels in *changed*. Each of them is in *values*, with
    its whole value; or in *deltas*, with only the writes that a superstep added to a
    `DeltaChannel`; or in neither of the two if it is empty now. In a `Saved`, *values*
    contains each channel that has a value, and *deltas* is unused.
    """

    id: str
    """The id of the checkpoint. The ids of later checkpoints are greater."""
    parent_id: str | None
    """The id of the previous checkpoint, or None for the first."""
    at: int
    """The time of the checkpoint, in wall-clock nanoseconds."""
    step: int
    """The number of the superstep that has ended. The input of a new thread has -1."""
    source: Source
    """The origin: ``"input"``, ``"loop"`` (a superstep), ``"update"`` or ``"fork"``."""
    channel_versions: Mapping[str, Version]
    """The versions of all channels at the checkpoint, by name."""
    versions_seen: Mapping[str, Mapping[str, Version]]
    """The versions of the triggers at the last run of each node, for all nodes."""
    changed: tuple[str, ...]
    """The channels whose version has changed since the parent checkpoint."""
    updated_channels: tuple[str, ...] | None = None
    """The channels that may trigger a task of the next superstep."""
    values: Mapping[str, Any] = field(default_factory=dict)
    deltas: Mapping[str, Delta] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata that the user passed (``config["metadata"]``), ``run_id`` and
    ``parents``.
    """
    follows: int = NOTHING_DUE
    """The continuation: 0 if nothing is due, 1 if tasks are due, 2 if tasks are due but
    wait for a person, or 3 if the run has used up its supersteps.
    """


@dataclass(slots=True)
class TaskWrites:
    """Pending writes of one task: stored before the barrier of the superstep.

    A write to a name in `CONTROL_WRITES` replaces an earlier write to that name. Any
    other write is stored under its position, and never changes after that.
    """

    checkpoint_id: str
    """The id of the checkpoint from which the task started."""
    task_id: str
    """The id of the task."""
    path: str
    """The position of the task in the superstep."""
    writes: tuple[Write, ...]
    """The writes, each a channel and a value."""
    ran: AttemptRecord | None = None
    """The record of the attempt, if these are the task's last writes."""
    failed: FailedCall | bytes | None = None
    """The failed call, if these are the last writes of a call that failed and its
    arguments are stored. The saver replaces it by the encoded arguments.
    """
    media: bytes = b""
    """The ``media`` of the task's `Preview`."""


@dataclass(slots=True)
class Batch:
    """Records that a saver commits in one transaction, all of them or none."""

    address: Address
    """The thread and the namespace of the records."""
    writes: tuple[TaskWrites, ...] = ()
    """The pending writes of tasks."""
    checkpoint: Checkpoint | None = None
    """The new checkpoint, or None if the superstep has not ended yet."""
    fence: int | None = None
    """The number of the run's lease (the exclusive right to write to the thread). A
    store refuses a batch if another process has got a lease with a greater number.
    """


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """One stored pending write."""

    task_id: str
    """The id of the task that made the write."""
    channel: str
    """The name of the channel."""
    value: Any
    """The value to write."""


class MadeBy(NamedTuple):
    """The code of the nodes that led from the previous checkpoint to this one."""

    at_exit: bool
    """True if the checkpoint was stored at the run's exit, so that earlier states are
    not stored.
    """
    is_whole: bool
    """True if *nodes* contains all nodes of the run."""
    nodes: tuple[tuple[str, str, tuple[UsedResults, ...]], ...]
    """The name, the digest of the code, and the used results of each node."""

    def attempts(self) -> list[AttemptRecord]:
        """Return an attempt record for each node, in which only the name, the code and
        the used results are known.
        """
        attempts = []
        for name, code, used in self.nodes:
            attempt = AttemptRecord(
                name=name,
                began=0,
                seconds=0.0,
                attempts=1,
                executor="",
                pid=0,
                code=code,
                used=tuple(used),
            )
            attempts.append(attempt)
        return attempts


UNKNOWN_CODE = MadeBy(at_exit=False, is_whole=False, nodes=())

TaskAttempt: TypeAlias = tuple[str, str, AttemptRecord]
"""The id of a task, the path of the task, and the attempt's record."""


def split_writes_and_attempts(
    stored: Iterable[tuple[str, PendingWrite]],
) -> tuple[tuple[PendingWrite, ...], tuple[TaskAttempt, ...]]:
    """Return the pending writes and the attempts among *stored* writes with paths.

    Args:
        stored: The writes, each with the path of the task that made it.

    Example:
        >>> from flowpregel.checkpoint.base import PendingWrite
        >>> write = PendingWrite("task-1", "names", "ada")
        >>> split_writes_and_attempts([("path-1", write)])
        ((PendingWrite(task_id='task-1', channel='names', value='ada'),), ())
    """
    writes: list[PendingWrite] = []
    attempts: list[TaskAttempt] = []
    for path, write in stored:
        if write.channel == ATTEMPT:
            record = AttemptRecord(*write.value)
            attempts.append((write.task_id, path, record))
        else:
            writes.append(write)
    return tuple(writes), tuple(attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint as a saver returns it, with its pending writes."""

    address: Address
    """The address of the checkpoint, with its id."""
    checkpoint: Checkpoint
    """The checkpoint itself, without its pending writes."""
    writes: tuple[PendingWrite, ...] = ()
    """The pending writes, ordered by (path, task id, index)."""
    deltas: Mapping[str, DeltaHistory] = field(default_factory=dict)
    """The history of each channel that stores deltas."""
    is_latest: bool = True
    """True if it is the newest checkpoint of the thread and namespace."""
    newest_id: str | None = field(default=None, compare=False)
    """The id of the newest checkpoint, which the ids of later ones must exceed."""
    newest_versions: tuple[Version, ...] = field(default=(), compare=False)
    """The greatest version of the thread, which later versions must exceed. It is empty
    if the versions of two branches can never be equal.
    """
    ran: tuple[TaskAttempt, ...] = ()
    """The attempts of the tasks that have pending writes on the checkpoint, in the
    order of these writes.
    """
    lazy_results: LazyResults | None = field(default=None, compare=False)
    """The reader of results of finished calls that are not in *writes*, or None if
    *writes* contains all results.
    """
