"""Futures of calls: as arguments of other calls, as what is returned, with errors as
results.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.types import Command
from tests.runs.functional.flows import run
from tests.runs.notes import Notes


@task
def double(n: Any) -> Any:
    """Return twice *n*, which may be a list."""
    return 2 * n


@task
def total(numbers: Any, *, more: Any = (), named: Any = None) -> Any:
    """Return a sum."""
    return sum(numbers) + sum(more) + sum((named or {}).values())


@task
def fail(n: Any) -> Any:
    """Fail."""
    raise OSError(f"bad {n}")


# ---------------------------------------------------------------- as arguments


def test_a_future_among_the_arguments_stands_for_its_result(
    drive: Any, executor: str
) -> None:
    """The call is made when that is there."""

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return double(double(double(n))).result()

    assert 24 == run(drive, flow, 3)


def test_a_coroutine_awaits_a_call_that_waits_for_another(
    drive: Any, executor: str
) -> None:
    """As any call."""

    @entrypoint(executor=executor)
    async def flow(n: int) -> Any:
        return await double(double(n)) + sum(
            await asyncio.gather(*double.map([double(1)]))
        )

    assert 16 == run(drive, flow, 3)


def test_futures_in_a_list_tuple_or_dict_stand_for_their_results(
    drive: Any, executor: str
) -> None:
    """One level deep."""

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        made = double.map(range(n))
        return total(
            made, more=(double(10), 1), named={"a": double(100), "b": 2}
        ).result()

    assert 6 + 21 + 202 == run(drive, flow, 3)


def test_a_task_gives_its_calls_futures_too(drive: Any, executor: str) -> None:
    """Wherever it runs."""

    @task
    def chain(n: int) -> Any:
        return double(double(n)).result()

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return total(chain.map(range(n))).result()

    assert 12 == run(drive, flow, 3)


def test_an_item_of_a_chunk_is_an_argument_too(drive: Any, executor: str) -> None:
    """It is there when its chunk is."""

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return total(double.map(range(n), chunksize=2)).result()

    assert 20 == run(drive, flow, 5)


def test_calls_that_wait_for_others_do_not_hold_up_the_body() -> None:
    """They run side by side, and the body goes on."""
    first = threading.Barrier(2)

    @task
    def meet(n: int) -> int:
        first.wait(30)
        return n

    @entrypoint(executor="threads")
    def flow(n: int) -> Any:
        return total([double(meet(n)), double(meet(n + 1))]).result()

    assert 14 == flow.run(3)


def test_a_call_fails_with_what_it_waits_for(drive: Any, executor: str) -> None:
    """It is not made; a body that catches that has looked at both."""
    seen = Notes()

    @task
    def never(n: int) -> None:
        seen.append(n)

    @entrypoint(executor=executor)
    def flow(n: int) -> str:
        try:
            never(fail(n)).result()
        except OSError as error:
            return str(error)
        return "no error"

    assert "bad 3" == run(drive, flow, 3)
    assert [] == [*seen]


def test_a_failure_below_a_call_that_nobody_looked_at_fails_the_run(
    drive: Any, executor: str
) -> None:
    """As any failure that nobody looked at."""

    @entrypoint(executor=executor)
    def flow(n: int) -> int:
        double(fail(n))
        return n

    with pytest.raises(OSError, match="bad 3"):
        run(drive, flow, 3)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_body_that_has_returned_makes_the_calls_that_wait(
    drive: Any, executor: str, is_async: bool
) -> None:
    """They may have an effect, as those that it did not wait for itself."""
    seen = Notes()

    @task
    def keep(n: int) -> None:
        seen.append(n)

    def plain(n: int) -> int:
        keep(double(double(n)))
        return n

    async def awaited(n: int) -> int:
        return plain(n)

    body: Callable[[int], Any] = awaited if is_async else plain
    assert 3 == run(drive, entrypoint(executor=executor)(body), 3)
    assert [12] == [*seen]


def test_a_body_that_has_failed_makes_no_more_calls(drive: Any) -> None:
    """What waits for others is queued like the rest."""
    seen = Notes()

    @task
    def slow(n: int) -> int:
        time.sleep(0.1)
        return n

    @task
    def keep(n: int) -> None:
        seen.append(n)

    @entrypoint(executor="threads")
    def flow(n: int) -> None:
        keep(slow(n))
        raise KeyError(n)

    with pytest.raises(KeyError):
        run(drive, flow, 3)
    assert [] == [*seen]


def test_calls_that_waited_for_others_are_not_made_again(
    drive: Any, executor: str
) -> None:
    """They are known by what their arguments came to."""
    seen, mended = Notes(), Notes()

    @task
    def note(n: int) -> int:
        seen.append(n)
        return n + 1

    @task
    def last(n: int) -> int:
        if not len(mended):
            raise OSError(n)
        return n

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        return last(note(note(n))).result()

    with pytest.raises(OSError, match="5"):
        run(drive, flow, 3, id="1")
    mended.append("yes")

    assert 5 == run(drive, flow, 3, id="1")
    assert [3, 4] == [*seen]


def test_calls_that_waited_for_others_may_come_in_another_order_the_next_time(
    drive: Any,
) -> None:
    """They are made when those have ended, which is no sign of chance in the body."""
    first_day, late = [True], threading.Event()
    options: Any = {"executor": "threads", "version": "1"}

    @task(**options)
    def slow(n: int) -> int:
        assert not first_day or late.wait(30)
        return n

    @task(**options)
    def quick(n: int) -> int:
        return n

    @task(**options)
    def after_slow(n: int) -> int:
        if first_day:
            raise OSError("not yet")
        return n

    @task(**options)
    def after_quick(n: int) -> int:
        late.set()
        return n

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n: int) -> list[int]:
        one, two = slow(n), quick(n + 1)
        ends = [after_slow(one), after_quick(two)]
        return [future.result() for future in (*ends, quick(n + 2))]

    with pytest.raises(OSError, match="not yet"):
        drive.invoke(flow, 1, thread_id="1")
    first_day.clear()

    assert [1, 2, 3] == drive.invoke(flow, None, thread_id="1")


def test_a_call_that_waits_for_an_answer_holds_up_those_that_wait_for_it(
    drive: Any,
) -> None:
    """They are made when it was answered."""

    @task
    def ask(n: int) -> Any:
        return interrupt(n)

    @entrypoint(checkpointer=InMemorySaver(), executor="threads")
    def flow(n: int) -> Any:
        return double(ask(n)).result()

    assert "__interrupt__" in drive.invoke(flow, 3, thread_id="1")
    assert 14 == drive.invoke(flow, Command(resume=7), thread_id="1")


# ---------------------------------------------------------------- as results


@pytest.mark.parametrize(
    "form",
    [
        lambda future: future,
        lambda future: [future],
        lambda future: (1, future),
        lambda future: {"a": future},
        lambda future: entrypoint.final(value=[future], save=1),
    ],
    ids=["future", "list", "tuple", "dict", "final"],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_workflow_that_returns_futures_is_told_what_to_return(
    drive: Any, executor: str, is_async: bool, form: Callable[[Any], Any]
) -> None:
    """They would be no result to anybody."""

    def plain(n: int) -> Any:
        return form(double(n))

    async def awaited(n: int) -> Any:
        return form(double(n))

    body: Callable[[int], Any] = awaited if is_async else plain
    with pytest.raises(
        TypeError, match=r"return \[future\.result\(\) for future in futures\]"
    ):
        run(drive, entrypoint(executor=executor)(body), 3)


def test_a_task_that_returns_futures_is_told_what_to_return(
    drive: Any, executor: str
) -> None:
    """Also where it need not go to another process."""

    @task
    def outer(n: int) -> Any:
        return [double(n)]

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return outer(n).result()

    with pytest.raises(TypeError, match=r"future\.result\(\)"):
        run(drive, flow, 3)


# ---------------------------------------------------------------- errors as results


@pytest.mark.parametrize("chunksize", [1, 2])
def test_the_errors_of_a_map_can_be_results(
    drive: Any, executor: str, chunksize: int
) -> None:
    """In the place of what failed, also within a chunk."""

    @task
    def halve(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n // 2

    @entrypoint(executor=executor)
    def flow(numbers: list[int]) -> list[str]:
        made = halve.map(numbers, chunksize=chunksize, errors="return")
        return [str(future.result()) for future in made]

    assert ["1", "2", "3 is odd", "5 is odd"] == run(drive, flow, [2, 4, 3, 5])


def test_the_errors_of_a_map_are_what_a_coroutine_awaits(
    drive: Any, executor: str
) -> None:
    """And what other calls are given."""

    @entrypoint(executor=executor)
    async def flow(n: int) -> list[str]:
        made = fail.map(range(n), errors="return")
        return [str(each) for each in await asyncio.gather(*made)]

    assert ["bad 0", "bad 1"] == run(drive, flow, 2)


def test_errors_as_results_are_replayed(drive: Any, executor: str) -> None:
    """The body has seen them: they are part of what it did."""
    seen, mended = Notes(), Notes()

    @task
    def check(n: int) -> int:
        seen.append(n)
        raise OSError(n)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> int:
        found = [future.result() for future in check.map(range(n), errors="return")]
        if not len(mended):
            raise KeyError(n)
        return len(found)

    with pytest.raises(KeyError):
        run(drive, flow, 2, id="1")
    mended.append("yes")

    assert 2 == run(drive, flow, 2, id="1")
    assert [0, 1] == sorted(seen)


def test_a_map_refuses_another_way_of_errors(executor: str) -> None:
    """A word that is mistyped raises errors later, or does not."""

    @entrypoint(executor=executor)
    def flow(n: int) -> Any:
        return double.map([n], errors="retrun")  # type: ignore[call-overload]

    with pytest.raises(ConfigurationError, match="use 'raise' or 'return'"):
        flow.run(1)
