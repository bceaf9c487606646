"""What is known of runs and their calls, as rows: `dataclasses.asdict` of each is fit for JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from flowpregel.checkpoint.work import Status

CallState: TypeAlias = Literal["failed", "waiting", "unfinished", "done"]
"""How a call stands by what is kept of it: *waiting*, for an answer; *unfinished*, it has left
something (what it saved, say) and has not ended. One that runs has often left nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run: what its thread's newest checkpoint tells, and who has it now."""

    thread_id: str
    status: Status
    flow: str | None
    """``MODULE:FLOW``, if the run recorded it."""
    step: int
    """The superstep of its newest checkpoint; -1: it has just begun."""
    created: int
    """Wall-clock nanoseconds at which the thread began."""
    updated: int
    """Wall-clock nanoseconds of its newest checkpoint."""
    checkpoints: int
    """How many the thread has."""
    host: str = ""
    """Where it runs now; empty: nowhere."""
    pid: int = 0
    """In which process it runs now; 0: in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """An attempt of a call that failed."""

    began: int
    """Wall-clock nanoseconds."""
    seconds: float
    pid: int
    """In which process; 0: that is not known."""
    error: str
    """What it failed with, in one line."""
    traceback: str
    """All of it, as Python writes it; empty: it was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A call of a task, or a node's task, by what it has left in the store."""

    id: str
    name: str
    """Of its node; empty: only its flow knows."""
    text: str
    """The call with short arguments, such as ``parse('c.txt')``; empty: it is no call."""
    state: CallState
    step: int
    checkpoint_id: str
    """The checkpoint that it left something on."""
    namespace: str
    """Of the graph that it belongs to; empty: of the outermost."""
    path: str
    """Where it stands in its superstep: sorted by it, calls come after those that made them."""
    caller: str = ""
    """The path of the task whose body made the call; empty: it is no call."""
    planned: int = 0
    """Wall-clock nanoseconds at which its first attempt was given away to be run; 0: not known."""
    began: int = 0
    """Wall-clock nanoseconds at which its last attempt began; 0: not known."""
    seconds: float = 0.0
    """How long that took."""
    attempts: int = 0
    """How often it was tried; 0 and *began*: its result was shared by another run."""
    executor: str = ""
    host: str = ""
    pid: int = 0
    """In which process the last attempt ran; 0: not known."""
    cpu: float = 0.0
    """Seconds of CPU that the last attempt took; 0: not known."""
    peak: int = 0
    """The most memory, in bytes, that its process had used when it ended; 0: not known."""
    error: str = ""
    """What it failed with, in one line."""
    questions: int = 0
    """How many answers it waits for."""
    version: int = 0
    """Grows with every change of any call: see `StoreReader.calls`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDetail:
    """All that is kept of a call; values are previews, as `preview.plain` makes them."""

    row: CallRow
    arguments: Any = None
    """Of one that failed, by position and name; None: they were not kept."""
    result: Any = None
    """What it returned, or what a node wrote, by channel."""
    error: Any = None
    """Its ``type`` and ``message``."""
    attempts: tuple[AttemptRow, ...] = ()
    """Those that failed, the last one included, with their tracebacks."""
    questions: tuple[dict[str, Any], ...] = ()
    """What it asks: ``id`` and ``value`` of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChanges:
    """What changed of a run's calls since a mark."""

    mark: int
    """To be given the next time."""
    is_whole: bool
    """Whether *rows* is all there is: drop what was known before."""
    rows: tuple[CallRow, ...]
    """New ones and changed ones."""
    gone: tuple[str, ...] = ()
    """Ids of calls that were taken back (`flowpregel redo`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """A task that runs now, as its process published it."""

    id: str
    name: str
    text: str
    """The call with short arguments; empty: it is no call."""
    role: str
    """``leaf``; ``body``: it calls others and waits for them; ``graph``: a nested run."""
    caller: str
    """The id of the task whose body made the call; empty: it is no call."""
    attempt: int
    planned: int
    """Wall-clock nanoseconds."""
    began: int
    """Wall-clock nanoseconds at which a worker got it; of other executors the same as *planned*."""
    pid: int
    """The process that it runs in."""
    done: float | None = None
    """How far it says it is (`report_progress`); None: it has said nothing."""
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorker:
    """A worker process of a run that goes on."""

    pid: int
    task: str
    """The id of the task that runs in it; empty: none of this run."""
    memory: int
    """Bytes that it and its children take now, without what they share; 0: not known."""
    cpu: float
    """Seconds of CPU that it has used since it started; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What a run is doing now."""

    thread_id: str
    host: str
    pid: int
    started: int
    """Wall-clock nanoseconds at which this process began, or went on with, the run."""
    at: int
    """Wall-clock nanoseconds at which this was so."""
    running: tuple[LiveTask, ...] = ()
    """Those that run, bodies and graphs too: at most `MOST_TASKS`."""
    count: int = 0
    """How many run."""
    waiting: dict[str, int] = field(default_factory=dict)
    """How many wait for their turn, by the name of the task."""
    workers: tuple[LiveWorker, ...] = ()


MOST_TASKS = 500
"""Of the tasks that run, so many are published."""
