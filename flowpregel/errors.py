"""Every error flowpregel raises.

::

    BaseException
    ├── GraphBubbleUp                 control flow: not an `Exception`
    │   ├── GraphInterrupt            a task asks a person something
    │   ├── ParentCommand             a node commands the graph around it
    │   └── TaskCancelled             the run no longer wants this task
    │       └── RunStopped            the run was told to end, and ended in time
    └── Exception
        ├── RunNotice (UserWarning)       what became of recorded calls: a warning
        └── FlowPregelError
            ├── ConfigurationError (ValueError ...) what was built or passed cannot work
            │   └── InvalidNamespaceError           a namespace no store can have
            ├── GraphRecursionError (RecursionError)
            ├── GraphDrained                        the run was asked to stop
            ├── InvalidUpdateError                  a write no channel can take
            ├── EmptyChannelError                   a channel holds nothing
            ├── EmptyInputError                     a run got nothing to start with
            ├── ExecutorUnavailableError            an executor cannot do what is asked
            ├── ResourcesError                      more of a resource than there can be
            ├── ReplayMismatchError                 a body is not deterministic
            ├── CodeChangedError                    a recorded result is of other code
            ├── UnmatchedCallsError                 no recorded call of a task fits
            ├── InputMismatchError                  a run to go on with has other input
            ├── FlowMismatchError                   the run is another workflow's
            ├── UnansweredError                     a run waits for answers
            ├── RunDiedError                        its process ended before a run did
            ├── UnknownInterruptError               an answer fits no pending question
            ├── task failures
            │   ├── NodeTimeoutError, NodeCancelledError, TaskExitError
            │   ├── CommandFailedError
            │   └── RecordedError, WorkerDiedError, TaskSerializationError
            └── StoreError                          what the durable store refuses
                ├── StoreCorruptError, StoreForeignError, StoreVersionError
                ├── StoreFullError, StoreReadOnlyError, StoreBusyError
                ├── CommitUnknownError                  a commit whose answer was lost
                ├── ValueEncodingError
                └── ThreadBusyError, LeaseLostError

An error's ``args`` are its constructor's arguments, so each of them survives a pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowpregel import _run_errors
from flowpregel._run_errors import (
    CodeChangedError,
    FlowMismatchError,
    FlowPregelError,
    InputMismatchError,
    ReplayMismatchError,
    ResourcesError,
    RunDiedError,
    RunNotice,
    UnansweredError,
    UnmatchedCallsError,
    _DetailedError,
)

__all__ = [
    "CodeChangedError",
    "CommandFailedError",
    "CommitUnknownError",
    "ConfigurationError",
    "EmptyChannelError",
    "EmptyInputError",
    "ExecutorUnavailableError",
    "FlowMismatchError",
    "FlowPregelError",
    "GraphBubbleUp",
    "GraphDrained",
    "GraphInterrupt",
    "GraphRecursionError",
    "InputMismatchError",
    "InvalidUpdateError",
    "LeaseLostError",
    "NodeCancelledError",
    "NodeError",
    "NodeTimeoutError",
    "ParentCommand",
    "RecordedError",
    "ReplayMismatchError",
    "ResourcesError",
    "RunDiedError",
    "RunNotice",
    "RunStopped",
    "StoreCorruptError",
    "StoreError",
    "StoreForeignError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "TaskCancelled",
    "TaskExitError",
    "TaskSerializationError",
    "ThreadBusyError",
    "UnansweredError",
    "UnknownInterruptError",
    "UnmatchedCallsError",
    "ValueEncodingError",
    "WorkerDiedError",
    "is_invalid_resume",
]


for _error in vars(_run_errors).values():
    if getattr(_error, "__module__", None) == _run_errors.__name__:
        _error.__module__ = __name__  # where everybody finds them, and pickles do


class GraphBubbleUp(BaseException):
    """Control flow that leaves a task; never a failure, never retried."""


@dataclass(eq=False, repr=False)
class GraphInterrupt(GraphBubbleUp):
    """A task stopped to ask; *interrupts* are its open questions."""

    interrupts: Sequence[Any] = ()


@dataclass(eq=False, repr=False)
class ParentCommand(GraphBubbleUp):
    """A node returned a `Command` for the graph around its own."""

    command: Any


class TaskCancelled(GraphBubbleUp):
    """The run was stopped, or no longer wants this task's result."""

    def __init__(self, reason: str = "the run was stopped") -> None:
        super().__init__(reason)
        self.reason = reason


