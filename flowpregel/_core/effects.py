"""The effects that a run requests, and the events that it receives.

A run is a generator: it yields an effect, and its driver performs it and sends the
reply that the effect's docstring names. Events reach the run in the reply to `Wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from flowpregel._core.ids import CallKey, Span
from flowpregel._core.records import (
    Address,
    Arguments,
    Batch,
    Node,
    Outcome,
    Task,
)
from flowpregel.errors import RunStopped, TaskCancelled

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Load:
    """The effect that reads a checkpoint. The reply is a `Saved`, or None."""

    address: Address
    before: str | None = None
    """The id of a later checkpoint: only checkpoints with smaller ids are read. If it
    is None, the newest checkpoint is read.
    """


@dataclass(frozen=True, slots=True)
class LoadAttempts:
    """The effect that reads the records of the nodes that led to a checkpoint. The
    reply is a list of pairs: the id of the checkpoint from which a node started (or
    None), and the `AttemptRecord` of the node's task.
    """

    address: Address


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """The effect that plans a nested run which has a thread of its own. The reply is
    the plan. Its ``run_context`` replaces the context of the run.
    """

    plan: Callable[[], Any]
    """A function that makes the plan and returns it. It reads from the saver of the
    nested run, which may take time.
    """
    needs_loop: bool
    """True if reading the saver needs the event loop. An async run then makes the plan
    on another OS thread, because it must not block the loop.
    """


@dataclass(slots=True, eq=False)
class StepContext:
    """The facts about a superstep that all its tasks have in common."""

    checkpoint_id: str
    namespace: str
    step: int
    stop: int
    previous: Any = None
    """The value that the thread's previous run saved (functional API)."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """The run's own channel objects, which do not change while tasks run."""
    managed: Mapping[str, Any] = field(default_factory=dict)
    resuming: bool = False
    answers: Mapping[str, Any] = field(default_factory=dict)
    """The answers that nested graphs may be waiting for, by interrupt id."""


@dataclass(slots=True, eq=False)
class Submit:
    """The effect that starts an attempt of each task. An `Ended` follows for each of
    them. The reply is None.
    """

    tasks: list[Task]
    step: StepContext


@dataclass(frozen=True, slots=True)
class Cancel:
    """The effect that stops a running task, or withdraws a waiting task. An `Ended`
    still follows. The reply is None.
    """

    task_id: str
    kill: bool
    """True to stop the task in any case. False to stop it only if no work is lost by
    that: if it waits, or is a coroutine.
    """
    leave: bool = False
    """True if the run no longer waits for a task that cannot be stopped: its `Ended`
    follows at once.
    """


@dataclass(slots=True)
class Resolve:
    """The effect that gives the outcomes of calls to their callers. The reply
    is None.
    """

    outcomes: list[tuple[Call | SaveState, Outcome]]


@dataclass(frozen=True, slots=True)
class Wait:
    """The effect that waits for an event. The reply is a `Wakeup`."""

    deadline: int | None = None
    """The monotonic nanoseconds at which the run wakes up even without an event. 0
    means at once, and None means never.
    """


WAIT_FOR_EVENT: Final = Wait()
"""The wait that only an event ends."""


@dataclass(slots=True)
class Commit:
    """The effect that stores a batch of records, with the durability of the run. The
    reply is None.
    """

    batch: Batch


CacheKey: TypeAlias = tuple[tuple[str, ...], str]
"""The namespace and the key under which the cache has a shared result."""
CacheEntry: TypeAlias = tuple[Any, float | None]
"""The writes of a task whose result is shared, and the seconds until they expire (None
if they never expire).
"""
BUSY: Final = object()
"""The reply for a shared result that another task or run is still computing."""
LOOK_AGAIN: Final = 50_000_000
"""Nanoseconds between two lookups of a result that another task or run is computing."""
HOLD: Final = 50_000_000
"""Nanoseconds for which a call that fits no record waits for other calls of the same
task to find their records.
"""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """The effect that looks up shared results. The reply maps keys to writes, or to
    `BUSY`.

    A key without a result is claimed for this run, until the run shares a result or
    releases the claim.
    """

    keys: tuple[CacheKey, ...]


@dataclass(frozen=True, slots=True)
class CacheStore:
    """The effect that puts the writes of finished tasks into the cache. The reply is
    None.
    """

    entries: Mapping[CacheKey, CacheEntry | None]
    """The results by key. If the value of a key is None, only the claim on the key is
    released.
    """


@dataclass(frozen=True, slots=True)
class Emit:
    """The effect that adds an item to the user's stream. The reply is None."""

    mode: str
    payload: Any
    namespace: tuple[str, ...] | None = None
    """The namespace of the item, or None for the namespace of the run."""


Effect: TypeAlias = (
    Load
    | LoadAttempts
    | Submit
    | Cancel
    | Resolve
    | Wait
    | Commit
    | CacheLookup
    | CacheStore
    | Emit
    | Prepare
)

