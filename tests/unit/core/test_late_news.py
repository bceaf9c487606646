"""A superstep, fed by hand: news that comes late, and several ends that come
together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel._core.effects import (
    Cancel,
    Emitted,
    Ended,
    Report,
    Resolve,
    Stopped,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.program import Nested, Options
from flowpregel._core.records import (
    ERROR,
    ERROR_SOURCE,
    Address,
    Batch,
    Escaped,
    Raised,
    Returned,
    TaskWrites,
    Withdrawn,
)
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import (
    GraphDrained,
    ParentCommand,
    TaskCancelled,
    WorkerDiedError,
)
from flowpregel.policies import RetryPolicy
from tests.crash_driver import CrashDriver, Schedule
from tests.unit.core.programs import call_of, ends, fed, node, program, submitted


def tasks_of(driver: CrashDriver) -> list[str]:
    """Return the names of the tasks that the newest run started."""
    return [task.name for task in submitted(driver)]


# -------------------------------------------------------------------- late


def test_late_news_at_the_start_of_a_timed_superstep_does_not_stop_it() -> None:
    """It is of a superstep that is over."""
    steps = CrashDriver(program(node("n")), None, Options(step_timeout=3)).start(1)
    assert Wait(0) == next(steps)

    assert isinstance(steps.send(Wakeup([Ended("old", 1, Withdrawn())], 2, 0)), Submit)


@pytest.mark.parametrize("payload", ["chunk", Report(1, 2)], ids=["chunk", "report"])
def test_what_a_task_says_is_shown_until_it_has_ended(payload: Any) -> None:
    """What comes later belongs to nobody."""
    modes = frozenset({"custom", "progress"})
    driver = CrashDriver(program(node("n")), None, Options(modes=modes))
    steps, (_, task) = fed(driver, 1)

    shown = steps.send(
        Wakeup([Emitted(task.id, payload), Emitted("old", payload)], 2, 0)
    )

    assert ("custom" if payload == "chunk" else "progress") == shown.mode
    assert isinstance(steps.send(None), Wait)


def test_how_far_a_task_is_is_no_chunk_of_the_custom_stream() -> None:
    """It is shown to those who ask for progress."""
    driver = CrashDriver(program(node("n")), None, Options(modes=frozenset({"custom"})))
    steps, (_, task) = fed(driver, 1)

    assert isinstance(steps.send(Wakeup([Emitted(task.id, Report(1, 2))], 2, 0)), Wait)


@pytest.mark.parametrize(
    "change",
    [{"task_id": "gone"}, {"attempt": 2}],
    ids=["another body", "another attempt"],
)
def test_a_call_of_a_body_that_does_not_run_is_not_made(change: dict[str, Any]) -> None:
    """Nobody waits for its result."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    late = replace(call_of(body), **change)

    assert isinstance(steps.send(Wakeup([late], 2, 0)), Wait)


