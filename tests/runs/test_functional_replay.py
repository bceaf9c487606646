"""Record and replay: what finished is not done again, and a body that diverges is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import ReplayMismatchError, UnknownInterruptError
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy

AT_ONCE = RetryPolicy(initial_interval=0, jitter=False, retry_on=Exception)


class Once:
    """Raises the first time it is called with a value."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.seen: set[Any] = set()

    def __call__(self, value: Any = None) -> Any:
        if value not in self.seen:
            self.seen.add(value)
            raise self.error
        return value


# ---------------------------------------------------------------- results


def test_a_resumed_body_gets_what_was_recorded(drive: Any, executor: str, counted: Any) -> None:
    """Finished tasks do not run again, and nothing is started for them."""
    work, crash = counted(lambda n: (n, {"n": n})), Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        results = [future.result() for future in task(work).map(range(n))]
        crash()
        return results

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 3, thread_id="1")

    assert [(0, {"n": 0}), (1, {"n": 1}), (2, {"n": 2})] == drive.invoke(flow, None, thread_id="1")
    assert [0, 1, 2] == sorted(work.seen)


def test_types_are_the_same_after_a_replay(drive: Any, executor: str) -> None:
    """A tuple stays a tuple, a big int an int, an exception an exception of its class."""
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


def test_a_finished_run_is_not_replayed(drive: Any, executor: str, counted: Any) -> None:
    """The next run on the thread makes its own calls."""
    work = counted()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return task(work)(n).result()

    assert [3, 3] == [drive.invoke(flow, 3, thread_id="1") for _ in range(2)]
    assert [3, 3] == work.seen


def test_a_whole_workflow_is_one_superstep(drive: Any, executor: str) -> None:
    """Two checkpoints: the input, and what came of it."""

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        return sum(f.result() for f in task(abs).map(range(n)))

    drive.invoke(flow, 9, thread_id="1")

    steps = [
        (s.metadata["source"], s.metadata["step"]) for s in flow.get_state_history(thread_id="1")
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


def test_it_finds_them_without_a_saver_too(drive: Any, executor: str, counted: Any) -> None:
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
    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=OSError, max_attempts=2)

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


def test_a_retried_body_tries_the_task_again_that_failed_it(drive: Any, executor: str) -> None:
    """Otherwise its second attempt would fail the same way."""
    work = Once(OSError("once"))

    @entrypoint(executor=executor, retry_policy=AT_ONCE)
    def flow(n: int) -> int:
        return task(work)(n).result()

    assert 3 == drive.invoke(flow, 3)


def test_a_retried_body_that_diverges_is_told(drive: Any, executor: str) -> None:
    """Its own earlier attempt is what it is compared with."""
    attempts = []

    @entrypoint(executor=executor, retry_policy=RetryPolicy(
        initial_interval=0, jitter=False, max_attempts=2, retry_on=OSError))  # fmt: skip
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


# ---------------------------------------------------------------- divergence


def diverging(executor: str, calls: list[Any]) -> Any:
    """Return a workflow whose first attempt crashes, and that makes other calls each time."""
    crash = Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        called, arguments = calls.pop(0)
        results = [called(argument).result() for argument in arguments]
        crash()
        return results

    return flow


double = task(name="double")(lambda n: 2 * n)
negate = task(name="negate")(lambda n: -n)


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ((double, [1, 2]), (double, [2, 1]), r"recorded: double\(1\).*\n.*now: +double\(2\)"),
        ((double, [1, 2]), (negate, [1, 2]), r"recorded: double\(1\).*\n.*now: +negate\(1\)"),
        ((double, [[1, 2]]), (double, [[1, 3]]), r"double\(<list of 2>\)"),
    ],
    ids=["order", "function", "content"],
)
def test_a_replay_that_diverges_is_an_error(
    drive: Any, executor: str, first: Any, second: Any, shown: str
) -> None:
    """It shows the recorded and the new call side by side."""
    flow = diverging(executor, [first, second])
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")

    with pytest.raises(ReplayMismatchError, match=shown):
        drive.invoke(flow, None, thread_id="1")


def test_a_divergence_can_be_run_again(drive: Any, executor: str) -> None:
    """And what was run again is recorded, for the resume after the next crash."""
    flow = diverging(executor, [(double, [1, 2]), (double, [2, 1])])
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")

    assert [4, 2] == drive.invoke(flow, None, thread_id="1", on_mismatch="rerun")


