"""The names of values in error messages, when they are encoded and when decoded."""

from __future__ import annotations

import pytest

from flowpregel._core.ids import AttemptRecord, CallRecord
from flowpregel._core.records import (
    CALLED,
    INTERRUPT,
    RETURN,
    Address,
    Batch,
    Checkpoint,
    Delta,
    TaskWrites,
)
from flowpregel.checkpoint.labels import (
    StoredValueLabel,
    StoredWriteLabel,
    ValueLabel,
    WriteLabel,
)
from flowpregel.checkpoint.layout import NamespaceRecord, WritesRecord
from flowpregel.checkpoint.records import encode_batch
from flowpregel.storage.codec import ValueCodec

CALL = tuple(CallRecord("double", "digest", "code", "double(2)", 0, "caller"))
ATTEMPT = AttemptRecord("node", 0, 0.0, 1, "inline", 0)


def writes_of(*writes: tuple[str, object]) -> TaskWrites:
    """Return the writes of a task as a batch has them."""
    return TaskWrites("checkpoint", "task-1", "path", writes)


def stored_writes(*channels: str, called: object = None) -> WritesRecord:
    """Return the writes of a node's task, or of a call, as a store has them."""
    codec = ValueCodec(None)
    writes = {index: (name, b"") for index, name in enumerate(channels)}
    if called is not None:
        writes[-1] = (CALLED, codec.encode(called, "a call"))
    ran = None if "unknown" in channels else tuple(ATTEMPT)
    return WritesRecord("task-1", "path", writes, ran)


@pytest.mark.parametrize(
    ("writes", "channel", "text"),
    [
        ([(RETURN, 4), (CALLED, CALL)], RETURN, "the result of double(2)"),
        (
            [(RETURN, 4), (CALLED, None)],
            RETURN,
            f"the write of task 'task-1' to {RETURN!r}",
        ),
        ([("__end__", 4)], "__end__", "the result"),
        ([(INTERRUPT, "?")], INTERRUPT, "the question"),
        ([("a", 1)], "a", "the write of task 'task-1' to 'a'"),
    ],
)
def test_a_write_is_named_by_its_call_or_its_channel(
    writes: list[tuple[str, object]], channel: str, text: str
) -> None:
    """Users know the channels of an entrypoint by other names."""
    assert text == str(WriteLabel(writes_of(*writes), channel))


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        ("__start__", "the input"),
        ("__previous__", "the result"),
        ("a", "the value of channel 'a' (step 3)"),
    ],
)
def test_a_value_is_named_by_its_channel_and_step(channel: str, text: str) -> None:
    """Users know the channels of an entrypoint by other names."""
    assert text == str(ValueLabel(channel, 3))


@pytest.mark.parametrize(
    ("record", "channel", "text"),
    [
        (stored_writes(RETURN, called=CALL), RETURN, "the result of double(2)"),
        (stored_writes("a", called=CALL), "a", "the write of double(2) to 'a'"),
        (stored_writes("a"), "a", "the write of node 'node' to 'a'"),
        (stored_writes("unknown"), "b", "the write of task 'task-1' to 'b'"),
    ],
)
def test_a_stored_write_is_named_by_the_call_or_node_that_made_it(
    record: WritesRecord, channel: str, text: str
) -> None:
    """A task is named by its id only if nothing else is known about it."""
    assert text == str(StoredWriteLabel(ValueCodec(None), record, channel))


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        ("__end__", "the result of thread 'a'"),
        ("__start__", "the input of thread 'a'"),
        ("b", "a value of channel 'b' of thread 'a'"),
    ],
)
def test_a_stored_value_is_named_by_its_thread(channel: str, text: str) -> None:
    """A store has many threads, and an error may come from any of them."""
    namespace = NamespaceRecord(b"", "a", "", 0)

    assert text == str(StoredValueLabel(namespace, channel))


def test_each_value_of_a_batch_is_encoded_once_with_its_label() -> None:
    """A value that a task writes is also the value of a channel."""
    value = ["large"]
    checkpoint = Checkpoint(
        id="id",
        parent_id=None,
        at=0,
        step=3,
        source="loop",
        channel_versions={},
        versions_seen={},
        changed=(),
        values={"a": value},
        deltas={"b": Delta(None, (5,))},
        metadata={"run_id": "r"},
    )
    labels: list[str] = []

    def encode(value: object, label: object) -> object:
        labels.append(str(label))
        return value

    encode_batch(
        Batch(Address("t", ""), (writes_of(("a", value)),), checkpoint), encode
    )

    assert [
        "the write of task 'task-1' to 'a'",
        "what was added to channel 'b' (step 3)",
        "the metadata of a checkpoint",
    ] == labels
