"""A superstep, fed by hand: events that arrive together with the end of its time
limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel._core.effects import (
    CacheLookup,
    CacheStore,
    Cancel,
    Commit,
    Effect,
    Emit,
    Ended,
    Stopped,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.program import Nested, Options, Program
from flowpregel._core.records import (
    ERROR,
    Address,
    Durability,
    Escaped,
    Outcome,
    Raised,
    Returned,
    Task,
)
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ParentCommand, TaskCancelled
from flowpregel.policies import CachePolicy, RetryPolicy
from tests.crash_driver import CrashDriver
from tests.unit.core.programs import call_of, fed, node, program, submitted

SECOND = 1_000_000_000
LIMIT = Options(step_timeout=3)
COMMAND = Command(graph=Command.PARENT, update={"a": 1})


def performed(
    driver: CrashDriver, steps: Any, effect: Effect
) -> tuple[list[Effect], BaseException]:
    """Perform *effect* and all that follow, up to the error of the run. Return the
    effects and the error.
    """
    effects = [effect]
    try:
        while True:
            effects.append(steps.send(driver.perform(effects[-1])))
    except BaseException as error:  # noqa: BLE001 - a test compares it
        return effects, error


class WaitingBody:
    """A run whose only planned task makes a call and ends, while the call continues.

    Args:
        outcome: The outcome of the planned task.
        saver: The saver of the run, if it has one.
        fields: Further fields of the node of the planned task.
    """

    def __init__(
        self, outcome: Outcome, saver: InMemorySaver | None = None, **fields: Any
    ) -> None:
        handler = node("h", triggers=())
        options = replace(LIMIT, nested=Nested("parent"), namespace="parent")
        programs = program(node("body", **fields), handler)
        self.driver = CrashDriver(programs, saver, options)
        self.steps, (_, self.body) = fed(self.driver, 1)
        submit: Any = self.send(call_of(self.body))
        (self.call,) = submit.tasks
        assert isinstance(self.steps.send(None), Wait)
        self.effect = self.send(Ended(self.body.id, 1, outcome))
        while not isinstance(self.effect, Wait):
            self.effect = self.steps.send(None)

    def send(self, *events: Any, seconds: int = 1) -> Effect:
        """Wake the run up at *seconds*, and return the effect that follows."""
        effect: Effect = self.steps.send(Wakeup([*events], 2, seconds * SECOND))
        return effect

    def time_out(self) -> tuple[list[Effect], BaseException]:
        """Wake the run up at its limit, and return the effects that follow and the
        error of the run.
        """
        return performed(self.driver, self.steps, self.send(seconds=3))


def test_the_error_of_a_body_that_waits_for_its_calls_is_raised() -> None:
    """The run would have ended with this error if the call had ended in time."""
    run = WaitingBody(Raised(ValueError("boom")))

    effects, error = run.time_out()

    assert isinstance(error, ValueError)
    assert [Cancel(run.call.id, kill=True)] == [
        effect for effect in effects if isinstance(effect, Cancel)
    ]


def test_the_error_of_the_first_of_two_bodies_that_wait_is_raised() -> None:
    """The call of the second body waits to be tried again, so it is withdrawn, which
    ends the second body, too.
    """
    policy = RetryPolicy(initial_interval=30, max_attempts=3)
    driver = CrashDriver(program(node("a"), node("b")), None, LIMIT)
    steps, (_, first, second) = fed(driver, 2)

    def send(*events: Any) -> Effect:
        effect: Effect = steps.send(Wakeup([*events], 2, SECOND))
        submit = effect
        while not isinstance(effect, Wait):
            effect = steps.send(driver.perform(effect))
        return submit

    send(call_of(first))
    target = node("flaky", retry=(policy,))
    submit: Any = send(replace(call_of(second), node=target))
    (call,) = submit.tasks
    send(Ended(call.id, 1, Raised(ConnectionError())))
    send(Ended(first.id, 1, Raised(ValueError("first"))))
    send(Ended(second.id, 1, Raised(ValueError("second"))))

    _, error = performed(driver, steps, steps.send(Wakeup([], 2, 3 * SECOND)))

    assert "first" == str(error)


def test_the_error_of_a_body_that_waits_for_its_calls_is_stored() -> None:
    """So `show` lists the failure."""
    saver = InMemorySaver()
    run = WaitingBody(Raised(ValueError("boom")), saver)

    run.time_out()

    saved = saver.load(Address("t"))
    assert saved is not None
    assert [(run.body.id, ERROR)] == [
        (write.task_id, write.channel) for write in saved.writes
    ]


def test_the_command_of_a_body_that_waits_for_its_calls_is_raised() -> None:
    """The graph around it gets the command."""
    run = WaitingBody(Escaped(COMMAND))

    _, error = run.time_out()

    assert isinstance(error, ParentCommand)
    assert COMMAND == error.command


def test_a_body_that_returned_and_waits_for_its_calls_times_out() -> None:
    """Its calls belong to the superstep."""
    run = WaitingBody(Returned([("out", 1)]))

    _, error = run.time_out()

    assert "superstep 0 took longer than step_timeout=3" in str(error)


def test_a_body_whose_failure_has_a_handler_times_out() -> None:
    """The error of the body would not have ended the run."""
    run = WaitingBody(Raised(ValueError("boom")), handler="h")

    _, error = run.time_out()

    assert isinstance(error, TimeoutError)
    assert str(error).endswith("still running: body, one")


@pytest.mark.parametrize("seconds", [1, 3])
def test_a_command_for_the_parent_graph_is_not_hidden_by_the_step_timeout(
    seconds: int,
) -> None:
    """The other task, which is stopped because of the command, is slow to end."""
    options = replace(LIMIT, nested=Nested("parent"), namespace="parent")
    driver = CrashDriver(program(node("fast"), node("slow")), None, options)
    steps, (_, fast, slow) = fed(driver, 1)
    escaped = Ended(fast.id, 1, Escaped(COMMAND))
    effect = steps.send(Wakeup([escaped], 2, seconds * SECOND))
    while seconds < 3 and not isinstance(effect, Wait):
        effect = steps.send(None)
    if isinstance(effect, Wait):
        effect = steps.send(Wakeup([], 2, 3 * SECOND))

    effects, error = performed(driver, steps, effect)

    assert Cancel(slow.id, kill=True) == effects[0]
    assert isinstance(error, ParentCommand)


def test_a_request_to_stop_is_not_hidden_by_the_step_timeout() -> None:
    """The task that was stopped is slow to end."""
    driver = CrashDriver(program(node("slow")), None, LIMIT)
    steps, _ = fed(driver, 1)
    assert isinstance(steps.send(Wakeup([Stopped("bye")], 2, SECOND)), Cancel)
    assert isinstance(steps.send(None), Wait)

    _, error = performed(driver, steps, steps.send(Wakeup([], 2, 3 * SECOND)))

    assert isinstance(error, TaskCancelled)


def shared_programs() -> Program:
    """Return a program with a node that shares its results, and another node."""
    return program(node("fast", cache=CachePolicy(), space=("s",)), node("slow"))


def after_lookup(driver: CrashDriver) -> tuple[Any, list[Task]]:
    """Start a run whose results are shared, and return it with its started tasks."""
    steps, (_, *tasks) = fed(driver, 1)
    return steps, tasks


@pytest.mark.parametrize("make_saver", [None, InMemorySaver])
@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.EXIT])
def test_a_shared_result_that_comes_with_the_step_timeout_is_cached(
    make_saver: type[InMemorySaver] | None, durability: Durability
) -> None:
    """Other runs need not compute it again."""
    saver = None if make_saver is None else make_saver()
    options = replace(LIMIT, durability=durability)
    driver = CrashDriver(shared_programs(), saver, options)
    steps, (fast, _) = after_lookup(driver)
    ended = Ended(fast.id, 1, Returned([("out", 7)]))

    _, error = performed(driver, steps, steps.send(Wakeup([ended], 2, 3 * SECOND)))

    assert isinstance(error, TimeoutError)
    assert [[("out", 7)]] == [*driver.cache.values()]


def test_a_result_that_comes_with_the_step_timeout_is_stored_before_it_is_shown() -> (
    None
):
    """As at any other time."""
    options = replace(LIMIT, modes=frozenset(["updates"]))
    driver = CrashDriver(shared_programs(), InMemorySaver(), options)
    steps, (fast, _) = after_lookup(driver)
    ended = Ended(fast.id, 1, Returned([("out", 7)]))

    effects, _ = performed(driver, steps, steps.send(Wakeup([ended], 2, 3 * SECOND)))

    kinds = [type(effect) for effect in effects]
    assert [Cancel, Commit, Emit, CacheStore] == kinds[:4]


def test_a_handler_does_not_start_after_the_step_timeout() -> None:
    """It starts when the run is resumed."""
    fast = node("fast", handler="h")
    programs = program(fast, node("slow"), node("h", triggers=()))
    saver = InMemorySaver()
    driver = CrashDriver(programs, saver, LIMIT)
    steps, (fast_task, _) = after_lookup(driver)
    failed = Ended(fast_task.id, 1, Raised(ValueError("boom")))

    effects, error = performed(
        driver, steps, steps.send(Wakeup([failed], 2, 3 * SECOND))
    )

    assert isinstance(error, TimeoutError)
    assert not any(isinstance(effect, Submit) for effect in effects)
    resumed = CrashDriver(programs, saver)
    resumed.run(None)
    assert {"slow", "h"} == {task.name for task in submitted(resumed)}


def test_a_call_of_the_last_moment_is_not_looked_up_after_the_step_timeout() -> None:
    """No task would use the result."""
    driver = CrashDriver(program(node("body")), None, LIMIT)
    steps, (body,) = after_lookup(driver)
    call = replace(call_of(body), node=node("one", cache=CachePolicy()))

    effects, error = performed(driver, steps, steps.send(Wakeup([call], 2, 3 * SECOND)))

    assert isinstance(error, TimeoutError)
    assert not any(isinstance(effect, CacheLookup) for effect in effects)
