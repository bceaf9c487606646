"""What a run asks for (effects), and what happens to it (events).

The run is a generator: it yields an effect and is sent the reply named here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from flowpregel._core.equal_calls import ReorderedCalls
from flowpregel._core.ids import CallKey, CallRecord, Span
from flowpregel._core.records import (
    Address,
    Arguments,
    Batch,
    Node,
    Outcome,
    Task,
    Write,
)
from flowpregel.errors import RunStopped, TaskCancelled

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Load:
    """Read a checkpoint; the reply is a `Saved`, or None."""

    address: Address
    before: str | None = None
    """Only checkpoints with a smaller id than this one."""


@dataclass(slots=True, eq=False)
class StepContext:
    """The superstep that tasks are planned for: ids are made of it, and what all have
    in common.
    """

    checkpoint_id: str
    namespace: str
    step: int
    stop: int
    previous: Any = None
    """What the thread's previous run saved (functional API)."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """The live channels; they do not change while tasks run."""
    managed: Mapping[str, Any] = field(default_factory=dict)
    resuming: bool = False
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Answers that nested graphs may be waiting for, by interrupt id."""


@dataclass(slots=True, eq=False)
class Submit:
    """Start an attempt of each of these tasks; the reply is None, an `Ended` of each
    follows.
    """

    tasks: list[Task]
    setting: StepContext


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a task that runs, or withdraw one that waits; an `Ended` still follows."""

    task_id: str
    kill: bool
    """False: only where no work is lost by it (it waits, or it is a coroutine)."""
    leave: bool = False
    """Whether one that cannot be stopped is left behind: its `Ended` comes at once."""


@dataclass(slots=True)
class Resolve:
    """Hand the caller of a call its outcome; the reply is None."""

    call: Call
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event; the reply is a `Wakeup`."""

    deadline: int | None = None
    """Monotonic nanoseconds at which to wake up in any case; 0 is at once, None is
    never.
    """


@dataclass(slots=True)
class Commit:
    """Keep a batch, as durably as the run's mode says; the reply is None."""

    batch: Batch


CacheKey: TypeAlias = tuple[tuple[str, ...], str]
"""The namespace and the key of a result that is shared."""
BUSY: Final = object()
"""What the cache has for a task whose result another is computing."""
LOOK_AGAIN: Final = 50_000_000
"""Nanoseconds between two looks for such a result."""
HOLD: Final = 50_000_000
"""Nanoseconds for which a call that no recorded one fits waits for others of its task
that do.
"""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """Ask the cache for tasks; the reply maps these keys to their writes, or to `BUSY`.

    What it does not have is this run's to compute, until it shares it or gives it up.
    """

    keys: tuple[CacheKey, ...]


@dataclass(frozen=True, slots=True)
class CacheStore:
    """Put finished tasks' writes into the cache; the reply is None."""

    entries: Mapping[CacheKey, tuple[Any, float | None] | None]
    """None: the task has no result to share."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Give the user's stream something; the reply is None."""

    mode: str
    payload: Any
    namespace: tuple[str, ...] | None = None
    """Where it happened; None is the run's own namespace."""


Effect: TypeAlias = (
    Load | Submit | Cancel | Resolve | Wait | Commit | CacheLookup | CacheStore | Emit
)

Steps: TypeAlias = Generator[Effect, Any, Any]
"""A part of a run: a generator of effects."""


# ---------------------------------------------------------------- events


@dataclass(slots=True, eq=False)
class Call:
    """A running task called a `@task` function, or a graph, and may wait for it."""

    caller: str
    """The id of the calling task."""
    attempt: int
    """The attempt of the caller that makes it; a later one numbers its calls anew."""
    node: Node
    arguments: Arguments
    asked: CallKey | None = None
    """What it asks for, if it is to be recorded; a graph's calls are known by their
    order.
    """
    reply: Any = None
    """Where the engine finds the caller that waits; opaque here."""
    variables: Any = None
    """The caller's context variables (a `contextvars.Context`); opaque here."""
    code: Any = None
    """The code of the node, packed when the call was made, if it was; opaque here."""


