"""What is alike in the small tasks of a batch, and in their results, is said once."""

from __future__ import annotations

import pickle
import socket
from contextvars import Context, ContextVar
from dataclasses import replace
from typing import Any

import pytest

from flowpregel._core.records import RETURN, Arguments, Kind, Node, Outcome, Raised, Returned
from flowpregel.carried import carry
from flowpregel.context import RunControl, TaskInfo
from flowpregel.executors.base import Job
from flowpregel.executors.processes import brief, frames, messages, sent_ahead
from flowpregel.executors.processes.brief import FIRST, FULL, LIKE, TASK, Likeness, plain_write
from flowpregel.executors.processes.ends import WorkerRunClient
from flowpregel.executors.processes.likes import First, LateScope, Own
from flowpregel.executors.processes.serialization import DIGEST_SIZE, SHARE_FROM
from flowpregel.executors.processes.wire import Outlet
from flowpregel.runinfo import RunInfo, RunValues

DIGEST = b"d" * DIGEST_SIZE
NODE = Node(name="n")
RUN = RunInfo(RunValues({"tags": ["t"]}, None, None), thread_id="thread", run_id="run")


def job_of(number: int, *args: Any, **changes: Any) -> Job:
    """Return a call."""
    info = TaskInfo(
        f"id-{number}", "n", f"ns|n:id-{number}", 3, 25, 2, 17, ("t",), f"~1.{number}", (), "c",
        None, True, RUN,
    )  # fmt: skip
    job = Job(info, Kind.CALL, NODE, Arguments(args, {}))
    for name, value in changes.items():
        setattr(job, name, value)
    return job


def sent() -> sent_ahead.Sent:
    """Return what was sent of the run ahead of its tasks."""
    found = sent_ahead.pack_run(RUN)
    assert found is not None
    return found


def parts_of(likeness: Likeness) -> list[list[Any]]:
    """Return what is sent of those that were gathered: lists of all that they have alone."""
    sent = likeness.take()
    for head, data in zip(sent[::2], sent[1::2], strict=True):
        assert (0, len(data), LIKE) == TASK.unpack(head)
    return [pickle.loads(data) for data in sent[1::2]]


def others_of(first: Job, *jobs: Job) -> tuple[First, list[Own]]:
    """Return the first of some tasks as a worker has it, and what it was sent of the others."""
    likeness = Likeness()
    assert not likeness.gather(1, first, DIGEST)
    whole, _ = sent_ahead.pack_job(first, None, sent())
    assert FIRST == likeness.begin(first, DIGEST, sent())
    assert all(likeness.gather(n, job, DIGEST) for n, job in enumerate(jobs, 2))
    got = First(DIGEST + whole)
    got.node = NODE
    return got, [own for data in likeness.take()[1::2] for own in got.others(data)]


def runs() -> dict[int, Any]:
    """Return what a worker was sent ahead."""
    return {sent().number: sent_ahead.unpack_run(sent().data)}


def worker_ends() -> WorkerRunClient:
    """Return the ends of a worker whose frames go nowhere."""
    with socket.socket() as connection:
        outlet = Outlet(connection, 7)
    outlet.forget()
    return WorkerRunClient(outlet, lambda: None)


@pytest.mark.parametrize("args", [(), (1, "text", None, 2.5, b"bytes", True)])
@pytest.mark.parametrize("store", [None, "the run's"])
def test_a_task_that_is_like_another_arrives_whole(args: tuple[Any, ...], store: Any) -> None:
    """All that is not said again comes from the first."""
    job = job_of(2, *args, store=store)
    first, [own] = others_of(job_of(1, 0, store=store), job)

    got, scope = first.job_like(own, "a store", runs()), LateScope(own, worker_ends())

    assert 2 == own[0]
    assert messages.info_values(job.info) == messages.info_values(scope.info)
    assert (job.kind, job.node, job.input) == (got.kind, got.node, got.input)
    assert ("a store" if store else None) == got.store == scope.store
    assert (RUN.run_id, RUN.values) == (scope.info.run.run_id, scope.info.run.values)


@pytest.mark.parametrize("namespace", ["", "one for all"])
def test_a_namespace_need_not_name_its_task(namespace: str) -> None:
    """But then it is the same for all."""
    jobs = [job_of(number) for number in range(3)]
    for job in jobs:
        job.info = replace(job.info, namespace=namespace)
    first, [own, _] = others_of(*jobs)
    first.job_like(own, None, runs())

    assert namespace == LateScope(own, worker_ends()).info.namespace
    assert not Likeness().gather(3, job_of(3), DIGEST)


def test_what_one_task_changes_in_its_config_no_other_sees() -> None:
    """Although both were sent as what they have alone."""
    first, owns = others_of(job_of(1), job_of(2), job_of(3))
    scopes = []
    for own in owns:
        first.job_like(own, None, runs())
        scopes.append(LateScope(own, worker_ends()))

    config: Any = scopes[0].info.run.values.config
    config["tags"].append("changed")

    assert ["t"] == scopes[1].info.run.values.config["tags"]
    assert ["id-2", "id-3"] == [scope.info.task_id for scope in scopes]


