"""A resumed body that makes other calls than before is told; and calls nobody waits
for.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import CodeChangedError, ReplayMismatchError, RunNotice
from flowpregel.func import entrypoint, task
from tests.runs.crashes import Once

# ---------------------------------------------------------------- divergence


def diverging(executor: str, calls: list[Any]) -> Any:
    """Return a workflow whose first attempt crashes, and that makes other calls each
    time.
    """
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
        (
            (double, [1, 2]),
            (double, [3, 2]),
            r"recorded: double\(1\).*\n.*now: +double\(3\)",
        ),
        (
            (double, [1, 2]),
            (negate, [1, 2]),
            r"recorded: double\(1\).*\n.*now: +negate\(1\)",
        ),
        ((double, [[1, 2]]), (double, [[1, 3]]), r"double\(<list of 2>\)"),
    ],
    ids=["argument", "function", "content"],
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


def test_the_same_calls_in_another_order_get_their_own_results(
    drive: Any, executor: str
) -> None:
    """A call is known by what was asked: none gets the result of another."""
    flow = diverging(executor, [(double, [1, 2]), (double, [2, 1])])
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")

    assert [4, 2] == drive.invoke(flow, None, thread_id="1")


def test_equal_calls_are_told_apart_by_which_of_them_they_are(
    drive: Any, executor: str, counted: Any
) -> None:
    """Two calls that ask for the same are two calls, before a crash and after it."""
    work, crash = counted(), Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        results = [task(work)(n).result() for _ in range(2)]
        crash()
        return [*results, task(work)(n).result()]

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 7, thread_id="1")

    assert [7, 7, 7] == drive.invoke(flow, None, thread_id="1")
    assert [7, 7, 7] == work.seen


def crashed_with(drive: Any, executor: str, **options: Any) -> Any:
    """Return a maker of workflows with a given code of a task, on a thread that was
    left.
    """
    saver = InMemorySaver()

    def flow_of(work: Any, **others: Any) -> Any:
        @entrypoint(checkpointer=saver, executor=executor)
        def flow(n: int) -> int:
            result = task(name="work", **(options | others))(work)(n).result()
            crash()
            return result

        return flow

    crash = Once(OSError("crash"))
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow_of(lambda n: n + 1), 3, thread_id="1")
    return flow_of


def test_a_result_of_other_code_is_kept_with_a_notice(
    drive: Any, executor: str
) -> None:
    """Recorded is recorded; the user is told once, by name and number."""
    flow = crashed_with(drive, executor)(lambda n: n + 2)

    with pytest.warns(RunNotice) as told:
        assert 4 == drive.invoke(flow, None, thread_id="1")
    (of_code, of_calls) = (str(each.message) for each in told)
    assert of_code.startswith("work: 1 result was computed by other code")
    assert of_calls.endswith("1 answered from the record, 0 executed, 0 not made again")


def test_a_result_of_other_code_is_made_anew_where_that_is_asked(
    drive: Any, executor: str
) -> None:
    """By the run or by the task; what was made anew is recorded too."""
    flow = crashed_with(drive, executor)(lambda n: n + 2, on_code_change="rerun")
    with pytest.warns(RunNotice, match="0 answered from the record, 1 executed"):
        assert 5 == drive.invoke(flow, None, thread_id="1")

    flow = crashed_with(drive, executor)(lambda n: n + 2)
    with pytest.warns(RunNotice, match="0 answered from the record, 1 executed"):
        assert 5 == drive.invoke(flow, None, thread_id="1", on_code_change="rerun")


def test_a_result_of_other_code_is_an_error_where_that_is_asked(
    drive: Any, executor: str
) -> None:
    """It names the call and the ways to go on."""
    flow = crashed_with(drive, executor)(lambda n: n + 2)

    with pytest.raises(CodeChangedError, match=r"'work'.*work\(3\).*'keep'.*'rerun'"):
        drive.invoke(flow, None, thread_id="1", on_code_change="error")


def test_a_version_stands_for_the_code(drive: Any, executor: str) -> None:
    """The same version is the same code, whatever it says; another one is other
    code.
    """
    flow_of = crashed_with(drive, executor, version="v1")

    with pytest.raises(CodeChangedError, match="version"):
        drive.invoke(
            flow_of(lambda n: n + 2, version="v2"),
            None,
            thread_id="1",
            on_code_change="error",
        )
    # its body is another
    with pytest.warns(RunNotice, match="1 answered from the record"):
        assert 4 == drive.invoke(flow_of(lambda n: n + 2), None, thread_id="1")


def test_os_threads_that_race_for_their_calls_get_their_own_results(
    drive: Any, executor: str
) -> None:
    """A body that makes its calls in another order is answered all the same."""
    order, crash = [0, 1, 2, 3], Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(_: Any) -> list[int]:
        results = {}
        for n in order:  # each in an OS thread of its own, one after another
            context = contextvars.copy_context()
            with ThreadPoolExecutor(1) as pool:
                results[n] = pool.submit(
                    context.run, lambda n=n: double(n).result()
                ).result()
        crash()
        return [results[n] for n in sorted(results)]

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")
    order.reverse()

    assert [0, 2, 4, 6] == drive.invoke(flow, None, thread_id="1")


@pytest.mark.parametrize("is_edited", [True, False])
def test_a_task_that_makes_calls_is_known_by_its_code_too(
    drive: Any, is_edited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of it is a change if its code was edited, and chance if it was
    not.
    """
    saver = InMemorySaver()

    def fails(n: int) -> int:
        double(int(os.environ["NUMBER"])).result()
        raise OSError("crash")

    def edited(n: int) -> int:
        return double(int(os.environ["NUMBER"])).result() + 100

    def flow_of(outer: Any) -> Any:
        @entrypoint(checkpointer=saver, executor="threads")
        def flow(n: int) -> int:
            return task(name="outer")(outer)(n).result()

        return flow

    monkeypatch.setenv("NUMBER", "1")
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow_of(fails), 0, thread_id="1")
    monkeypatch.setenv("NUMBER", "2")

    if is_edited:
        with pytest.warns(RunNotice, match="0 answered from the record, 2 executed"):
            assert 104 == drive.invoke(flow_of(edited), None, thread_id="1")
    else:
        with pytest.raises(ReplayMismatchError, match=r"double\(1\).*\n.*double\(2\)"):
            drive.invoke(flow_of(fails), None, thread_id="1")


@pytest.mark.parametrize("word", ["rerum", "", None])
def test_another_way_to_meet_other_code_is_refused(word: Any) -> None:
    """Three words are known."""
    with pytest.raises(ValueError, match="on_code_change"):
        diverging("inline", []).invoke(1, thread_id="1", on_code_change=word)


# tasks nobody waits for ----------------------------------------------------


def test_tasks_that_nobody_waits_for_finish(
    drive: Any, executor: str, counted: Any
) -> None:
    """They belong to the run, which ends when they have."""
    work = counted()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> str:
        task(work).map(range(n))
        return "done"

    assert "done" == drive.invoke(flow, 5, thread_id="1")
    assert [0, 1, 2, 3, 4] == sorted(work.seen)


def test_their_failures_are_raised_at_the_end(
    drive: Any, executor: str, counted: Any
) -> None:
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
