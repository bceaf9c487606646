"""Record and replay: what finished is not done again, in a resume or a retry."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ReplayMismatchError
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from tests.runs.crashes import AT_ONCE, Once

# ---------------------------------------------------------------- results


def test_a_resumed_body_gets_what_was_recorded(
    drive: Any, executor: str, counted: Any
) -> None:
    """Finished tasks do not run again, and nothing is started for them."""
    work, crash = counted(lambda n: (n, {"n": n})), Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        results = [future.result() for future in task(work).map(range(n))]
        crash()
        return results

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 3, thread_id="1")

    assert [(0, {"n": 0}), (1, {"n": 1}), (2, {"n": 2})] == drive.invoke(
        flow, None, thread_id="1"
    )
    assert [0, 1, 2] == sorted(work.seen)


def test_types_are_the_same_after_a_replay(drive: Any, executor: str) -> None:
    """A tuple stays a tuple, a big int an int, an exception an exception of its
    class.
    """
    crash = Once(OSError("crash"))
    value = (1, 2**100, {3, 4}, 5j, KeyError("k"), b"b", range(3))

    @task
    def make(n: int) -> Any:
        return value

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        made = make(n).result()
        crash()
        return made

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 3, thread_id="1")

    assert repr(value) == repr(drive.invoke(flow, None, thread_id="1"))


def test_a_caught_failure_is_replayed(drive: Any, executor: str, counted: Any) -> None:
    """What the body made of a failure depends on it, so it fails the same way again."""

    def fail(n: int) -> None:
        raise LookupError(n)

    work, crash = counted(fail), Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> str:
        try:
            task(work)(n).result()
        except LookupError as error:
            caught = repr(error)
        crash()
        return caught

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 3, thread_id="1")

    assert "LookupError(3)" == drive.invoke(flow, None, thread_id="1")
    assert [3] == work.seen


def test_a_failure_that_ended_the_run_is_tried_again(drive: Any, executor: str) -> None:
    """Resuming is the way to try again once the cause is gone."""
    work = Once(OSError("disk full"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return task(work)(n).result()

    with pytest.raises(OSError, match="disk full"):
        drive.invoke(flow, 3, thread_id="1")

    assert 3 == drive.invoke(flow, None, thread_id="1")


def test_a_failure_deep_below_is_tried_again(drive: Any, executor: str) -> None:
    """So is that of a task which a task called, and neither had caught it."""
    work = Once(OSError("disk full"))
    inner = task(name="inner")(work)

    @task
    def outer(n: int) -> int:
        return inner(n).result() + 1

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return outer(n).result()

    with pytest.raises(OSError, match="disk full"):
        drive.invoke(flow, 3, thread_id="1")

    assert 4 == drive.invoke(flow, None, thread_id="1")


def test_a_failure_that_was_told_as_another_is_tried_again(
    drive: Any, executor: str
) -> None:
    """What a task made of the failure of its call goes back to it, in a worker too."""
    work = Once(OSError("disk full"))
    inner = task(name="inner")(work)

    @task
    def outer(n: int) -> int:
        try:
            return inner(n).result()
        except OSError:
            raise LookupError("no result")  # noqa: B904 - as users write it

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return outer(n).result()

    with pytest.raises(LookupError, match="no result"):
        drive.invoke(flow, 3, thread_id="1")

    assert 3 == drive.invoke(flow, None, thread_id="1")


def test_code_that_was_mended_may_be_tried_again(drive: Any, executor: str) -> None:
    """A failed call is no record to diverge from."""
    saver = InMemorySaver()

    def flow_of(work: Any) -> Any:
        @entrypoint(checkpointer=saver, executor=executor)
        def flow(n: int) -> int:
            return task(work)(n).result()

        return flow

    with pytest.raises(ZeroDivisionError):
        drive.invoke(flow_of(lambda n: n // 0), 3, thread_id="1")

    assert 1 == drive.invoke(flow_of(lambda n: n // 2), None, thread_id="1")


def test_a_finished_run_is_not_replayed(
    drive: Any, executor: str, counted: Any
) -> None:
    """The next run on the thread makes its own calls."""
    work = counted()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return task(work)(n).result()

    assert [3, 3] == [drive.invoke(flow, 3, thread_id="1") for _ in range(2)]
    assert [3, 3] == work.seen


def test_a_replay_of_the_past_makes_its_calls_anew(
    drive: Any, executor: str, counted: Any
) -> None:
    """It is a branch of its own, as a replay of a graph is; what was recorded stays."""
    work = counted(lambda n: 2 * n)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        return task(work)(n).result()

    assert 6 == drive.invoke(flow, 3, thread_id="1")
    before = next(
        state
        for state in flow.get_state_history({"configurable": {"thread_id": "1"}})
        if state.next
    )

    assert 6 == drive.invoke(flow, None, config=before.config)
    assert [3, 3] == work.seen


def test_a_whole_workflow_is_one_superstep(drive: Any, executor: str) -> None:
    """Two checkpoints: the input, and what came of it."""

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return sum(f.result() for f in task(abs).map(range(n)))

    drive.invoke(flow, 9, thread_id="1")

    steps = [
        (s.metadata["source"], s.metadata["step"])
        for s in flow.get_state_history(thread_id="1")
    ]
    assert [("loop", 0), ("input", -1)] == steps


# ---------------------------------------------------------------- retries


def test_a_body_that_is_tried_again_finds_its_results(
    drive: Any, executor: str, counted: Any
) -> None:
    """Its calls are numbered anew, so that the second attempt does nothing twice."""
    work, crash = counted(), Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor, retry_policy=AT_ONCE)
    def flow(n: int) -> list[int]:
        results = [future.result() for future in task(work).map(range(n))]
        crash()
        return results

    assert [0, 1, 2] == drive.invoke(flow, 3, thread_id="1")
    assert [0, 1, 2] == sorted(work.seen)


def test_it_finds_them_without_a_saver_too(
    drive: Any, executor: str, counted: Any
) -> None:
    """A retry happens within one run; nothing needs to be kept on disk for it."""
    work, crash = counted(), Once(OSError("crash"))

    @entrypoint(executor=executor, retry_policy=AT_ONCE)
    def flow(n: int) -> list[int]:
        results = [future.result() for future in task(work).map(range(n))]
        crash()
        return results

    assert [0, 1, 2] == drive.invoke(flow, 3)
    assert [0, 1, 2] == sorted(work.seen)


def test_a_retry_and_then_a_resume_use_the_same_results(
    drive: Any, executor: str, counted: Any
) -> None:
    """No attempt's results are mixed with another's."""
    work, first, second = counted(), Once(OSError("first")), Once(OSError("second"))
    policy = RetryPolicy(
        initial_interval=0, jitter=False, retry_on=OSError, max_attempts=2
    )

    @entrypoint(checkpointer=InMemorySaver(), executor=executor, retry_policy=policy)
    def flow(n: int) -> list[int]:
        results = [future.result() for future in task(work).map(range(n))]
        first()
        second()
        return results

    with pytest.raises(OSError, match="second"):
        drive.invoke(flow, 3, thread_id="1")

    assert [0, 1, 2] == drive.invoke(flow, None, thread_id="1")
    assert [0, 1, 2] == sorted(work.seen)


def test_a_retried_body_tries_the_task_again_that_failed_it(
    drive: Any, executor: str
) -> None:
    """Otherwise its second attempt would fail the same way."""
    work = Once(OSError("once"))

    @entrypoint(executor=executor, retry_policy=AT_ONCE)
    def flow(n: int) -> int:
        return task(work)(n).result()

    assert 3 == drive.invoke(flow, 3)


def test_a_retried_body_joins_the_calls_that_are_under_way(drive: Any) -> None:
    """What its first attempt started and did not wait for is not started again."""
    seen, go_on, crash = [], threading.Event(), Once(OSError("crash"))

    @task
    def slow(n: int) -> int:
        seen.append(n)
        assert go_on.wait(30)
        return n

    @entrypoint(executor="threads", retry_policy=AT_ONCE)
    def flow(n: int) -> int:
        future = slow(n)
        crash()
        go_on.set()
        return future.result()

    assert 3 == drive.invoke(flow, 3)
    assert [3] == seen


def test_a_retried_body_that_diverges_is_told(drive: Any, executor: str) -> None:
    """Its own earlier attempt is what it is compared with."""
    attempts = []

    @entrypoint(
        executor=executor,
        retry_policy=RetryPolicy(
            initial_interval=0, jitter=False, max_attempts=2, retry_on=OSError
        ),
    )
    def flow(n: int) -> int:
        attempts.append(n)
        task(abs)(len(attempts)).result()
        raise OSError("again")

    with pytest.raises(ReplayMismatchError, match=r"abs\(1\).*\n.*abs\(2\)"):
        drive.invoke(flow, 3)


def test_the_retry_policy_of_an_entrypoint_is_not_that_of_its_tasks(
    drive: Any, executor: str, counted: Any
) -> None:
    """Three attempts of the body are three calls, not nine."""

    def fail(n: int) -> None:
        raise OSError(n)

    work = counted(fail)

    @entrypoint(executor=executor, retry_policy=AT_ONCE)
    def flow(n: int) -> None:
        task(work)(n).result()

    with pytest.raises(OSError, match="7"):
        drive.invoke(flow, 7)
    assert [7, 7, 7] == work.seen


def test_a_task_is_tried_again_by_its_own_policy(drive: Any, executor: str) -> None:
    """The caller sees only the result."""
    work = Once(OSError("once"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return task(retry_policy=AT_ONCE)(work)(n).result()

    assert 3 == drive.invoke(flow, 3, thread_id="1")