def test_what_a_task_has_written_stays_when_it_looks_at_its_scope() -> None:
    """Only what is not there yet is made."""
    first, [own] = others_of(job_of(1), job_of(2))
    first.job_like(own, None, runs())
    scope = LateScope(own, worker_ends())
    scope.writes, scope.asked = [(RETURN, 1)], 2

    assert {} == scope.channels
    assert ([(RETURN, 1)], 2) == (scope.writes, scope.asked)
    with pytest.raises(AttributeError):
        _ = scope.nothing  # type: ignore[attr-defined]


def test_code_that_outlives_its_task_makes_calls_that_are_not_the_next_ones() -> None:
    """It first looks at its scope when another task runs already."""
    first, [own] = others_of(job_of(1), job_of(2))
    first.job_like(own, None, runs())
    ends = worker_ends()
    ends.number = own[0]
    now, later = LateScope(own, ends).ends, LateScope(own, ends)
    now.call(NODE, Arguments((), {}), None, "n()")
    ends.number += 1
    later.ends.call(NODE, Arguments((), {}), None, "n()")

    assert 1 == ends.made.count
    assert ends.is_used


def test_a_worker_is_not_sent_too_much_at_once() -> None:
    """It has all of a part in its memory."""
    likeness, text = Likeness(), "x" * (SHARE_FROM // 8)
    likeness.begin(job_of(1), DIGEST, sent())
    assert all(likeness.gather(n, job_of(n, text, n), DIGEST) for n in range(20))

    parts = parts_of(likeness)

    assert [8, 8, 4] == [len(part) // 4 for part in parts]
    assert [*range(20)] == [number for part in parts for number in part[::4]]
    assert [] == likeness.take()


def other(**changes: Any) -> Job:
    """Return a call whose task differs in more than it may."""
    job = job_of(2, 1)
    job.info = replace(job.info, **changes)
    return job


@pytest.mark.parametrize(
    "job",
    [
        job_of(2, [1]),
        job_of(2, "x" * SHARE_FROM),
        job_of(2, input=Arguments((1,), {"key": 1})),
        job_of(2, 1, kind=Kind.PUSH),
        job_of(2, 1, store="one"),
        job_of(2, 1, control=RunControl()),
        job_of(2, 1, channels={"channel": 1}),
        other(step=4),
        other(namespace="ns|n:another"),
        other(answers=("yes",)),
        other(run=RunInfo()),
    ],
)  # fmt: skip
def test_a_task_that_is_not_like_the_first_is_sent_in_full(job: Job) -> None:
    """Whatever it is that is not the same."""
    likeness = Likeness()
    likeness.begin(job_of(1, 1), DIGEST, sent())

    assert likeness.gather(2, job_of(2, 1), DIGEST)
    assert not likeness.gather(2, job, DIGEST)
    assert not likeness.gather(2, job_of(2, 1), b"other code")


tenant = carry(ContextVar("tenant"))


def test_what_travels_of_a_callers_context_makes_a_difference() -> None:
    """What does not travel makes none."""
    likeness, bare, named = Likeness(), Context(), Context()
    named.run(tenant.set, "somebody")
    likeness.begin(job_of(1, variables=bare), DIGEST, sent())

    assert likeness.gather(2, job_of(2, variables=bare), DIGEST)
    assert not likeness.gather(3, job_of(3, variables=named), DIGEST)
    assert FULL == likeness.begin(job_of(3, variables=named), DIGEST, sent())


def test_nothing_is_like_a_task_that_is_not_plain() -> None:
    """Its own parts may be what cannot be said once: nor is what came before it the first."""
    likeness = Likeness()
    likeness.begin(job_of(1, 1), DIGEST, sent())

    assert FULL == likeness.begin(job_of(2, [1]), DIGEST, sent())
    assert not likeness.gather(3, job_of(3, 1), DIGEST)
    assert FULL == likeness.begin(job_of(4, 1), DIGEST, None)


@pytest.mark.parametrize(
    ("outcome", "write"),
    [
        (Returned(((RETURN, 1),)), (RETURN, 1)),
        (Returned([("channel", None)]), ("channel", None)),
        (Returned(()), None),
        (Returned((("a", 1), ("b", 2))), None),
        (Returned(((RETURN, "text"),)), None),
        (Raised(ValueError()), None),
    ],
)
def test_a_result_is_small_if_it_is_one_number_or_nothing(outcome: Outcome, write: Any) -> None:
    """Everything else has a frame of its own."""
    assert write == plain_write(outcome)


def test_results_share_a_frame_and_keep_their_place_among_others() -> None:
    """What a task has printed does not overtake the end of the one before it."""
    here, there = socket.socketpair()
    outlet = Outlet(here, 7)
    results = [(number, 0.5, 10, RETURN, number) for number in range(3)]
    for result in results[:2]:
        outlet.hold_result(result)
    outlet.hold(frames.PRINTED, 3, b"text")
    outlet.hold_result(results[2])

    outlet.flush()

    got = frames.Parser(7, frames.UP).feed(there.recv(1 << 16))
    assert [frames.RESULTS, frames.PRINTED, frames.RESULTS] == [frame.kind for frame in got]
    assert results[:2] == [*brief.unpack_results(got[0].body)]
    assert results[2:] == [*brief.unpack_results(got[2].body)]
    for each in (here, there):
        each.close()
