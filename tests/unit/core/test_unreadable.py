"""What a run makes of recorded values that cannot be read back."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._core.records import (
    CALLED,
    ERROR,
    RESUME,
    RUN_TASK_ID,
    Address,
    Checkpoint,
    PendingWrite,
    Saved,
)
from flowpregel._core.unreadable import (
    Unreadable,
    check_policy,
    lost_result,
    readable,
    with_input,
)
from flowpregel.errors import RecordedError, ValueEncodingError

LOST = Unreadable(ValueEncodingError("the result of work: its class is gone"))
OTHER = Unreadable(ValueEncodingError("another"))


def saved(*writes: PendingWrite, **values: Any) -> Saved:
    """Return a checkpoint with *values* of channels, and pending *writes*."""
    checkpoint = Checkpoint(
        id="1",
        parent_id=None,
        at=0,
        step=0,
        source="loop",
        channel_versions={},
        versions_seen={},
        changed=(),
        updated_channels=None,
        values=values,
        deltas={},
        metadata={},
        follows=1,
    )
    return Saved(address=Address("t"), checkpoint=checkpoint, writes=writes)


KEPT = (PendingWrite("kept", "a", 1), PendingWrite("kept", "b", 2))


@pytest.mark.parametrize("policy", ["error", "rerun"])
def test_what_can_be_read_stays_as_it_is(policy: Any) -> None:
    before = saved(*KEPT, a=1)

    assert before is readable(before, policy)


def test_a_task_with_a_lost_write_is_run_again_if_that_is_wanted() -> None:
    """All its writes are dropped, and those of no other task."""
    before = saved(*KEPT, PendingWrite("lost", "a", 1), PendingWrite("lost", "b", LOST))

    assert KEPT == readable(before, "rerun").writes
    with pytest.raises(ValueEncodingError, match="its class is gone"):
        readable(before, "error")


@pytest.mark.parametrize("policy", ["error", "rerun"])
def test_a_call_with_a_lost_result_stays_until_its_body_makes_it_again(
    policy: Any,
) -> None:
    """The body may no longer make it."""
    call = (PendingWrite("call", "a", LOST), PendingWrite("call", CALLED, ("work",)))

    assert (*KEPT, *call) == readable(saved(*KEPT, *call), policy).writes


@pytest.mark.parametrize("policy", ["error", "rerun"])
def test_an_error_that_is_lost_leaves_its_text(policy: Any) -> None:
    """Its task is tried again in any case."""
    before = saved(PendingWrite("1", ERROR, LOST), *KEPT)

    (write, *others) = readable(before, policy).writes

    assert [*KEPT] == others
    assert ("1", ERROR) == (write.task_id, write.channel)
    assert isinstance(write.value, RecordedError)
    assert "its class is gone" in str(write.value)


@pytest.mark.parametrize("policy", ["error", "rerun"])
def test_what_a_command_wrote_cannot_be_made_again(policy: Any) -> None:
    """No task has made it."""
    with pytest.raises(ValueEncodingError, match="its class is gone"):
        readable(saved(PendingWrite(RUN_TASK_ID, RESUME, LOST)), policy)


@pytest.mark.parametrize(("policy", "notes"), [("error", 0), ("rerun", 1)])
def test_the_value_of_a_channel_cannot_be_made_again(policy: Any, notes: int) -> None:
    """If it was to be made, a note has what can be."""
    lost = Unreadable(ValueEncodingError("the channel a"))

    with pytest.raises(ValueEncodingError) as caught:
        readable(saved(a=lost, b=1), policy)

    assert lost.error is caught.value
    assert notes == len(getattr(caught.value, "__notes__", []))


def test_the_first_lost_write_is_named() -> None:
    assert LOST.error is lost_result([("a", 1), ("b", LOST), ("c", OTHER)])
    assert lost_result([("a", 1)]) is None


def test_a_lost_result_is_an_error_unless_it_is_made_again() -> None:
    """The note has the option."""
    error = ValueEncodingError("the result")
    check_policy("rerun", error)
    assert not hasattr(error, "__notes__")

    with pytest.raises(ValueEncodingError):
        check_policy("error", error)

    assert ["pass on_unreadable='rerun' to compute it again"] == error.__notes__


@pytest.mark.parametrize("channel", ["a", ("a", "b")])
def test_an_input_that_can_be_read_is_not_replaced(channel: Any) -> None:
    """Nor one of several channels."""
    before = saved(a=1, b=LOST)

    assert before is with_input(before, channel, 5, "rerun")


def test_a_given_input_takes_the_place_of_a_lost_one() -> None:
    """If that is wanted, and not by a resume that gives none."""
    before = saved(a=LOST, b=1)

    after = with_input(before, "a", 5, "rerun")

    assert {"a": 5, "b": 1} == after.checkpoint.values
    for value, policy in ((None, "rerun"), (5, "error")):
        with pytest.raises(ValueEncodingError, match="its class is gone"):
            with_input(before, "a", value, policy)  # type: ignore[arg-type]