class RunStopped(TaskCancelled):
    """A run was asked to end in time (``stop_after``, SIGTERM), and ended.

    It goes on when it is run again.
    """


class ConfigurationError(
    FlowPregelError, ValueError, TypeError, KeyError, NotImplementedError
):
    """Something that was built or passed cannot work; the message says which.

    It is also what LangGraph raises at such places, for programs that catch that.
    """

    __str__ = Exception.__str__  # that of a KeyError shows the repr of the message


class InvalidNamespaceError(ConfigurationError):
    """A namespace of a store has a label that it cannot have, or none at all."""


class GraphRecursionError(_DetailedError, RecursionError):
    """A run used up its supersteps; the state after the last one is kept."""

    limit: int
    text = (
        "the run is not finished after {limit} supersteps (recursion_limit); "
        "check that the cycle ends, or raise recursion_limit"
    )


class GraphDrained(_DetailedError):
    """A run stopped at a barrier because `RunControl.request_drain` asked it to."""

    reason: str = "shutdown"
    text = "Graph drained: {reason}; invoke(None) with the same thread_id goes on"


class InvalidUpdateError(FlowPregelError):
    """A write that its channel, or the run, cannot take."""


class EmptyChannelError(FlowPregelError):
    """A channel was read that holds no value."""


class EmptyInputError(FlowPregelError):
    """A run was started without anything to start it."""


class ExecutorUnavailableError(FlowPregelError):
    """An executor was asked for something it cannot do."""


INVALID_RESUME = "_flowpregel_invalid_resume"
"""The attribute of an error that was raised because an answer did not fit: the
question's id.
"""


def is_invalid_resume(error: BaseException) -> bool:
    """Return True if *error* was raised for an answer that did not fit its
    ``response_schema``.

    Example:
        >>> is_invalid_resume(ValueError("something else"))
        False
    """
    return hasattr(error, INVALID_RESUME)


class UnknownInterruptError(_DetailedError, RuntimeError):
    """An answer that fits no pending question."""

    message: str
    reason: Literal["not_pending", "empty_map", "ambiguous"] = "not_pending"
    """``"not_pending"``: the id belongs to no question, or to an answered one;
    ``"empty_map"``: there was no answer; ``"ambiguous"``: one value for several
    questions.
    """
    interrupt_ids: Sequence[str] = ()
    pending_ids: Sequence[str] = ()
    text = "{message}"

    def __post_init__(self) -> None:
        self.interrupt_ids, self.pending_ids = (
            tuple(self.interrupt_ids),
            tuple(self.pending_ids),
        )
        super().__post_init__()


class NodeTimeoutError(_DetailedError):
    """A task ran longer than its `TimeoutPolicy` allows (times in seconds)."""

    node: str
    elapsed: float
    kind: Literal["run", "idle"]
    limit: float
    text = (
        "Node {node!r} exceeded its {kind} timeout of {limit:.3f}s (elapsed: "
        "{elapsed:.3f}s)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.timeout, self.run_timeout = (
            self.limit,
            self.limit if self.kind == "run" else None,
        )
        self.idle_timeout = self.limit if self.kind == "idle" else None


class NodeCancelledError(_DetailedError):
    """A task's own code raised a cancellation without having been cancelled."""

    node: str
    text = "Node {node!r} was cancelled from within"


class TaskExitError(_DetailedError):
    """A task's code tried to end the program (``sys.exit``, ``KeyboardInterrupt``)."""

    node: str
    what: str
    text = (
        "Node {node!r} tried to end the program: {what}; let it return, or raise an "
        "exception"
    )


class RecordedError(_DetailedError):
    """Stands in a record for an exception that cannot be kept itself.

    The exception itself was raised when the failure happened.
    """

    kind: str
    """The exception's class."""
    message: str
    """The text of the exception."""
    text = "{kind}: {message} (the exception itself could not be kept)"


