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
from flowpregel.executors.processes import brief, frames, messages
from flowpregel.executors.processes.brief import FIRST, FULL, First, Likeness, plain_write
from flowpregel.executors.processes.parcel import SHARE_FROM
from flowpregel.executors.processes.payload import DIGEST_SIZE
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


def sent() -> messages.Sent:
    """Return what was sent of the run ahead of its tasks."""
    found = messages.pack_run(RUN)
    assert found is not None
    return found


@pytest.mark.parametrize("args", [(), (1, "text", None, 2.5, b"bytes", True)])
@pytest.mark.parametrize("store", [None, "the run's"])
def test_a_task_that_is_like_another_arrives_whole(args: tuple[Any, ...], store: Any) -> None:
    """All that is not said again comes from the first."""
    likeness, first, job = Likeness(), job_of(1, 0, store=store), job_of(2, *args, store=store)
    assert likeness.pack(first, DIGEST) is None
    whole, _ = messages.pack_job(first, None, sent())
    assert FIRST == likeness.begin(first, DIGEST, sent())
    own = likeness.pack(job, DIGEST)
    assert own is not None

    runs = {sent().number: messages.unpack_run(sent().data)}
    got = First(DIGEST + whole).job_like(own, NODE, "a store", runs)

    assert messages.info_values(job.info) == messages.info_values(got.info)
    assert (job.kind, job.node, job.input) == (got.kind, got.node, got.input)
    assert ("a store" if store else None) == got.store
    assert (RUN.run_id, RUN.values) == (got.info.run.run_id, got.info.run.values)


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
        other(answers=("yes",)),
        other(run=RunInfo()),
    ],
)  # fmt: skip
def test_a_task_that_is_not_like_the_first_is_sent_in_full(job: Job) -> None:
    """Whatever it is that is not the same."""
    likeness = Likeness()
    likeness.begin(job_of(1, 1), DIGEST, sent())

    assert likeness.pack(job_of(2, 1), DIGEST) is not None
    assert likeness.pack(job, DIGEST) is None
    assert likeness.pack(job_of(2, 1), b"other code") is None


tenant = carry(ContextVar("tenant"))


def test_what_travels_of_a_callers_context_makes_a_difference() -> None:
    """What does not travel makes none."""
    likeness, bare, named = Likeness(), Context(), Context()
    named.run(tenant.set, "somebody")
    likeness.begin(job_of(1, variables=bare), DIGEST, sent())

    assert likeness.pack(job_of(2, variables=bare), DIGEST) is not None
    assert likeness.pack(job_of(3, variables=named), DIGEST) is None
    assert FULL == likeness.begin(job_of(3, variables=named), DIGEST, sent())


def test_nothing_is_like_a_task_that_is_not_plain() -> None:
    """Its own parts may be what cannot be said once: nor is what came before it the first."""
    likeness = Likeness()
    likeness.begin(job_of(1, 1), DIGEST, sent())

    assert FULL == likeness.begin(job_of(2, [1]), DIGEST, sent())
    assert likeness.pack(job_of(3, 1), DIGEST) is None
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
    assert results[:2] == brief.unpack_results(got[0].body)
    assert results[2:] == pickle.loads(got[2].body)
    for each in (here, there):
        each.close()
