"""All errors that flowpregel raises.

::

    BaseException
    ├── GraphBubbleUp                 control flow: not an `Exception`
    │   ├── GraphInterrupt            a task asks a person something
    │   ├── ParentCommand             a node commands the graph around it
    │   └── TaskCancelled             the run no longer needs this task
    │       └── RunStopped            the run was asked to end, and ended in time
    └── Exception
        ├── RunNotice (UserWarning)       a warning for the user of a run
        └── FlowPregelError
            ├── ConfigurationError (ValueError ...) an object or argument cannot work
            │   └── InvalidNamespaceError           a namespace has an invalid label
            ├── GraphRecursionError (RecursionError)
            ├── GraphDrained                        the run was asked to stop
            ├── InvalidUpdateError                  a channel cannot take a write
            ├── EmptyChannelError                   a channel has no value
            ├── EmptyInputError                     a run was started without input
            ├── ExecutorUnavailableError            an executor cannot do what is asked
            ├── ResourcesError                      a task requests too much
            ├── ReplayMismatchError                 a body is not deterministic
            ├── CodeChangedError                    a result is from different code
            ├── UnmatchedCallsError                 no recorded call was made again
            ├── InputMismatchError                  a run is resumed with other input
            ├── FlowMismatchError                   an id belongs to another workflow
            ├── UnansweredError                     a run waits for answers
            ├── RunDiedError                        the process ended before its run
            ├── UnknownInterruptError               an answer fits no pending question
            ├── task failures
            │   ├── NodeTimeoutError, NodeCancelledError, TaskExitError
            │   ├── CommandFailedError
            │   ├── RecordedError, TaskSerializationError
            │   └── WorkerDiedError, MachineLostError
            └── StoreError                          a store cannot do what is asked
                ├── StoreCorruptError, StoreForeignError, StoreVersionError
                ├── StoreFullError, StoreReadOnlyError, StoreBusyError
                ├── CommitUnknownError                  a commit's outcome is unknown
                ├── ValueEncodingError
                ├── StoredValueError                    a file of `stored` is gone
                └── ThreadBusyError, LeaseLostError

An error's ``args`` are the constructor's arguments, so every error can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

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
    "MachineLostError",
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
    "StoreBusyError",
    "StoreCorruptError",
    "StoreError",
    "StoreForeignError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "StoredValueError",
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
        # Pickles must refer to this public module, so it is set as the module of each
        # error.
        _error.__module__ = __name__


class GraphBubbleUp(BaseException):
    """Control flow that leaves a task. It is not a failure and is never retried."""


@dataclass(eq=False, repr=False)
class GraphInterrupt(GraphBubbleUp):
    """A task stopped to ask questions. *interrupts* are the questions that have no
    answers yet.
    """

    interrupts: Sequence[Any] = ()


@dataclass(eq=False, repr=False)
class ParentCommand(GraphBubbleUp):
    """A node returned a `Command` for the outer graph."""

    command: Any


class TaskCancelled(GraphBubbleUp):
    """The run was stopped, or no longer needs the result of this task."""

    def __init__(self, reason: str = "the run was stopped") -> None:
        super().__init__(reason)
        self.reason = reason


class RunStopped(TaskCancelled):
    """A run was asked to end (``stop_after``, SIGTERM), and ended in time.

    Run it again to resume the run.
    """


class ConfigurationError(
    FlowPregelError, ValueError, TypeError, KeyError, NotImplementedError
):
    """An object or argument cannot work; the message names the object or argument.

    The base classes are the errors that LangGraph raises in such cases, for programs
    that catch them.
    """

    # The `__str__` of Exception is used, because that of KeyError would show the repr
    # of the message.
    def __str__(self) -> str:
        return Exception.__str__(self)


class InvalidNamespaceError(ConfigurationError):
    """A namespace of a long-term store has an invalid label, or no label."""


class GraphRecursionError(_DetailedError, RecursionError):
    """A run used up its supersteps; the state after the last superstep is stored."""

    limit: int
    text = (
        "Recursion limit of {limit} reached: the run is not finished after {limit} "
        "supersteps; check that the cycle ends, or raise recursion_limit "
        "(GRAPH_RECURSION_LIMIT)"
    )


class GraphDrained(_DetailedError):
    """A run stopped at the end of a superstep because `RunControl.request_drain` asked
    it to.
    """

    reason: str = "shutdown"
    text = (
        "Graph drained: {reason}; invoke(None) with the same thread_id resumes the run"
    )


class InvalidUpdateError(FlowPregelError):
    """A channel, or the run, cannot accept a write."""


class EmptyChannelError(FlowPregelError):
    """A channel without a value was read."""


class EmptyInputError(FlowPregelError):
    """A run was started without input."""


class ExecutorUnavailableError(FlowPregelError):
    """An executor does not support a requested feature."""


INVALID_RESUME = "_flowpregel_invalid_resume"
"""The name of the attribute that contains the question's id, in an error that was
raised because an answer did not fit.
"""


def is_invalid_resume(error: BaseException) -> bool:
    """Return True if *error* was raised because an answer did not fit the question's
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
    """The reason: ``"not_pending"`` if the id belongs to no question or to an answered
    question, ``"empty_map"`` if there was no answer, ``"ambiguous"`` if one value was
    given for several questions.
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
        self.timeout: float = self.limit
        self.run_timeout: float | None = self.limit if self.kind == "run" else None
        self.idle_timeout: float | None = self.limit if self.kind == "idle" else None


class NodeCancelledError(_DetailedError):
    """A task's own code raised a cancellation (such as `asyncio.CancelledError`),
    although the task was not cancelled.
    """

    node: str
    text = "Node {node!r} was cancelled from within"


class TaskExitError(_DetailedError):
    """A task's code tried to end the program (``sys.exit``, ``KeyboardInterrupt``)."""

    node: str
    cause: str
    """The exception with which the task's code tried to end the process."""
    text = (
        "Node {node!r} tried to end the program: {cause}; make it return, or raise "
        "another exception"
    )


