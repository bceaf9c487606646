"""A superstep, fed by hand: calls whose results are shared between runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowpregel._core.effects import (
    BUSY,
    LOOK_AGAIN,
    CacheLookup,
    CacheStore,
    Call,
    CancelCall,
    Ended,
    Resolve,
    Stopped,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.records import Raised, Returned, Task, Withdrawn
from flowpregel.errors import TaskCancelled
from flowpregel.policies import CachePolicy
from tests.crash_driver import CrashDriver
from tests.unit.core.programs import call_of, fed, node, program

RESULT = (("__return__", 7),)


def shared_call(body: Task, reply: str = "here") -> Call:
    """Return a call that *body* makes of a task that shares its results."""
    return replace(call_of(body), node=node("one", cache=CachePolicy()), reply=reply)


def cancel_of(call: Call) -> CancelCall:
    """Return the request of a body that no longer needs *call*."""
    return CancelCall(call.task_id, call.attempt, call.reply)


def test_a_body_shares_its_result_though_its_last_call_is_shared_too() -> None:
    """The body has returned, and waits only for a call that another run computes."""
    body_node = node("body", cache=CachePolicy(), space=("of the body",))
    steps = CrashDriver(program(body_node), None).start(1)
    own_lookup: Any = next(steps)
    submit: Any = steps.send({})
    assert isinstance(steps.send(None), Wait)
    (body,) = submit.tasks
    lookup = steps.send(Wakeup([shared_call(body)], 2, 0))
    assert isinstance(steps.send(dict.fromkeys(lookup.keys, BUSY)), Wait)
    returned = Ended(body.id, 1, Returned([("out", 1)]), None, ())
    assert isinstance(steps.send(Wakeup([returned], 3, 0)), Wait)

    assert lookup == steps.send(Wakeup([], 4, LOOK_AGAIN))
    effects = [steps.send({lookup.keys[0]: RESULT})]
    effects += steps

    shares = [effect for effect in effects if isinstance(effect, CacheStore)]
    assert [{*own_lookup.keys}] == [{*share.entries} for share in shares]
    (entry,) = shares[0].entries.values()
    assert ([("out", 1)], None) == entry


def test_a_call_that_is_cancelled_before_its_lookup_never_starts() -> None:
    """The body makes the call and gives it up at once."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    call = shared_call(body)

    resolve = steps.send(Wakeup([call, cancel_of(call)], 2, 0))

    assert Resolve([(call, Withdrawn())]) == resolve
    assert isinstance(steps.send(None), Wait)
    steps.close()


def test_a_call_that_comes_with_a_request_to_stop_is_not_looked_up() -> None:
    """Its result would come too late."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    call = shared_call(body)
    effects = [steps.send(Wakeup([call, Stopped("bye")], 2, 0))]
    while not isinstance(effects[-1], Wait):
        effects.append(steps.send(None))

    assert not any(isinstance(effect, CacheLookup | Submit) for effect in effects)
    with pytest.raises(TaskCancelled, match="bye"):
        steps.send(Wakeup([Ended(body.id, 1, Withdrawn())], 3, 0))


def test_a_withdrawn_call_does_not_release_the_claim_of_an_equal_call() -> None:
    """The first of the two calls still computes the result."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    first = shared_call(body, "first")
    lookup = steps.send(Wakeup([first], 2, 0))
    submit = steps.send({})
    assert isinstance(submit, Submit)
    assert isinstance(steps.send(None), Wait)
    second = shared_call(body, "second")

    effects = [steps.send(Wakeup([second, cancel_of(second)], 3, 0))]
    while not isinstance(effects[-1], Wait):
        effects.append(steps.send(None))

    assert not any(isinstance(effect, CacheStore) for effect in effects)
    ended = Ended(submit.tasks[0].id, 1, Returned(RESULT))
    assert isinstance(steps.send(Wakeup([ended], 4, 0)), Resolve)
    share = steps.send(None)
    assert [*lookup.keys] == [*share.entries]
    steps.close()


def test_a_call_whose_lookup_failed_fails_and_releases_no_claim() -> None:
    """The cache has refused the claim, so there is nothing to release."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    call = shared_call(body)
    steps.send(Wakeup([call], 2, 0))

    resolve = steps.throw(OSError("disk"))

    ((_, outcome),) = resolve.outcomes
    assert isinstance(outcome, Raised)
    assert isinstance(steps.send(None), Wait)
    returned = Ended(body.id, 1, Returned([("out", 1)]), None, [*outcome_ids(body)])
    with pytest.raises(StopIteration):
        steps.send(Wakeup([returned], 3, 0))


def outcome_ids(body: Task) -> list[str]:
    """Return the ids of the failed calls of *body*."""
    return [*body.attempt.body.failures]


def test_a_call_that_comes_after_a_request_to_stop_is_not_counted_as_executed() -> None:
    """The notice at the end of the run lists the calls that ran."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    run = steps.gi_frame.f_locals["run"]
    effect = steps.send(Wakeup([Stopped("bye", kill=False)], 2, 0))
    while not isinstance(effect, Wait):
        effect = steps.send(None)

    steps.send(Wakeup([replace(call_of(body), reply="here")], 3, 0))

    assert 0 == run.replay.report.executed
    steps.close()
