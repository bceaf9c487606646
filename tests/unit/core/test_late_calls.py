"""The calls of a body that has failed, fed by hand: how long the run waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._core.effects import Call, Cancel, Ended, Resolve, Wait, Wakeup
from flowpregel._core.late_calls import SHOWN_CALLS
from flowpregel._core.program import Options
from flowpregel._core.records import Arguments, Raised, Returned, Task, Withdrawn
from tests.crash_driver import CrashDriver
from tests.unit.core.programs import fed, node, program

SECOND = 1_000_000_000


class FailingBody:
    """A run whose body makes some calls and fails, all at second 0; the grace is 3
    seconds.
    """

    def __init__(self, count: int, **options: Any) -> None:
        driver = CrashDriver(
            program(node("body")), None, Options(stop_grace=3, **options)
        )
        self.steps, (_, self.body) = fed(driver, 1)
        made: list[Any] = [
            Call(self.body.id, 1, node("call"), Arguments((n,), {}))
            for n in range(count)
        ]
        self.calls: list[Task] = self.steps.send(Wakeup(made, 2, 0)).tasks
        assert isinstance(self.steps.send(None), Wait)
        failed = Ended(self.body.id, 1, Raised(KeyError("body")))
        self.wait: Any = self.after(0, failed)

    def after(self, seconds: float, *events: Any) -> Any:
        """Wake the run up at *seconds*; return the effect that follows."""
        return self.steps.send(Wakeup([*events], 3, int(seconds * SECOND)))


def test_calls_of_a_failed_body_have_the_grace_from_the_end_of_the_last_one() -> None:
    """So a long row of short calls is made to its end, and one that blocks is not
    waited for.
    """
    run = FailingBody(3)
    assert 3 * SECOND == run.wait.deadline

    for at, call in ((2.5, run.calls[0]), (5, run.calls[1])):
        resolve = run.after(at, Ended(call.id, 1, Returned(())))
        assert isinstance(resolve, Resolve)
        run.wait = run.steps.send(None)
        assert int((at + 3) * SECOND) == run.wait.deadline

    assert Cancel(run.calls[2].id, kill=True) == run.after(8)


def test_a_call_that_ignores_its_stop_is_left_behind_after_a_second() -> None:
    """It runs on an OS thread; the failure of the body says which one it was."""
    run = FailingBody(1)
    (call,) = run.calls

    assert Cancel(call.id, kill=True) == run.after(3)
    assert 4 * SECOND == run.steps.send(None).deadline
    assert Cancel(call.id, kill=True, leave=True) == run.after(4)
    assert isinstance(run.steps.send(None), Wait)
    notice = run.after(4, Ended(call.id, 1, Withdrawn(goes_on=True)))
    assert "call(0) cannot be stopped where it runs" in notice.payload
    assert isinstance(run.steps.send(None), Resolve)
    with pytest.raises(KeyError) as failed:
        run.steps.send(None)
    assert 1 == sum(
        "call(0) had not ended 3 seconds later" in each
        for each in failed.value.__notes__
    )


def test_a_failure_names_the_calls_that_were_stopped_after_it() -> None:
    """Also if they end at once then."""
    run = FailingBody(1)
    assert isinstance(run.after(3), Cancel)
    assert isinstance(run.steps.send(None), Wait)

    assert isinstance(run.after(3, Ended(run.calls[0].id, 1, Withdrawn())), Resolve)

    with pytest.raises(KeyError) as failed:
        run.steps.send(None)
    assert ["call(0) had not ended 3 seconds later"] == [
        note.partition(" (")[0] for note in failed.value.__notes__ if "later" in note
    ]


@pytest.mark.parametrize(
    ("count", "calls", "end"),
    [
        (1, "call(0)", "it was stopped"),
        (
            2,
            "call(0), call(1)",
            "they were stopped",
        ),
        (
            SHOWN_CALLS,
            ", ".join(f"call({n})" for n in range(SHOWN_CALLS)),
            "they were stopped",
        ),
        (
            SHOWN_CALLS + 1,
            ", ".join(f"call({n})" for n in range(SHOWN_CALLS)) + ", ...",
            "they were stopped",
        ),
    ],
    ids=["one", "two", "all", "more"],
)
def test_the_note_of_a_failure_counts_the_calls_that_were_stopped(
    count: int, calls: str, end: str
) -> None:
    """The first few are named."""
    run = FailingBody(count)
    assert isinstance(run.after(3), Cancel)
    for call in run.calls[1:]:
        assert Cancel(call.id, kill=True) == run.steps.send(None)
    assert isinstance(run.steps.send(None), Wait)

    ended = [Ended(call.id, 1, Withdrawn()) for call in run.calls]
    resolve = run.after(3, *ended)
    assert isinstance(resolve, Resolve)
    assert len(run.calls) == len(resolve.outcomes)
    with pytest.raises(KeyError) as failed:
        run.steps.send(None)

    assert [f"{calls} had not ended 3 seconds later (stop_grace=3), so {end}"] == [
        note.partition(";")[0] for note in failed.value.__notes__ if "later" in note
    ]


def test_waiting_calls_of_a_failed_body_are_withdrawn_at_once_if_it_fails_fast() -> (
    None
):
    """What runs has the grace in both cases."""
    run = FailingBody(1, fail_fast=True)
    assert Cancel(run.calls[0].id, kill=False) == run.wait

    assert 3 * SECOND == run.steps.send(None).deadline


def test_a_body_that_failed_and_whose_calls_have_all_ended_stops_nothing() -> None:
    """Another body goes on, beside which it is forgotten."""
    driver = CrashDriver(
        program(node("body"), node("other")),
        None,
        Options(stop_grace=3, step_timeout=99),
    )
    steps, (_, body, _) = fed(driver, 1)
    made = Call(body.id, 1, node("call"), Arguments((1,), {}))
    (call,) = steps.send(Wakeup([made], 2, 0)).tasks
    steps.send(None)
    assert (
        3 * SECOND
        == steps.send(Wakeup([Ended(body.id, 1, Raised(KeyError()))], 3, 0)).deadline
    )

    effect = steps.send(Wakeup([Ended(call.id, 1, Returned(()))], 4, SECOND))
    while not isinstance(effect, Wait):
        effect = steps.send(None)

    assert 99 * SECOND == effect.deadline
