"""Constants of LangGraph. Of the keys that begin with ``__pregel_``, a config under the
import hook has `CONFIG_KEY_READ` and `CONFIG_KEY_SEND`.
"""

from __future__ import annotations

from typing import Final

from flowpregel.constants import END, START, TAG_HIDDEN, TASKS

__all__ = [
    "CONF",
    "CONFIG_KEY_CHECKPOINTER",
    "CONFIG_KEY_CHECKPOINT_ID",
    "CONFIG_KEY_CHECKPOINT_MAP",
    "CONFIG_KEY_CHECKPOINT_NS",
    "CONFIG_KEY_READ",
    "CONFIG_KEY_RUNTIME",
    "CONFIG_KEY_SEND",
    "CONFIG_KEY_STREAM",
    "CONFIG_KEY_STRICT_RESUME",
    "CONFIG_KEY_TASK_ID",
    "CONFIG_KEY_THREAD_ID",
    "END",
    "ERROR",
    "INTERRUPT",
    "NS_END",
    "NS_SEP",
    "NULL_TASK_ID",
    "PREVIOUS",
    "RESUME",
    "RETURN",
    "START",
    "TAG_HIDDEN",
    "TASKS",
]

CONF: Final = "configurable"
CONFIG_KEY_CHECKPOINTER: Final = "__pregel_checkpointer"
CONFIG_KEY_CHECKPOINT_ID: Final = "checkpoint_id"
CONFIG_KEY_CHECKPOINT_MAP: Final = "checkpoint_map"
CONFIG_KEY_CHECKPOINT_NS: Final = "checkpoint_ns"
CONFIG_KEY_READ: Final = "__pregel_read"
CONFIG_KEY_RUNTIME: Final = "__pregel_runtime"
CONFIG_KEY_SEND: Final = "__pregel_send"
CONFIG_KEY_STREAM: Final = "__pregel_stream"
CONFIG_KEY_STRICT_RESUME: Final = "__pregel_strict_resume"
CONFIG_KEY_TASK_ID: Final = "__pregel_task_id"
CONFIG_KEY_THREAD_ID: Final = "thread_id"
ERROR: Final = "__error__"
INTERRUPT: Final = "__interrupt__"
NS_END: Final = ":"
NS_SEP: Final = "|"
NULL_TASK_ID: Final = "00000000-0000-0000-0000-000000000000"
PREVIOUS: Final = "__previous__"
RESUME: Final = "__resume__"
RETURN: Final = "__return__"