def test_what_was_run_again_is_not_run_a_third_time(
    drive: Any, executor: str, counted: Any
) -> None:
    """The new call is found under its own identity on the next resume."""
    work, crashes = counted(), [Once(OSError("one")), Once(OSError("two"))]
    arguments = [1, 2, 2]

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        result = task(work)(arguments.pop(0)).result()
        for crash in crashes:
            crash()
        return result

    for _ in range(2):
        with pytest.raises(OSError, match=r"one|two"):
            drive.invoke(flow, None if work.seen else 0, thread_id="1", on_mismatch="rerun")

    assert 2 == drive.invoke(flow, None, thread_id="1", on_mismatch="rerun")
    assert [1, 2] == work.seen


def test_a_divergence_can_be_overlooked(drive: Any, executor: str) -> None:
    """``reuse`` is what LangGraph does in silence."""
    flow = diverging(executor, [(double, [1, 2]), (double, [2, 1])])
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")

    assert [2, 4] == drive.invoke(flow, None, thread_id="1", on_mismatch="reuse")


def test_changed_code_is_a_divergence_unless_it_has_the_same_version(
    drive: Any, executor: str
) -> None:
    """Without a version the code itself is compared; with one, the version alone."""
    saver = InMemorySaver()

    def flow_of(work: Any, crash: Any, **options: Any) -> Any:
        @entrypoint(checkpointer=saver, executor=executor)
        def flow(n: int) -> int:
            result = task(name="work", **options)(work)(n).result()
            crash()
            return result

        return flow

    for thread, version in (("1", None), ("2", "v1")):
        flow = flow_of(lambda n: n + 1, Once(OSError("crash")), version=version)
        with pytest.raises(OSError, match="crash"):
            drive.invoke(flow, 3, thread_id=thread)

    with pytest.raises(ReplayMismatchError, match="code"):
        drive.invoke(flow_of(lambda n: n + 2, int), None, thread_id="1")
    with pytest.raises(ReplayMismatchError, match="code"):
        drive.invoke(flow_of(lambda n: n + 2, int, version="v2"), None, thread_id="2")
    assert 4 == drive.invoke(flow_of(lambda n: n + 2, int, version="v1"), None, thread_id="2")


@pytest.mark.parametrize("word", ["rerum", "", None])
def test_another_way_to_meet_a_divergence_is_refused(word: Any) -> None:
    """Three words are known."""
    with pytest.raises(ValueError, match="on_mismatch"):
        diverging("inline", []).invoke(1, thread_id="1", on_mismatch=word)


# ---------------------------------------------------------------- tasks nobody waits for


def test_tasks_that_nobody_waits_for_finish(drive: Any, executor: str, counted: Any) -> None:
    """They belong to the run, which ends when they have."""
    work = counted()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> str:
        task(work).map(range(n))
        return "done"

    assert "done" == drive.invoke(flow, 5, thread_id="1")
    assert [0, 1, 2, 3, 4] == sorted(work.seen)


def test_their_failures_are_raised_at_the_end(drive: Any, executor: str, counted: Any) -> None:
    """And not before all of them have ended."""

    def some_fail(n: int) -> int:
        if n == 1:
            raise OSError("unseen")
        return n

    work = counted(some_fail)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> str:
        task(work).map(range(n))
        return "done"

    with pytest.raises(OSError, match="unseen"):
        drive.invoke(flow, 5, thread_id="1")
    assert [0, 1, 2, 3, 4] == sorted(work.seen)


def test_a_body_that_fails_keeps_what_its_tasks_in_flight_do(
    drive: Any, executor: str, counted: Any
) -> None:
    """They finish, are recorded, and are not done again."""
    work, crash = counted(lambda n: time.sleep(0.01) or n), Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> list[int]:
        futures = task(work).map(range(n))
        crash()
        return [future.result() for future in futures]

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 4, thread_id="1")

    assert [0, 1, 2, 3] == sorted(work.seen)
    assert [0, 1, 2, 3] == drive.invoke(flow, None, thread_id="1")
    assert 4 == len(work.seen)


def test_an_async_body_may_gather_failures(drive: Any, executor: str) -> None:
    """``return_exceptions`` counts as having seen them."""

    def fail(n: int) -> None:
        raise OSError(n)

    @entrypoint(executor=executor)
    async def flow(n: int) -> list[str]:
        found = await asyncio.gather(*task(fail).map(range(n)), return_exceptions=True)
        return [repr(error) for error in found]

    assert ["OSError(0)", "OSError(1)"] == drive.invoke(flow, 2)


# ---------------------------------------------------------------- interrupts


def test_a_body_asks_and_goes_on_with_the_answer(drive: Any, executor: str, counted: Any) -> None:
    """The body runs again from its start; its tasks do not."""
    work = counted()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        draft = task(work)(n).result()
        return draft, interrupt({"draft": draft}), interrupt("sure?")

    first = drive.invoke(flow, 3, thread_id="1")
    second = drive.invoke(flow, Command(resume="good"), thread_id="1")

    assert [{"draft": 3}] == [asked.value for asked in first["__interrupt__"]]
    assert ["sure?"] == [asked.value for asked in second["__interrupt__"]]
    assert (3, "good", "yes") == drive.invoke(flow, Command(resume="yes"), thread_id="1")
    assert [3] == work.seen