class CallFailure(NamedTuple):
    """A call that failed."""

    task: Task
    error: BaseException | None
    """None: the present attempt of the body did not make the call."""
    is_late: bool
    """Whether the body had ended before."""


@dataclass(slots=True, eq=False)
class BodyCalls:
    """The calls that one body makes, all its attempts together unless it is said."""

    may_repeat: bool
    """Whether another attempt of the body may be given their results again."""
    caller: str = ""
    """A digest of what they depend on, once there is one that is recorded."""
    call_count: int = 0
    """How many the present attempt has made."""
    occurrences: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many of these asked for the same, by the name and the digest of the
    arguments.
    """
    reordered: ReorderedCalls = field(default_factory=ReorderedCalls)
    """Equal calls of these that records of other numbers answered."""
    position: int = 0
    """How many of these have their place in the body by themselves."""
    graphs: int = 0
    """How many of these were of graphs."""
    running: int = 0
    failures: dict[str, CallFailure] = field(default_factory=dict)
    """Those that failed, by task id."""
    observed_failures: Collection[str] | None = None
    """Those whose failures the body has seen; None: its executor does not report
    them.
    """
    asked: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Their interrupts, by task path."""
    outcome: Outcome | None = None
    """How the body ended, if some of them are still running."""
    recorded: dict[str, Sequence[Write]] = field(default_factory=dict)
    """What this superstep recorded of them, by task id, if it may repeat them."""
    planned: dict[int, CallRecord] = field(default_factory=dict)
    """Those that ran, by place, if it may repeat them."""
    is_remade: bool = False
    """Whether it was given a result made anew where another was recorded: what it asks
    for from then on may differ, and that is no chance.
    """
    used: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many results the present attempt was given, by the task's name and the code's
    digest. And the sizes of the files that its calls took, by name and digest.
    """

    def restart(self) -> None:
        """Forget the order of the calls of the attempt that ended."""
        self.call_count = 0
        self.position = 0
        self.graphs = 0
        self.occurrences.clear()
        self.reordered.clear()
        self.used.clear()


SAVE: Final = Node(name="runtime.save")
"""The node of a call by which a task saves its only argument: the run itself answers
it.
"""
CANCEL: Final = Node(name="future.cancel")
"""The node of a call by which a task gives up another, which has the same ``reply``."""
REQUESTS: Final = SAVE, CANCEL
"""What runs no task."""


@dataclass(slots=True)
class Ended:
    """An attempt of a task ended."""

    task_id: str
    attempt: int
    outcome: Outcome
    span: Span | None = None
    """When it ran, if its executor reports it."""
    observed_failures: Collection[str] | None = None
    """The calls whose failures it has seen; None: not reported."""


@dataclass(frozen=True, slots=True)
class Report:
    """How far a task is: what it emits beside the chunks of the custom stream."""

    done: float
    total: float | None = None
    """None: it does not know."""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """What a language model says in a task: what it emits for the stream of mode
    ``messages``.
    """

    message: Any
    metadata: Mapping[str, Any]
    is_part: bool = False
    """Whether more of the same message follows."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What the user of the run is to know of a task that runs."""

    text: str


@dataclass(frozen=True, slots=True)
class Emitted:
    """A running task emitted a chunk, a `Report`, a `Notice`, or what a model
    `ModelMessage`.
    """

    task_id: str
    payload: Any
    namespace: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The reader of the stream is gone, or the program was asked to end."""

    reason: str
    kill: bool = True
    """False: what runs goes on for now; only what waits, or comes, is withdrawn."""
    leave: bool = False
    """Whether what cannot be stopped is waited for no longer."""

    @property
    def error(self) -> TaskCancelled:
        """What the run ends with."""
        return TaskCancelled(self.reason) if self.kill else RunStopped(self.reason)


Event: TypeAlias = Ended | Call | Emitted | Stopped


@dataclass(slots=True)
class Wakeup:
    """Everything that happened since the last one, and when it is now."""

    events: list[Event]
    now: int
    """Wall-clock nanoseconds, strictly increasing."""
    monotonic: int
    """Nanoseconds, for deadlines."""
    jitter: float = 0.0
    """A random number in [0, 1), for the delays of retries."""