Steps: TypeAlias = Generator[Effect, Any, Any]
"""A generator of a run's effects, to which the replies are sent. A run is made of such
generators.
"""


# ---------------------------------------------------------------- events


@dataclass(slots=True, eq=False)
class Call:
    """The event that a running task has called a `@task` function or a graph. The task
    may wait for the result.
    """

    task_id: str
    """The id of the task that made the call."""
    attempt: int
    """The number of the caller's attempt. Each attempt numbers its calls from the
    beginning.
    """
    node: Node
    arguments: Arguments
    key: CallKey | None = None
    """The key under which the call is recorded. None for the call of a graph, which is
    identified by its order among the body's calls of graphs.
    """
    reply: Any = None
    """The object through which the caller gets the outcome. Only the engine (the part
    that performs the effects) uses this.
    """
    variables: Any = None
    """The caller's context variables (a `contextvars.Context`). Only the engine uses
    them.
    """
    code: Any = None
    """The code of the called task's node, pickled to be sent to another process. None
    if it is pickled later, when the task starts. Only the engine uses this.
    """
    may_repeat: bool = False
    """True if the caller may be lost with its machine, and then makes the call again
    in its next attempt.
    """


@dataclass(slots=True, eq=False)
class SaveState:
    """The event that a running task saves a value for its next attempt. The run answers
    with a `Resolve` after the commit.
    """

    task_id: str
    attempt: int
    value: Any
    reply: Any = None
    """The object through which the task gets the answer. Only the engine uses this."""


@dataclass(slots=True, eq=False)
class CancelCall:
    """The event that a body (the code of a workflow or task) no longer needs a call
    that it made.
    """

    task_id: str
    """The id of the task that made the call."""
    attempt: int
    reply: Any
    """The `Call.reply` of the call, which identifies it."""


@dataclass(slots=True)
class Ended:
    """The event that an attempt of a task has ended."""

    task_id: str
    attempt: int
    outcome: Outcome
    span: Span | None = None
    """The time span of the attempt, if its executor reports it."""
    observed_failures: Collection[str] | None = None
    """The ids of the calls whose failures the task has seen, or None if the executor
    does not report them.
    """


@dataclass(frozen=True, slots=True)
class Report:
    """The progress that a running task reports, emitted beside the chunks of the stream
    of mode ``custom``.
    """

    done: float
    total: float | None = None
    """The value that ``done`` has when the task has finished, or None if the task does
    not know it.
    """
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """A message of a language model, emitted for the stream of mode ``messages``."""

    message: Any
    """The model's message, or a part of the message."""
    metadata: Mapping[str, Any]
    """The metadata of the model's call, such as ``langgraph_node``."""
    is_part: bool = False
    """True if more of the same message follows."""


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """An event of a tool's call, emitted for the stream of mode ``tools``."""

    payload: Mapping[str, Any]
    """The item that the stream gets."""


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A call of a callback handler, emitted by a task in another process."""

    position: int
    """The position of the handler among the handlers of the run."""
    method: str
    args: Sequence[Any]
    kwargs: dict[str, Any]


def labels_of(task: Task, step: int) -> dict[str, Any]:
    """Return the metadata entries that describe a *task* of superstep *step*."""
    return {
        "langgraph_step": step,
        "langgraph_node": task.name,
        "langgraph_triggers": task.triggers,
        "langgraph_path": task.path,
        "langgraph_checkpoint_ns": task.namespace,
    }


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice for the user about a task that runs."""

    text: str
    subject: str | None = None
    """The subject of the notice. A run gives only its first notice on each subject.
    None means that the text itself is the subject.
    """


@dataclass(frozen=True, slots=True)
class Emitted:
    """The event that a running task has emitted a chunk, a `Report`, a
    `MetricValues`, a `Notice`, a `ModelMessage`, a `ToolEvent` or a `HandlerCall`.
    """

    task_id: str
    payload: Any
    namespace: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The event that the run must end, because its stream has no reader any more or the
    program is ending.
    """

    reason: str
    kill: bool = True
    """True to end running tasks, too. False to end only waiting and new tasks: running
    tasks continue until they end, or until a request with True follows.
    """
    leave: bool = False
    """True if the run does not wait for tasks that cannot be stopped."""

    @property
    def error(self) -> TaskCancelled:
        """The error with which a run ends because of this request."""
        return TaskCancelled(self.reason) if self.kill else RunStopped(self.reason)


Request: TypeAlias = Call | SaveState | CancelCall
"""A request of a running task to its run."""
Event: TypeAlias = Ended | Request | Emitted | Stopped


@dataclass(slots=True)
class Wakeup:
    """The events since the run last woke up, and the present time."""

    events: list[Event]
    now: int
    """The present time in wall-clock nanoseconds. It is greater than in any earlier
    wake-up.
    """
    monotonic: int
    """The present time in monotonic nanoseconds, for deadlines."""
    jitter: float = 0.0
    """A random number in [0, 1), for the delays of retries."""