def test_a_call_that_is_made_after_the_run_was_stopped_is_withdrawn() -> None:
    """The body is told, and does not wait for ever."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    made = call_of(body)

    assert Cancel(body.id, True) == steps.send(Wakeup([Stopped("bye"), made], 2, 0))
    assert Resolve([(made, Withdrawn())]) == steps.send(None)
    assert isinstance(steps.send(None), Wait)
    with pytest.raises(TaskCancelled, match="bye"):
        steps.send(Wakeup([Ended(body.id, 1, Withdrawn())], 3, 0))


# -------------------------------------------------------------------- together


def test_a_body_that_has_ended_is_not_cancelled_with_its_calls() -> None:
    """Nothing of it runs; the call that it left does."""
    steps, (_, body, other) = fed(
        CrashDriver(program(node("body"), node("other")), None), 1
    )
    submit = steps.send(Wakeup([call_of(body)], 2, 0))
    assert isinstance(submit, Submit)
    assert isinstance(steps.send(None), Wait)

    returned = Ended(body.id, 1, Returned([("out", 1)]))
    failed = Ended(other.id, 1, Raised(OSError("down")))
    assert Cancel(submit.tasks[0].id, False) == steps.send(
        Wakeup([returned, failed], 3, 0)
    )
    assert isinstance(steps.send(None), Wait)
    steps.close()


def test_a_command_for_the_graph_around_is_not_hidden_by_the_siblings_it_cancels() -> (
    None
):
    """They did not fail."""
    command = Command(graph=Command.PARENT, update={"x": 1})
    driver = CrashDriver(
        program(node("m"), node("n")),
        None,
        Options(nested=Nested()),
        schedule=Schedule(ends(m=Escaped(command))),
    )

    with pytest.raises(ParentCommand):
        driver.run(1)


def test_a_nested_run_that_was_asked_to_stop_stops_the_one_around_it() -> None:
    """Its task has not failed: nothing is said of it, and it goes on when it is
    resumed.
    """
    driver = CrashDriver(
        program(node("n")),
        InMemorySaver(),
        schedule=Schedule(ends(n=Raised(GraphDrained("bye")))),
    )

    with pytest.raises(GraphDrained, match="bye") as caught:
        driver.run(1)
    repaired = CrashDriver(driver.program, driver.saver)

    assert [] == getattr(caught.value, "__notes__", [])
    assert ["1"] == repaired.run(None).values


def test_a_handler_waits_for_the_resume_of_a_run_that_is_failing() -> None:
    """Then it runs, and what it handles does not."""
    nodes = (
        node("a"),
        node("b", handler="h"),
        node("h", lambda _: "handled", triggers=()),
    )
    outcomes = ends(a=Raised(KeyError("first")), b=Raised(ValueError("second")))
    driver = CrashDriver(
        program(*nodes), InMemorySaver(), schedule=Schedule(outcomes, together=2)
    )
    with pytest.raises(KeyError, match="first"):
        driver.run(1)
    assert ["a", "b"] == tasks_of(driver)

    repaired = CrashDriver(driver.program, driver.saver)

    assert ["1", "handled"] == repaired.run(None).values
    assert ["a", "h"] == sorted(tasks_of(repaired))


def test_a_failure_that_was_kept_as_text_is_handled_all_the_same() -> None:
    """Another saver may keep no errors; the handler is told which node it was."""
    nodes = (node("n", handler="h"), node("h", lambda _: "handled", triggers=()))
    saver = InMemorySaver()
    broken = CrashDriver(program(*nodes), saver, schedule=Schedule(ends(n=Withdrawn())))
    steps, (_, task) = fed(broken, 1)
    steps.close()
    saved = saver.load(Address("t"))
    assert saved is not None
    failure = ((ERROR, "ValueError('boom')"), (ERROR_SOURCE, "n"))
    kept = TaskWrites(saved.checkpoint.id, task.id, task.path, failure)
    saver.commit([Batch(address=Address("t"), writes=(kept,))])

    repaired = CrashDriver(broken.program, saver)

    assert ["handled"] == repaired.run(None).values
    (handler,) = submitted(repaired)
    assert handler.error is not None
    text = str(handler.error.error)
    assert "node 'n' failed in an earlier run: ValueError('boom')" == text


def test_a_task_costs_no_more_workers_than_its_policy_gives_it() -> None:
    """Whatever attempts are left."""
    stingy = RetryPolicy(
        retry_on=WorkerDiedError,
        max_attempts=9,
        max_worker_deaths=2,
        initial_interval=0,
    )
    died = Raised(WorkerDiedError("n", 7, "SIGSEGV"))
    driver = CrashDriver(
        program(node("n", retry=(stingy,))), None, schedule=Schedule(ends(n=died))
    )

    with pytest.raises(WorkerDiedError):
        driver.run(1)

    assert [2] == [*driver.seen.attempts.values()]
