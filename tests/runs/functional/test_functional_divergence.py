"""A resumed body that makes other calls than before is told; and calls nobody waits for."""

from __future__ import annotations

import asyncio
import contextvars
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ReplayMismatchError
from flowpregel.func import entrypoint, task
from tests.runs.crashes import Once

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


def test_os_threads_that_race_for_their_calls_are_told(drive: Any, executor: str) -> None:
    """A body that makes its calls in another order is no stale result, but a divergence."""
    order, crash = [0, 1, 2, 3], Once(OSError("crash"))

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(_: Any) -> list[int]:
        results = {}
        for n in order:  # each in an OS thread of its own, one after another
            context = contextvars.copy_context()
            with ThreadPoolExecutor(1) as pool:
                results[n] = pool.submit(context.run, lambda n=n: double(n).result()).result()
        crash()
        return [results[n] for n in sorted(results)]

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")
    order.reverse()

    with pytest.raises(ReplayMismatchError, match=r"double\(0\)[^$]*double\(3\)"):
        drive.invoke(flow, None, thread_id="1")
    assert [0, 2, 4, 6] == drive.invoke(flow, None, thread_id="1", on_mismatch="rerun")


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