def test_a_task_asks_through_its_future(drive: Any, executor: str, counted: Any) -> None:
    """The question passes an ``except Exception``; what finished is not done again."""
    work = counted()

    @task
    def approve(n: int) -> str:
        return f"{n}: {interrupt(n)}"

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        try:
            return task(work)(n).result(), approve(n).result()
        except Exception:  # noqa: BLE001 - what a user may write
            return "swallowed"

    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]

    assert [3] == [item.value for item in asked]
    assert (3, "3: ok") == drive.invoke(flow, Command(resume="ok"), thread_id="1")
    assert [3] == work.seen


def asking(executor: str) -> Any:
    """Return a workflow of which three tasks ask at once."""

    @task
    def approve(n: int) -> str:
        return f"{n}: {interrupt(f'{n}?')}"

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> list[str]:
        return [future.result() for future in approve.map(range(n))]

    return flow


def test_all_open_questions_are_reported_together(drive: Any, executor: str) -> None:
    """In the result, in the stream and in the state."""
    flow = asking(executor)

    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]

    assert ["0?", "1?", "2?"] == sorted(item.value for item in asked)
    assert 3 == len(flow.get_state(thread_id="1").interrupts)


def test_one_command_answers_them_all(drive: Any, executor: str) -> None:
    """By id, whatever the order in which they were asked."""
    flow = asking(executor)
    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]
    answers = {item.id: f"yes {item.value}" for item in asked}

    result = drive.invoke(flow, Command(resume=answers), thread_id="1")

    assert ["0: yes 0?", "1: yes 1?", "2: yes 2?"] == result


def test_some_may_be_answered_before_the_others(drive: Any, executor: str) -> None:
    """Those left are asked again, under the same ids."""
    flow = asking(executor)
    asked = {item.value: item.id for item in drive.invoke(flow, 3, thread_id="1")["__interrupt__"]}

    left = drive.invoke(flow, Command(resume={asked["1?"]: "b"}), thread_id="1")["__interrupt__"]

    assert {asked["0?"], asked["2?"]} == {item.id for item in left}
    answers = {asked["0?"]: "a", asked["2?"]: "c"}
    assert ["0: a", "1: b", "2: c"] == drive.invoke(flow, Command(resume=answers), thread_id="1")


def test_one_answer_for_several_questions_is_refused(drive: Any, executor: str) -> None:
    """Nobody guesses which is meant."""
    flow = asking(executor)
    drive.invoke(flow, 3, thread_id="1")

    with pytest.raises(UnknownInterruptError, match=r"3 interrupts wait.*say which one"):
        drive.invoke(flow, Command(resume="yes"), thread_id="1")


def test_a_late_answer_is_an_error(drive: Any, executor: str) -> None:
    """A question that was answered, or never asked, cannot be answered."""
    flow = asking(executor)
    asked = drive.invoke(flow, 1, thread_id="1")["__interrupt__"]
    answer = Command(resume={asked[0].id: "yes"})
    assert ["0: yes"] == drive.invoke(flow, answer, thread_id="1")

    with pytest.raises(UnknownInterruptError, match=asked[0].id):
        drive.invoke(flow, answer, thread_id="1")
    with pytest.raises(UnknownInterruptError, match="nothing to resume"):
        drive.invoke(flow, Command(resume="yes"), thread_id="2")


def test_questions_do_not_lose_the_results_of_tasks_in_flight(
    drive: Any, executor: str, counted: Any
) -> None:
    """The body asks while tasks run; they finish and are recorded."""
    work = counted(lambda n: time.sleep(0.01) or n)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        futures = task(work).map(range(n))
        answer = interrupt("go on?")
        return answer, [future.result() for future in futures]

    drive.invoke(flow, 3, thread_id="1")

    assert [0, 1, 2] == sorted(work.seen)
    assert ("yes", [0, 1, 2]) == drive.invoke(flow, Command(resume="yes"), thread_id="1")
    assert 3 == len(work.seen)


def test_an_edit_of_the_state_is_what_the_next_run_finds(drive: Any) -> None:
    """``update_state`` acts as the workflow: it sets what it returned and what it saved."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n: int, previous: int = 0) -> int:
        return previous + n

    drive.invoke(flow, 3, thread_id="1")
    flow.update_state({"configurable": {"thread_id": "1"}}, 10)

    assert 10 == flow.get_state(thread_id="1").values
    assert 15 == drive.invoke(flow, 5, thread_id="1")
