"""What is known of runs and their calls, as rows: the fields of each are fit for JSON."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from flowpregel.checkpoint.work import Status

CallState: TypeAlias = Literal["failed", "waiting", "unfinished", "done"]
"""How a call stands by what is kept of it: *waiting*, for an answer; *unfinished*, it has left
something (what it saved, say) and has not ended. One that runs has often left nothing yet."""


class RunRow(NamedTuple):
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
    states: dict[CallState, int]
    """How many tasks of its present superstep, and calls in it, stand how."""
    host: str = ""
    """Where it runs now; empty: nowhere."""
    pid: int = 0
    """In which process it runs now; 0: in none."""


class CallRow(NamedTuple):
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
    caller: str
    """The path of the task whose body made the call; empty: it is no call."""
    error: str
    """What it failed with, in one line."""
    questions: int
    """How many answers it waits for."""
    planned: int
    """Wall-clock nanoseconds at which its first attempt was given away to be run; 0: not known."""
    began: int
    """Wall-clock nanoseconds at which its last attempt began; 0: not known."""
    seconds: float
    """How long that took."""
    attempts: int
    """How often it was tried; 0 and *began*: its result was shared by another run."""
    executor: str
    host: str
    pid: int
    """In which process the last attempt ran; 0: not known."""
    cpu: float
    """Seconds of CPU that the last attempt took; 0: not known."""
    peak: int
    """The most memory, in bytes, that its process had used when it ended; 0: not known."""


class CallChanges(NamedTuple):
    """What changed of a run's calls since a mark."""

    mark: int
    """To be given the next time."""
    is_whole: bool
    """Whether *rows* begins with all there is: drop what was known before."""
    is_more: bool
    """Whether there is more, which is told the next time."""
    rows: tuple[CallRow, ...]
    """New ones and changed ones; one that changed again is there once more, later."""
