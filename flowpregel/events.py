"""The types of what `stream` yields: the modes, and the payload of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

All: TypeAlias = Literal["*"]
"""Every node, where node names are asked for."""

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
"""Gives the ``custom`` stream a chunk; a task asks for one with a parameter
``writer``.
"""

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""The time at which a run's results are on disk; `flowpregel.pregel` has the promise of
each.
"""


class ProgressPayload(TypedDict):
    """A task reports its progress (mode ``progress``)."""

    id: str
    name: str
    done: float
    total: float | None
    """None: the task does not know."""
    message: str | None


class TaskPayload(TypedDict, total=False):
    """A task starts (mode ``tasks``)."""

    id: str
    name: str
    input: Any
    triggers: tuple[str, ...]
    metadata: dict[str, Any]


class TaskResultPayload(TypedDict):
    """A task ended (mode ``tasks``)."""

    id: str
    name: str
    error: BaseException | None
    result: dict[str, Any]
    interrupts: list[dict[str, Any]]
    call: NotRequired[str]
    """The call with short arguments, if it failed."""


class CheckpointTask(TypedDict, total=False):
    """A task that a checkpoint's event lists: due, done or failed."""

    id: str
    name: str
    error: BaseException | str
    result: dict[str, Any]
    interrupts: tuple[dict[str, Any], ...]
    state: Any


class CheckpointPayload(TypedDict):
    """A checkpoint was reached (mode ``checkpoints``)."""

    config: dict[str, Any]
    parent_config: dict[str, Any] | None
    values: Any
    metadata: dict[str, Any]
    next: list[str]
    tasks: list[CheckpointTask]


class DebugPayload(TypedDict):
    """An event of mode ``tasks`` or ``checkpoints``, with when it happened."""

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
    """An item of mode ``messages``: a message, or a part of one, and its metadata."""


class ProgressStreamPart(StreamPart):
    """An item of mode ``progress``."""


class CheckpointStreamPart(StreamPart):
    """An item of mode ``checkpoints``."""


class TasksStreamPart(StreamPart):
    """An item of mode ``tasks``."""


class DebugStreamPart(StreamPart):
    """An item of mode ``debug``."""
