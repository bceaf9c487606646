"""Labels, which describe a value in error messages.

A batch has a label for each value in it, and a run commits thousands of batches. So a
label is a plain tuple, and its text is formatted by `str` only in an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowpregel._core.ids import AttemptRecord, CallRecord
from flowpregel._core.records import CALLED, INTERRUPT, RETURN, TaskWrites
from flowpregel.checkpoint.layout import NamespaceRecord, WritesRecord
from flowpregel.storage.codec import ValueCodec

RESULT, INPUT = "__end__", "__start__"
"""The channels with the result and the input of a workflow."""
METADATA = "the metadata of a checkpoint"
_PUBLIC_NAMES: Mapping[str, str] = {
    INPUT: "input",
    RESULT: "result",
    "__previous__": "result",
    INTERRUPT: "question",
}
"""The names of an entrypoint's channels, and of questions, in messages."""


# ---------------------------------------------------------------- values of a batch


class WriteLabel(NamedTuple):
    """The label of a task's write that is being encoded."""

    task: TaskWrites
    channel: str

    def __str__(self) -> str:
        if self.channel == RETURN:
            for name, value in self.task.writes:
                if name == CALLED and value is not None:
                    return f"the result of {CallRecord(*value).text}"
        if self.channel in _PUBLIC_NAMES:
            return f"the {_PUBLIC_NAMES[self.channel]}"
        return f"the write of task {self.task.task_id!r} to {self.channel!r}"


class ValueLabel(NamedTuple):
    """The label of a channel's value that is being encoded."""

    channel: str
    step: int
    """The superstep of the checkpoint."""

    def __str__(self) -> str:
        if self.channel in _PUBLIC_NAMES:
            return f"the {_PUBLIC_NAMES[self.channel]}"
        return f"the value of channel {self.channel!r} (step {self.step})"


# ---------------------------------------------------------------- stored values


class StoredWriteLabel(NamedTuple):
    """The label of a task's stored write, by the call or the node that made it."""

    codec: ValueCodec
    """The codec that decodes the record of the call."""
    record: WritesRecord
    channel: str

    def __str__(self) -> str:
        data = dict(self.record.writes.values()).get(CALLED)
        fields = None if data is None else self.codec.decode(data, "a call")
        name = f"task {self.record.task_id!r}"
        if fields is not None:
            name = CallRecord(*fields).text
            if self.channel == RETURN:
                return f"the result of {name}"
        elif self.record.ran is not None:
            name = f"node {AttemptRecord(*self.record.ran).name!r}"
        return f"the write of {name} to {self.channel!r}"


class StoredValueLabel(NamedTuple):
    """The label of a channel's stored value."""

    namespace: NamespaceRecord
    channel: str

    def __str__(self) -> str:
        thread = f"thread {self.namespace.thread_id!r}"
        if self.channel == RESULT:
            return f"the result of {thread}"
        if self.channel == INPUT:
            return f"the input of {thread}"
        return f"a value of channel {self.channel!r} of {thread}"