class RecordedError(_DetailedError):
    """The replacement, in a record, for an exception that cannot be stored.

    When the failure happened, the original exception was raised.
    """

    kind: str
    """The exception's class."""
    message: str
    """The message of the exception."""
    text = "{kind}: {message} (the exception itself could not be kept)"


OUT_OF_MEMORY: Final = (
    "the kernel's OOM killer killed it (SIGKILL): no memory was left for it"
)
"""The cause of a `WorkerDiedError` if the kernel killed the worker for its memory."""


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
    """The text of the call with abbreviated arguments, if the task is a call."""

    @property
    def is_out_of_memory(self) -> bool:
        """True if the kernel's OOM killer killed the worker."""
        return self.cause == OUT_OF_MEMORY

    def __str__(self) -> str:
        work = self.call or f"task {self.task!r}"
        text = f"the worker (pid {self.pid}) that ran {work} died: {self.cause}"
        return f"{text}\n{self.report}" if self.report else text


class MachineLostError(_DetailedError):
    """The machine of a cluster that ran a task was lost before the task ended."""

    task: str
    machine: str
    """The host name of the machine, if it is known, and its address."""
    cause: str
    """The sign of the loss: silence, the machine's absence from the list of Dask or
    Ray, or an error from one of them.
    """
    losses: int = 1
    """The number of machines that were lost with the task. A run repeats a task that
    was lost fewer than three times, whatever its retry policy.
    """
    call: str = ""
    """The text of the call with abbreviated arguments, if the task is a call."""

    def __str__(self) -> str:
        work = self.call or f"task {self.task!r}"
        times = "once" if self.losses == 1 else f"{self.losses} times"
        return (
            f"{work} was lost with its machine ({times} by now; the last was "
            f"{self.machine}): {self.cause}"
        )


_END_OF_STREAM = 1_000
"""The maximum number of characters of each stream in the message of a failed command.
"""


class CommandFailedError(_DetailedError):
    """A command that `flowpregel.shell` ran failed."""

    command: str
    exit_code: int
    output: str
    """The end of the command's stdout."""
    errors: str = ""
    """The end of the command's stderr."""

    def __str__(self) -> str:
        streams = {"stderr": self.errors.strip(), "stdout": self.output.strip()}
        ends = {name: text[-_END_OF_STREAM:] for name, text in streams.items() if text}
        text = (
            f"{self.command!r} ended with exit code {self.exit_code}; its last output: "
        )
        if len(ends) < 2:
            return text + next(iter(ends.values()), "(nothing)")
        return text + "".join(f"\n[{name}] {end}" for name, end in ends.items())


