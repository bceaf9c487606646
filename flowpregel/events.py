"""The stream modes, and the types of the items that `stream` yields in each mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict
from uuid import UUID

All: TypeAlias = Literal["*"]
"""The value ``"*"``, which means all nodes in an option that takes node names."""

StreamMode: TypeAlias = Literal[
    "values",
    "updates",
    "recorded",
    "custom",
    "messages",
    "tools",
    "progress",
    "notices",
    "checkpoints",
    "tasks",
    "debug",
]
"""The part of a run that is streamed."""

StreamWriter: TypeAlias = Callable[[Any], None]
"""A function that adds a chunk to the ``custom`` stream, passed to a task's parameter
named ``writer``.
"""

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""The mode that determines when a run's results are on disk: before they are used
(``"sync"``), shortly afterwards (``"async"``), or at the end of the run (``"exit"``).
"""


GraphLifecycleStatus: TypeAlias = Literal[
    "input",
    "pending",
    "done",
    "interrupt_before",
    "interrupt_after",
    "out_of_steps",
]
"""The state of a run in a `GraphInterruptEvent` or a `GraphResumeEvent`. It is
``"pending"`` for a run that stops at a question, or resumes.
"""


@dataclass(frozen=True)
class GraphInterruptEvent:
    """The stop of a run at a question or a breakpoint, which the method
    ``on_interrupt`` of a handler in ``config["callbacks"]`` gets.
    """

    run_id: UUID | None
    """The id of the run, as in the handler's other methods."""
    status: GraphLifecycleStatus
    """``"pending"`` at a question, or the kind of breakpoint."""
    checkpoint_id: str
    """The id of the checkpoint from which the run will resume."""
    checkpoint_ns: tuple[str, ...]
    """The parts of the namespace of the run; empty for an outermost graph."""
    interrupts: tuple[Any, ...]
    """The questions, each an `Interrupt`; none at a breakpoint."""


@dataclass(frozen=True)
class GraphResumeEvent:
    """The resumption of a run, outermost or nested, which the method ``on_resume`` of a
    handler in ``config["callbacks"]`` gets.
    """

    run_id: UUID | None
    """The id of the run, as in the handler's other methods."""
    status: GraphLifecycleStatus
    """Always ``"pending"``."""
    checkpoint_id: str
    """The id of the checkpoint from which the run resumes."""
    checkpoint_ns: tuple[str, ...]
    """The parts of the namespace of the run; empty for an outermost graph."""


class ProgressPayload(TypedDict):
    """A progress report of a task (mode ``progress``)."""

    id: str
    """The id of the task."""
    name: str
    """The name of the node or task."""
    done: float
    """The amount of work that is done."""
    total: float | None
    """The total amount of work, or None if unknown."""
    message: str | None
    """A text for people, or None."""


class TaskPayload(TypedDict, total=False):
    """The start of a task (mode ``tasks``)."""

    id: str
    """The id of the task."""
    name: str
    """The name of the node or task."""
    input: Any
    """The input of the task."""
    triggers: tuple[str, ...]
    """The channels that triggered the task."""
    metadata: dict[str, Any]
    """The metadata of the node."""


class TaskResultPayload(TypedDict):
    """The end of a task (mode ``tasks``)."""

    id: str
    """The id of the task."""
    name: str
    """The name of the node or task."""
    error: BaseException | None
    """The exception of the task, or None."""
    result: dict[str, Any]
    """The values that the task wrote, by channel."""
    interrupts: list[dict[str, Any]]
    """The questions that the task has asked."""
    call: NotRequired[str]
    """The text of the call, with abbreviated arguments, if the call failed."""


class CheckpointTask(TypedDict, total=False):
    """A due, finished or failed task, in the event of a checkpoint."""

    id: str
    """The id of the task."""
    name: str
    """The name of the node or task."""
    error: BaseException | str
    """The exception of a failed task."""
    result: dict[str, Any]
    """The values that a finished task wrote, by channel."""
    interrupts: tuple[dict[str, Any], ...]
    """The questions that the task has asked."""
    state: Any
    """The config that names the state of the graph that the task runs, or None if it
    runs no graph.
    """


class CheckpointPayload(TypedDict):
    """A checkpoint that the run has reached (mode ``checkpoints``)."""

    config: dict[str, Any]
    """The config that names the checkpoint."""
    parent_config: dict[str, Any] | None
    """The config that names the previous checkpoint, or None."""
    values: Any
    """The values of the channels."""
    metadata: dict[str, Any]
    """The metadata of the checkpoint."""
    next: list[str]
    """The names of the nodes that run next."""
    tasks: list[CheckpointTask]
    """The tasks of the next superstep."""


class DebugPayload(TypedDict):
    """An event of mode ``tasks`` or ``checkpoints``, with its superstep and time."""

    step: int
    """The number of the superstep."""
    timestamp: str
    """The time of the event, as an ISO 8601 string."""
    type: Literal["checkpoint", "task", "task_result"]
    """The kind of event."""
    payload: TaskPayload | TaskResultPayload | CheckpointPayload
    """The event."""


class StreamPart(TypedDict):
    """An item of ``stream(version="v2")``."""

    type: StreamMode
    """The stream mode of the item."""
    ns: tuple[str, ...]
    """The namespace of the nested run that the item is from; empty for the outermost
    run.
    """
    data: Any
    """The payload of the event."""


class ValuesStreamPart(StreamPart):
    """An item of mode ``values``."""

    interrupts: tuple[Any, ...]
    """The questions that wait for an answer."""


class UpdatesStreamPart(StreamPart):
    """An item of mode ``updates``."""


class CustomStreamPart(StreamPart):
    """An item of mode ``custom``."""


class MessagesStreamPart(StreamPart):
    """An item of mode ``messages``: a message or a part of a message, with metadata."""


class ToolsStreamPart(StreamPart):
    """An item of mode ``tools``: the start, a part of the output, or the end of a
    tool's call.
    """


class ProgressStreamPart(StreamPart):
    """An item of mode ``progress``."""


class CheckpointStreamPart(StreamPart):
    """An item of mode ``checkpoints``."""


class TasksStreamPart(StreamPart):
    """An item of mode ``tasks``."""


class DebugStreamPart(StreamPart):
    """An item of mode ``debug``."""
