"""The stream modes, and the types of the items that `stream` yields in each mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

All: TypeAlias = Literal["*"]
"""The value ``"*"``, which means all nodes in an option that takes node names."""

StreamMode: TypeAlias = Literal[
    "values",
    "updates",
    "recorded",
    "custom",
    "messages",
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
"""The time at which a run's results are on disk: before they are used (``"sync"``),
shortly afterwards (``"async"``), or at the end of the run (``"exit"``).
"""


class ProgressPayload(TypedDict):
    """A progress report of a task (mode ``progress``)."""

    id: str
    name: str
    done: float
    total: float | None
    """The total amount of work, or None if unknown."""
    message: str | None


class TaskPayload(TypedDict, total=False):
    """The start of a task (mode ``tasks``)."""

    id: str
    name: str
    input: Any
    triggers: tuple[str, ...]
    metadata: dict[str, Any]


class TaskResultPayload(TypedDict):
    """The end of a task (mode ``tasks``)."""

    id: str
    name: str
    error: BaseException | None
    result: dict[str, Any]
    interrupts: list[dict[str, Any]]
    call: NotRequired[str]
    """The text of the call, with abbreviated arguments, if the call failed."""


class CheckpointTask(TypedDict, total=False):
    """A due, finished or failed task, in the event of a checkpoint."""

    id: str
    name: str
    error: BaseException | str
    result: dict[str, Any]
    interrupts: tuple[dict[str, Any], ...]
    state: Any


class CheckpointPayload(TypedDict):
    """A checkpoint that the run has reached (mode ``checkpoints``)."""

    config: dict[str, Any]
    parent_config: dict[str, Any] | None
    values: Any
    metadata: dict[str, Any]
    next: list[str]
    tasks: list[CheckpointTask]


class DebugPayload(TypedDict):
    """An event of mode ``tasks`` or ``checkpoints``, with its superstep and time."""

    step: int
    timestamp: str
    type: Literal["checkpoint", "task", "task_result"]
    payload: TaskPayload | TaskResultPayload | CheckpointPayload


class StreamPart(TypedDict):
    """An item of ``stream(version="v2")``."""

    type: StreamMode
    ns: tuple[str, ...]
    data: Any


class ValuesStreamPart(StreamPart):
    """An item of mode ``values``."""

    interrupts: tuple[Any, ...]


class UpdatesStreamPart(StreamPart):
    """An item of mode ``updates``."""


class CustomStreamPart(StreamPart):
    """An item of mode ``custom``."""


class MessagesStreamPart(StreamPart):
    """An item of mode ``messages``: a message or a part of a message, with metadata."""


class ProgressStreamPart(StreamPart):
    """An item of mode ``progress``."""


class CheckpointStreamPart(StreamPart):
    """An item of mode ``checkpoints``."""


class TasksStreamPart(StreamPart):
    """An item of mode ``tasks``."""


class DebugStreamPart(StreamPart):
    """An item of mode ``debug``."""
