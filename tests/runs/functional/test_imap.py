"""`task.imap`: results as they come, of items that are taken as there is room for their
calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flowpregel import Command, interrupt
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, RunNotice, TaskCancelled
from flowpregel.func import entrypoint, task
from flowpregel.policies import CachePolicy
from tests.runs.crashes import Once
from tests.runs.notes import Notes


@task
def double(n: int) -> int:
    return 2 * n


@task
async def double_later(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def sync_flow(called: Any, executor: str, checkpointer: Any = None, **how: Any) -> Any:
    @entrypoint(executor=executor, checkpointer=checkpointer)
    def flow(count: int) -> list[int]:
        return list(called.imap(range(count), **how))

    return flow


def async_flow(called: Any, executor: str, checkpointer: Any = None, **how: Any) -> Any:
    @entrypoint(executor=executor, checkpointer=checkpointer)
    async def flow(count: int) -> list[int]:
        return [each async for each in called.imap(range(count), **how)]

    return flow


MAKE = pytest.mark.parametrize(
    "make", [sync_flow, async_flow], ids=["sync body", "async body"]
)


@MAKE
@pytest.mark.parametrize(
    "called", [double, double_later], ids=["sync task", "async task"]
)
@pytest.mark.parametrize("window", [1, 3, None])
@pytest.mark.parametrize("chunksize", [1, 4])
def test_results_come_in_the_order_of_the_items(
    drive: Any,
    executor: str,
    make: Callable[..., Any],
    called: Any,
    window: Any,
    chunksize: int,
) -> None:
    """Whatever the window, and where the last chunk is shorter."""
    flow = make(called, executor, window=window, chunksize=chunksize)

    assert [0, 2, 4, 6, 8, 10, 12, 14, 16] == drive.invoke(flow, 9)


@MAKE
@pytest.mark.parametrize("saver", [None, InMemorySaver], ids=["volatile", "durable"])
def test_each_result_comes_once_without_order(
    drive: Any, executor: str, make: Callable[..., Any], saver: Any
) -> None:
    """Whatever the order in which the calls end."""
    checkpointer = saver and saver()
    flow = make(double, executor, checkpointer, ordered=False, window=4, chunksize=2)

    assert [2 * n for n in range(21)] == sorted(drive.invoke(flow, 21, thread_id="1"))


def test_items_are_taken_when_there_is_room_for_their_calls(
    drive: Any, executor: str
) -> None:
    """So the iterator may be endless, and what it yields need not fit into memory."""
    taken = []

    def items() -> Iterator[int]:
        for n in count():
            taken.append(n)
            yield n

    @entrypoint(executor=executor)
    def flow(_: int) -> list[tuple[int, int]]:
        seen = []
        for result in double.imap(items(), window=3):
            seen.append((result, len(taken)))
            if result == 8:
                break
        return seen

    assert [(0, 3), (2, 4), (4, 5), (6, 6), (8, 7)] == drive.invoke(flow, 0)


def test_several_iterables_give_several_arguments(drive: Any, executor: str) -> None:
    """They have to be equally long, which shows when the shortest is at its end."""

    @task
    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    @entrypoint(executor=executor)
    def flow(_: int) -> list[int]:
        with pytest.raises(ValueError, match="zip"):
            list(power.imap([1], [2, 3], window=1))
        return list(power.imap([2, 3, 4], [3, 2, 1], chunksize=2))

    assert [8, 9, 4] == drive.invoke(flow, 0)


@task
def inverse(n: int) -> float:
    return 1 / n


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failure_is_raised_where_its_result_would_be(
    drive: Any, executor: str, ordered: bool
) -> None:
    """The stream is over then."""

    @entrypoint(executor=executor)
    def flow(_: int) -> tuple[int, list[float]]:
        stream = iter(inverse.imap([1, 2, 0, 4], window=1, ordered=ordered))
        seen = [next(stream), next(stream)]
        with pytest.raises(ZeroDivisionError):
            next(stream)
        return len(list(stream)), seen

    assert (0, [1.0, 0.5]) == tuple(drive.invoke(flow, 0))


@MAKE
@pytest.mark.parametrize(
    ("chunksize", "expected"),
    [(1, [1.0, 0.5, "zero", 0.25]), (2, [1.0, 0.5, "zero", 0.25])],
)
def test_failures_can_be_results(
    drive: Any, executor: str, make: Any, chunksize: int, expected: list[Any]
) -> None:
    """One for each item, so that results and items can be told apart by their order."""

    def shown(result: Any) -> Any:
        return "zero" if isinstance(result, ZeroDivisionError) else result

    @entrypoint(executor=executor)
    def flow(_: int) -> list[Any]:
        return [
            *map(
                shown, inverse.imap([1, 2, 0, 4], chunksize=chunksize, errors="return")
            )
        ]

    @entrypoint(executor=executor)
    async def async_flow(_: int) -> list[Any]:
        stream = inverse.imap([1, 2, 0, 4], chunksize=chunksize, errors="return")
        return [shown(each) async for each in stream]

    assert expected == drive.invoke(flow if make is sync_flow else async_flow, 0)


def test_without_order_the_first_that_ends_comes_first(
    drive: Any, tmp_path: Path
) -> None:
    """A run that goes on sees them in that order too, though by then all have ended."""
    first_came, ran, crash = threading.Event(), Notes(), Once(OSError("crash"))

    @task(executor="threads")
    def wait(n: int) -> int:
        if n == 0:
            assert first_came.wait(60)
        ran.append(n)
        return n

    @entrypoint(checkpointer=tmp_path / "store")
    def flow(_: int) -> list[int]:
        seen = []
        for n in wait.imap([0, 1], ordered=False):
            seen.append(n)
            first_came.set()
        crash()
        return seen

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 0, thread_id="1")

    assert [1, 0] == drive.invoke(flow, None, thread_id="1")
    assert [1, 0] == ran


@pytest.mark.parametrize("ordered", [True, False])
def test_a_run_that_is_stopped_ends_the_loop(ordered: bool, tmp_path: Path) -> None:
    """Though its calls have not ended, and will not be told."""
    began, ended, release = threading.Event(), threading.Event(), threading.Event()

    @task(executor="threads")
    def wait(n: int) -> int:
        began.set()
        assert release.wait(60)
        return n

    @entrypoint(checkpointer=tmp_path / "store")
    def flow(count: int) -> int:
        try:
            return sum(wait.imap(range(count), ordered=ordered))
        finally:
            ended.set()

    handle = flow.start(3, id="1")
    assert began.wait(60)
    handle.cancel()
    assert ended.wait(60)
    release.set()

    with pytest.raises(TaskCancelled):
        handle.result(60)


@MAKE
def test_what_a_run_saw_before_it_stopped_it_sees_again(
    drive: Any, executor: str, make: Any, tmp_path: Path
) -> None:
    """However its calls raced, and although it stopped in the middle."""
    saw: list[list[int]] = []

    def see(result: int) -> None:
        saw[-1].append(result)
        if len(saw[-1]) == 20 * len(saw):
            raise OSError("crash")

    @entrypoint(executor=executor, checkpointer=tmp_path / "store")
    def flow(count: int) -> int:
        saw.append([])
        for result in double.imap(range(count), window=7, chunksize=2, ordered=False):
            see(result)
        return count

    @entrypoint(executor=executor, checkpointer=tmp_path / "store")
    async def async_flow(count: int) -> int:
        saw.append([])
        async for result in double.imap(
            range(count), window=7, chunksize=2, ordered=False
        ):
            see(result)
        return count

    chosen: Any = flow if make is sync_flow else async_flow
    for _ in range(2):
        with pytest.raises(OSError, match="crash"):
            drive.invoke(chosen, None if saw else 50, thread_id="1")
    drive.invoke(chosen, None, thread_id="1")

    first, second, third = saw
    assert first == second[:20]
    assert second == third[:40]
    assert [2 * n for n in range(50)] == sorted(third)


def test_calls_that_were_recorded_by_a_map_are_not_made_again(
    drive: Any, tmp_path: Path
) -> None:
    """Chunks and items are the same calls as those of `map`."""
    ran, crash, how = Notes(), Once(OSError("crash")), ["map"]

    @task(executor="threads")
    def note(n: int) -> int:
        ran.append(n)
        return n

    @entrypoint(checkpointer=tmp_path / "store")
    def flow(count: int) -> int:
        if how == ["map"]:
            total = sum(each.result() for each in note.map(range(count), chunksize=3))
        else:
            total = sum(note.imap(range(count), chunksize=3))
        crash()
        return total

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 10, thread_id="1")
    how[0] = "imap"

    assert 45 == drive.invoke(flow, None, thread_id="1")
    assert list(range(10)) == sorted(ran)


def test_what_is_counted_are_the_calls_of_tasks(tmp_path: Path) -> None:
    """Not the questions in which order they ended; neither when a run goes on, nor
    before.
    """
    crash = Once(OSError("crash"))

    @entrypoint(executor="threads", checkpointer=tmp_path / "store")
    def flow(count: int) -> int:
        total = sum(double.imap(range(count), ordered=False, window=2))
        crash()
        return total

    with pytest.raises(OSError, match="crash"):
        flow.run(6, id="1")
    plan = flow.plan(7, id="1", adopt=True)

    assert (6, {"double": 1}, 0) == (plan.answered, plan.would_run, plan.not_asked)
    with pytest.warns(
        RunNotice, match="6 answered from the record, 1 executed, 0 not made again"
    ):
        assert 42 == flow.run(7, id="1", adopt=True)


@task
def ask(n: int) -> int:
    return int(interrupt("how many?")) if n == 2 else n


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_may_ask(
    drive: Any, executor: str, ordered: bool, tmp_path: Path
) -> None:
    """The run stops, and goes on with the answer."""

    @entrypoint(executor=executor, checkpointer=tmp_path / "store")
    def flow(count: int) -> int:
        return sum(ask.imap(range(count), ordered=ordered, window=2))

    drive.invoke(flow, 5, thread_id="1")

    assert 108 == drive.invoke(flow, Command(resume=100), thread_id="1")


@task
def below(count: int, ordered: bool) -> list[int]:
    return list(double.imap(range(count), window=3, ordered=ordered))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_task_may_map_too(
    drive: Any, executor: str, ordered: bool, tmp_path: Path
) -> None:
    """Wherever it runs."""

    @entrypoint(executor=executor, checkpointer=tmp_path / "store")
    def flow(count: int) -> list[int]:
        return sorted(below(count, ordered).result())

    assert [0, 2, 4, 6, 8, 10, 12] == drive.invoke(flow, 7, thread_id="1")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"window": 0}, "window=0"),
        ({"window": 2.5}, "window=2.5"),
        ({"chunksize": 0}, "chunksize=0"),
        ({"errors": "ignore"}, "errors='ignore'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    drive: Any, how: dict[str, Any], message: str
) -> None:
    """By name, and before anything is called."""

    @entrypoint(executor="inline")
    def flow(_: int) -> None:
        double.imap([1], **how)

    with pytest.raises(ConfigurationError, match=rf"imap\({message}"):
        drive.invoke(flow, 0)


def test_a_task_that_shares_its_results_is_not_mapped_in_chunks(drive: Any) -> None:
    """They are shared call by call."""
    cached = double.with_options(cache_policy=CachePolicy())

    @entrypoint(executor="inline")
    def flow(_: int) -> None:
        cached.imap([1], chunksize=2)

    with pytest.raises(ConfigurationError, match="shares its results"):
        drive.invoke(flow, 0)


def test_outside_of_a_run_nothing_is_mapped() -> None:
    """At once, not when the first result is asked for."""
    with pytest.raises(RuntimeError, match="outside of a run"):
        double.imap([1])
