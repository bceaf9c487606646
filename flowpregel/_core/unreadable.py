"""Recorded values that cannot be read back, because a class in them has moved or is
gone.

A saver that reads results one by one replaces such a value by an `Unreadable`, so that
the run can still use all other values. The error is raised only if the value is needed.
With ``on_unreadable="rerun"``, the value is then computed again instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from flowpregel._core.records import (
    CALLED,
    ERROR,
    RUN_TASK_ID,
    PendingWrite,
    Saved,
    Write,
)
from flowpregel.errors import RecordedError, ValueEncodingError

UnreadablePolicy: TypeAlias = Literal["error", "rerun"]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that was recorded and cannot be read back."""

    error: ValueEncodingError
    """The error to raise if the value is needed, which names the value and the
    reason.
    """


def error_in(values: Iterable[Any]) -> ValueEncodingError | None:
    """Return the error of the first of *values* that cannot be read back, or None."""
    return next(
        (value.error for value in values if isinstance(value, Unreadable)), None
    )


def lost_result(writes: Iterable[Write]) -> ValueEncodingError | None:
    """Return the error of the unreadable result of a call, or None if the result can be
    read.
    """
    return error_in(value for _, value in writes)


def check_policy(policy: UnreadablePolicy, error: ValueEncodingError) -> None:
    """Raise *error*, unless *policy* lets a task compute an unreadable value again."""
    if policy == "error":
        error.add_note("pass on_unreadable='rerun' to compute it again")
        raise error


def with_input(
    saved: Saved,
    channel: Any,
    value: Any,
    policy: UnreadablePolicy,
) -> Saved:
    """Return *saved* with an unreadable input replaced by *value*.

    Args:
        saved: The checkpoint with the recorded input.
        channel: The name of the input's channel, or None if the flow has no such
            channel.
        value: The new input, or None.
        policy: "rerun" if *value* may replace the recorded input.

    Raises:
        ValueEncodingError: The recorded input is unreadable, and remains so.
    """
    if not isinstance(channel, str):
        return saved
    values = saved.checkpoint.values
    recorded = values.get(channel)
    if not isinstance(recorded, Unreadable):
        return saved
    if value is None or policy == "error":
        recorded.error.add_note(
            "to replace it, pass an input and on_unreadable='rerun'"
        )
        raise recorded.error
    replaced = {**values, channel: value}
    checkpoint = replace(saved.checkpoint, values=replaced)
    return replace(saved, checkpoint=checkpoint)


def _refuse_lost_channels(saved: Saved, policy: UnreadablePolicy) -> None:
    """Raise an error if the value of a channel cannot be read back.

    No task computes the value of a channel again, so the policy does not apply.
    """
    error = error_in(saved.checkpoint.values.values())
    if error is None:
        return
    if policy == "rerun":
        error.add_note(
            "on_unreadable='rerun' runs calls and nodes again, but cannot restore "
            "the value of a channel; to replace the recorded input, pass another one "
            "to run(..., id=)"
        )
    raise error


def readable(saved: Saved, policy: UnreadablePolicy) -> Saved:
    """Return *saved* without the tasks that must run again because their writes are
    unreadable.

    Calls with unreadable results are not removed: the policy is applied to such a call
    when its body makes it again.

    Raises:
        ValueEncodingError: An unreadable value cannot, or must not, be computed again.
    """
    _refuse_lost_channels(saved, policy)
    if error_in(write.value for write in saved.writes) is None:
        return saved
    return _without_lost_tasks(saved, policy)


def _without_lost_tasks(saved: Saved, policy: UnreadablePolicy) -> Saved:
    """Return *saved* without the tasks that have an unreadable write.

    A stored error that cannot be read is replaced by another error, because its task is
    tried again in any case.
    """
    calls = {write.task_id for write in saved.writes if write.channel == CALLED}
    lost: set[str] = set()
    writes: list[PendingWrite] = []
    for write in saved.writes:
        if not isinstance(write.value, Unreadable) or write.task_id in calls:
            writes.append(write)
            continue
        if write.channel == ERROR:
            error = RecordedError("an error", str(write.value.error))
            writes.append(replace(write, value=error))
            continue
        if policy == "error" or write.task_id == RUN_TASK_ID:
            raise write.value.error
        lost.add(write.task_id)
    return replace(
        saved, writes=tuple(write for write in writes if write.task_id not in lost)
    )
