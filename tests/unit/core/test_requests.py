"""A superstep, fed by hand: what running tasks ask of the run itself, and stops that
give time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowpregel._core.effects import (
    Call,
    Cancel,
    CancelCall,
    Commit,
    Ended,
    Resolve,
    SaveState,
    Stopped,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.program import Options
from flowpregel._core.records import (
    ERROR,
    SAVED,
    Address,
    Raised,
    Returned,
    Withdrawn,
)
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import RunStopped, TaskCancelled
from tests.crash_driver import CrashDriver
from tests.unit.core.programs import call_of, fed, node, program


def cancel_of(made: Call) -> CancelCall:
    """Return the request to give up a call."""
    return CancelCall(made.task_id, made.attempt, made.reply)


def called(reply: str, *others: Any) -> tuple[Any, ...]:
    """Return the steps of a body that has made a call, the body, the call, and its
    task.
    """
    steps, (_, body, *_) = fed(CrashDriver(program(node("body"), *others), None), 1)
    made = replace(call_of(body), reply=reply)
    submit = steps.send(Wakeup([made], 2, 0))
    assert isinstance(submit, Submit)
    assert isinstance(steps.send(None), Wait)
    return steps, body, made, submit.tasks[0]


def test_what_is_saved_is_kept_before_it_is_answered() -> None:
    """And the next attempt of the task has it."""
    saver = InMemorySaver()
    options = Options(address=Address("1"))
    steps, (_, task) = fed(CrashDriver(program(node("n")), saver, options), 1)
    save = SaveState(task.id, 1, "half", reply="here")

    commit = steps.send(Wakeup([save], 2, 0))

    assert isinstance(commit, Commit)
    assert [((SAVED, "half"),)] == [each.writes for each in commit.batch.writes]
    assert Resolve([(save, Returned(()))]) == steps.send(None)
    assert "half" == task.attempt.saved
    steps.close()


def test_what_was_saved_is_dropped_with_the_result() -> None:
    """A run of many tasks does not collect it."""
    steps, body, _, task = called("here")
    save = SaveState(task.id, 1, "half", reply="there")
    run = steps.gi_frame.f_locals["run"]

    def kept() -> Any:
        return run.replay.pending.get(task.id)

    assert Resolve([(save, Returned(()))]) == steps.send(Wakeup([save], 3, 0))
    assert isinstance(steps.send(None), Wait)
    assert [(SAVED, "half")] == kept()
    steps.send(Wakeup([Ended(task.id, 1, Returned([("__return__", 1)]))], 4, 0))
    assert [] == kept()
    assert body.attempt.number == 1
    steps.close()


def test_a_call_that_is_given_up_is_stopped() -> None:
    """However it ends then, it is withdrawn, and not tried again."""
    steps, _, made, task = called("here")

    assert Cancel(task.id, True) == steps.send(Wakeup([cancel_of(made)], 3, 0))
    assert isinstance(steps.send(None), Wait)
    late = Ended(task.id, 1, Raised(OSError("too late")))
    assert Resolve([(made, Withdrawn())]) == steps.send(Wakeup([late], 4, 0))
    steps.close()


def test_a_call_that_has_ended_cannot_be_given_up() -> None:
    """The news of its end had not reached the body."""
    steps, _, made, task = called("here")
    steps.send(Wakeup([Ended(task.id, 1, Returned([("__return__", 1)]))], 3, 0))
    assert isinstance(steps.send(None), Wait)

    assert isinstance(steps.send(Wakeup([cancel_of(made)], 4, 0)), Wait)
    steps.close()


def test_a_run_that_is_told_lets_go_on_what_runs() -> None:
    """It withdraws what waits, and ends as one that was told."""
    steps, (_, task) = fed(CrashDriver(program(node("n")), None), 1)

    assert Cancel(task.id, False) == steps.send(
        Wakeup([Stopped("time", kill=False)], 2, 0)
    )
    assert isinstance(steps.send(None), Wait)
    assert Cancel(task.id, True) == steps.send(Wakeup([Stopped("time")], 3, 0))
    assert isinstance(steps.send(None), Wait)
    with pytest.raises(RunStopped, match="time"):
        steps.send(Wakeup([Ended(task.id, 1, Withdrawn())], 4, 0))


def test_a_run_whose_tasks_all_return_in_time_ends_well() -> None:
    """There is no more to do."""
    steps, (_, task) = fed(CrashDriver(program(node("n")), None), 1)
    steps.send(Wakeup([Stopped("time", kill=False)], 2, 0))
    steps.send(None)

    with pytest.raises(StopIteration):
        steps.send(Wakeup([Ended(task.id, 1, Returned([("out", 1)]))], 3, 0))


def test_what_is_recorded_of_a_given_up_call_is_no_failure() -> None:
    """Its arguments are not kept for a debugger."""
    saver = InMemorySaver()
    options = Options(address=Address("1"), keeps_arguments=True)
    steps, (_, body) = fed(CrashDriver(program(node("body")), saver, options), 1)
    made = replace(call_of(body), reply="here")
    steps.send(Wakeup([made, cancel_of(made)], 2, 0))
    effects = [steps.send(None) for _ in range(2)]

    (commit,) = (each for each in effects if isinstance(each, Commit))
    (kept,) = commit.batch.writes
    assert ERROR == kept.writes[0][0]
    assert isinstance(kept.writes[0][1], TaskCancelled)
    assert kept.failed is None
    steps.close()