class TaskSerializationError(_DetailedError):
    """An input, a result or an error cannot be sent to or from a worker."""

    task: str
    part: str
    """The part that cannot be sent (the input, the result or the error), as the message
    names it.
    """
    path: str
    """The path to the value that cannot be pickled."""
    cause: str

    def __str__(self) -> str:
        remedy = (
            "create it inside the task, keep it in a Context channel, or use "
            "executor='threads' (for a whole program: FLOWPREGEL_EXECUTOR=threads)"
        )
        if self.part == "the error":
            remedy = (
                "an exception is rebuilt from its args: pass all arguments to "
                "super().__init__()"
            )
        return (
            f"{self.part} of task {self.task!r} cannot be pickled at {self.path}: "
            f"{self.cause}; {remedy}"
        )


class StoreError(FlowPregelError):
    """The base class for errors of durable stores."""


class StoreCorruptError(StoreError):
    """A record or the file is damaged: it differs from what was written."""


class StoreForeignError(StoreError):
    """A store was sealed (signed or encrypted) with another key. No data of the store
    was decoded.
    """


class StoreFullError(StoreError):
    """There is no space for a commit; committed data stays readable."""


class StoreVersionError(StoreError):
    """A store has a different format version or storage engine; it was not changed."""


class StoreReadOnlyError(StoreError):
    """A store cannot be written: it or its folder is read-only, rights are missing, or
    this process was forked after the store was opened.
    """


class StoreBusyError(_DetailedError, StoreError):
    """Another process held a store's write lock longer than the timeout (seconds)."""

    path: str
    holder: str
    waited: float
    text = (
        "{path} is in use by {holder} (waited {waited:g} s): wait for it to finish, "
        "end it, or pass a longer StoreOptions(lock_timeout=...)"
    )


class CommitUnknownError(_DetailedError, StoreError):
    """The connection was lost during a commit, so it is not known whether the data was
    committed.
    """

    path: str
    reason: str
    text = (
        "{path}: the connection was lost during a commit, which may or may not have "
        "been stored ({reason}): load the current state before you try again"
    )


class ValueEncodingError(StoreError):
    """A value cannot be stored; the message names the part of the value."""


class StoredValueError(_DetailedError, StoreError):
    """The file of a value that `flowpregel.stored` wrote is missing, or was changed."""

    location: str
    """The path of the file, or its URL without the user name and the password."""
    digest: str
    """The SHA-256 of the content that was written."""
    problem: str
    """The end of the message: what is wrong with the file, and what to do."""
    text = "the stored value {location} {problem}"


class ThreadBusyError(_DetailedError, StoreError):
    """Another run, of the process *owner*, is writing to this thread."""

    thread_id: str
    namespace: str
    owner: str

    @property
    def summary(self) -> str:
        """The message of the error, without the advice on what to do."""
        where = f"thread {self.thread_id!r}"
        where += f", namespace {self.namespace!r}" if self.namespace else ""
        return f"{where} is being run by {self.owner}"

    def __str__(self) -> str:
        return (
            f"{self.summary}; wait for it, use another thread_id, or pass "
            "on_conflict='wait' or 'takeover'"
        )


class LeaseLostError(_DetailedError, StoreError):
    """Another run took over this run's thread, and a late commit was refused."""

    thread_id: str
    namespace: str
    owner: str
    text = (
        "thread {thread_id!r} was taken over by {owner}; nothing of this superstep "
        "was committed"
    )


@dataclass(frozen=True)
class NodeError:
    """The argument of an error handler: the node that failed, and its error.

    Example:
        >>> from typing import TypedDict
        >>> from flowpregel.graph import START, StateGraph
        >>> class State(TypedDict):
        ...     text: str
        >>> def load(state: State) -> dict:
        ...     raise ValueError("no data")
        >>> def handle(state: State, error: NodeError) -> dict:
        ...     return {"text": f"{error.node}: {error.error}"}
        >>> graph = StateGraph(State).add_node(load, error_handler=handle)
        >>> app = graph.add_edge(START, "load").compile(executor="inline")
        >>> app.invoke({"text": ""})
        {'text': 'load: no data'}
    """

    node: str
    """The name of the node that failed."""
    error: BaseException
    """The exception of the node's last attempt."""