class WorkerDiedError(_DetailedError):
    """The process that ran a task ended before the task did."""

    task: str
    pid: int
    """The process id of the worker."""
    cause: str
    """The cause of the end: a signal's name, an exit code, the kernel's OOM killer."""
    report: str = ""
    """Further facts: the peak memory, the last lines of the worker's stderr."""
    call: str = ""
    """The call with short arguments, if the task is one."""

    def __str__(self) -> str:
        work = self.call or f"task {self.task!r}"
        text = f"the worker (pid {self.pid}) that ran {work} died: {self.cause}"
        return f"{text}\n{self.report}" if self.report else text


_END_OF_STREAM = 1_000
"""Characters of each stream of a command that are in the message that it failed."""


class CommandFailedError(_DetailedError):
    """A command that `flowpregel.shell` ran failed."""

    command: str
    exit_code: int
    output: str
    """The end of what the command wrote to stdout."""
    errors: str = ""
    """The end of what the command wrote to stderr."""

    def __str__(self) -> str:
        streams = {"stderr": self.errors.strip(), "stdout": self.output.strip()}
        ends = {name: text[-_END_OF_STREAM:] for name, text in streams.items() if text}
        text = (
            f"{self.command!r} ended with exit code {self.exit_code}; it wrote last: "
        )
        if len(ends) < 2:
            return text + next(iter(ends.values()), "(nothing)")
        return text + "".join(f"\n[{name}] {end}" for name, end in ends.items())


class TaskSerializationError(_DetailedError):
    """An input, a result or an error cannot travel to or from a worker."""

    task: str
    what: str
    path: str
    cause: str

    def __str__(self) -> str:
        remedy = (
            "create it inside the task, keep it in a Context channel, or use "
            "executor='threads'"
        )
        if self.what == "the error":
            remedy = (
                "an error is rebuilt from its args: give super().__init__() what it "
                "needs"
            )
        return (
            f"{self.what} of task {self.task!r} cannot be pickled at {self.path}: "
            f"{self.cause}; {remedy}"
        )


class StoreError(FlowPregelError):
    """The base of what a durable store refuses."""


class StoreCorruptError(StoreError):
    """A record, or the file, is not what was written."""


class StoreForeignError(StoreError):
    """A store was sealed under another key; nothing of it was decoded."""


class StoreFullError(StoreError):
    """There is no room to commit; what was committed stays readable."""


class StoreVersionError(StoreError):
    """A store was written by another format or engine; it was not touched."""


class StoreReadOnlyError(StoreError):
    """A store cannot be written: a read-only folder, missing rights, or a fork."""


class StoreBusyError(_DetailedError, StoreError):
    """Someone else held a store's write lock for longer than we may wait (seconds)."""

    path: str
    holder: str
    waited: float
    text = (
        "{path} is held by {holder}; waited {waited:g} s: let it go on, "
        "end it, or pass StoreOptions(lock_timeout=...)"
    )


class CommitUnknownError(_DetailedError, StoreError):
    """A commit's connection was cut: it is not known whether the commit has landed."""

    path: str
    reason: str
    text = (
        "{path}: the connection was cut while a commit was under way, and it is not "
        "known whether "
        "that has landed ({reason}): load what is there before you do the same again"
    )


class ValueEncodingError(StoreError):
    """A value cannot be kept; the message names where in the value."""


class ThreadBusyError(_DetailedError, StoreError):
    """Another run is writing this thread: *owner* has the one of *thread_id*,
    *namespace*.
    """

    thread_id: str
    namespace: str
    owner: str

    def __str__(self) -> str:
        where = f"thread {self.thread_id!r}"
        where += f", namespace {self.namespace!r}" if self.namespace else ""
        return (
            f"{where} is being run by {self.owner}; wait for it, use another "
            "thread_id, or pass on_conflict='wait' or 'takeover'"
        )


class LeaseLostError(_DetailedError, StoreError):
    """This run's thread was taken over; its late commit was refused."""

    thread_id: str
    namespace: str
    owner: str
    text = (
        "thread {thread_id!r} was taken over by {owner}; nothing of this superstep "
        "was committed"
    )


@dataclass(frozen=True)
class NodeError:
    """The argument of an error handler: the node that failed, and its error."""

    node: str
    """The name of the node that failed."""
    error: BaseException
    """The error that its last attempt raised."""
