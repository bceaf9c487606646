"""The types that users of graphs and workflows name; they are defined elsewhere."""

from flowpregel._core.commands import Command, Interrupt, Send
from flowpregel._core.records import Task as PregelExecutableTask
from flowpregel.channels import Overwrite
from flowpregel.context import interrupt
from flowpregel.events import (
    All,
    CheckpointPayload,
    CheckpointStreamPart,
    CheckpointTask,
    CustomStreamPart,
    DebugPayload,
    DebugStreamPart,
    Durability,
    GraphInterruptEvent,
    GraphLifecycleStatus,
    GraphResumeEvent,
    MessagesStreamPart,
    ProgressPayload,
    ProgressStreamPart,
    StreamMode,
    StreamPart,
    StreamWriter,
    TaskPayload,
    TaskResultPayload,
    TasksStreamPart,
    ToolsStreamPart,
    UpdatesStreamPart,
    ValuesStreamPart,
)
from flowpregel.graph.compile import Checkpointer
from flowpregel.policies import (
    CachePolicy,
    RetryPolicy,
    TimeoutPolicy,
    TracePolicy,
    default_retry_on,
    omit_payload,
)
from flowpregel.pregel.edits import StateUpdate
from flowpregel.pregel.naming import as_checkpointer as ensure_valid_checkpointer
from flowpregel.pregel.snapshot import GraphOutput, PregelTask, StateSnapshot

__all__ = [
    "All",
    "CachePolicy",
    "CheckpointPayload",
    "CheckpointStreamPart",
    "CheckpointTask",
    "Checkpointer",
    "Command",
    "CustomStreamPart",
    "DebugPayload",
    "DebugStreamPart",
    "Durability",
    "GraphInterruptEvent",
    "GraphLifecycleStatus",
    "GraphOutput",
    "GraphResumeEvent",
    "Interrupt",
    "MessagesStreamPart",
    "Overwrite",
    "PregelExecutableTask",
    "PregelTask",
    "ProgressPayload",
    "ProgressStreamPart",
    "RetryPolicy",
    "Send",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "StreamPart",
    "StreamWriter",
    "TaskPayload",
    "TaskResultPayload",
    "TasksStreamPart",
    "TimeoutPolicy",
    "ToolsStreamPart",
    "TracePolicy",
    "UpdatesStreamPart",
    "ValuesStreamPart",
    "default_retry_on",
    "ensure_valid_checkpointer",
    "interrupt",
    "omit_payload",
]
