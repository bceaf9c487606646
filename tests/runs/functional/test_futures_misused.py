"""Futures of calls that are used as if they were results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from tests.runs.functional.flows import double


@pytest.mark.parametrize(
    "use",
    [
        lambda future: future + 1,
        lambda future: 1 + future,
        lambda future: 2 * future,
        lambda future: future / 2,
        lambda future: -future,
        lambda future: sum([future]),
        lambda future: max([future, future]),
        lambda future: sorted([future, future]),
        lambda future: future < 3,
        lambda future: "yes" if future else "no",
        lambda future: not future,
        lambda future: list(future),
        lambda future: len(future),
        lambda future: future[0],
        lambda future: 3 in future,
        lambda future: f"{future}",
        lambda future: int(future),
        lambda future: float(future),
        lambda future: range(future),
        lambda future: "a" * future,
        lambda future: [1, 2][future],
        lambda future: round(future),
        lambda future: future == 6,
        lambda future: future == None,  # noqa: E711 - that is the mistake
        lambda future: 6 == future,
        lambda future: future != 6,
        lambda future: 6 != future,
        lambda future: future in [1, 2],
        lambda future: 6 in [future],
        lambda future: [future].index(6),
        lambda future: [6].count(future),
        lambda future: (future, 1) == (6, 1),
    ],
)
@pytest.mark.parametrize("chunksize", [1, 2])
def test_a_future_that_is_used_as_its_result_says_what_to_write(
    chunksize: int, use: Callable[[Any], Any]
) -> None:
    """Whatever it is used for."""

    @entrypoint(executor="inline")
    def flow(n: int) -> Any:
        (future,) = double.map([n], chunksize=chunksize)
        try:
            return use(future)
        finally:
            future.result()

    with pytest.raises(
        TypeError, match=r"write future\.result\(\) \(in async code: await"
    ):
        flow.run(1)


def test_an_attribute_of_a_result_is_not_one_of_its_future() -> None:
    """The message names the attribute."""

    @entrypoint(executor="inline")
    def flow(n: int) -> Any:
        future: Any = double(n)
        future.result()
        return future.upper()

    with pytest.raises(AttributeError, match=r"write future\.result\(\)\.upper"):
        flow.run(1)


def test_a_future_is_shown_as_one() -> None:
    """Printing one is no mistake."""

    @entrypoint(executor="inline")
    def flow(n: int) -> str:
        future = double(n)
        future.result()
        return str(future)

    assert "CallFuture" in flow.run(1)


@pytest.mark.parametrize("chunksize", [1, 2])
def test_futures_are_told_apart_by_identity(chunksize: int) -> None:
    """They are kept in sets, dicts and lists: a future equals itself and no other
    future.
    """

    @entrypoint(executor="inline")
    def flow(n: int) -> Any:
        first, second = double.map([n, n], chunksize=chunksize)
        names = {first: "first", second: "second"}
        compared = [
            first == first,
            first == second,
            first != second,
            first in [second],
            [second, first].index(first),
            len({first, second, first}),
            names[second],
        ]
        return compared, first.result(), second.result()

    assert ([True, False, True, False, 1, 2, "second"], 2, 2) == flow.run(1)


@dataclass
class Box:
    """Holds something."""

    content: Any


@task
def count(items: Any, *, scale: Any = 1) -> int:
    """Return the number of items."""
    return len(items)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (lambda future: ([1, 2, 3, [future]],), "argument 'items', at items[3][0]:"),
        (lambda future: ([{"k": future}],), "argument 'items', at items[0]['k']:"),
        (lambda future: ([], Box(future)), "argument 'scale', at scale.content:"),
    ],
)
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_future_inside_of_an_argument_is_named_with_its_place(
    executor: str, arguments: Callable[[Any], Any], where: str
) -> None:
    """It stands for its result at the top of an argument, and directly in a
    container.
    """

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        items, *scale = arguments(double(n))
        return count(items, **dict(zip(["scale"], scale, strict=False))).result()

    with pytest.raises(TypeError, match=r"write future\.result\(\)") as refused:
        flow.run(1)
    assert f"task 'count' got a future in {where}" in str(refused.value)


def test_a_future_inside_of_an_argument_is_named_by_a_worker_process_too() -> None:
    """Without a checkpointer arguments are first looked at when they are sent."""

    @entrypoint(executor="processes")
    def flow(n: int) -> Any:
        return count([[double(n)]]).result()

    with pytest.raises(TypeError, match=r"argument 'items', at items\[0\]\[0\]"):
        flow.run(1)


@entrypoint
def study(n: int) -> int:
    """Return *n*."""
    return n


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (
            lambda: double.submit(1),
            "task 'double' has no attribute 'submit': .*write double",
        ),
        (lambda: double.delay(1), "'delay': a call starts at once: write double"),
        (lambda: double.starmap([(1,)]), "write double.map"),
        (lambda: double.mapp([1]), "has no attribute 'mapp'. Did you mean 'map'"),
        (
            lambda: study.map([1]),
            "workflow 'study' has no attribute 'map': write study.batch",
        ),
        (lambda: study.submit(1), "write study.start"),
        (lambda: study.streem(1), "Did you mean 'stream'"),
    ],
)
def test_what_other_libraries_write_is_answered_with_what_to_write_here(
    use: Callable[[], Any], says: str
) -> None:
    """Tasks and workflows name what does the same."""
    with pytest.raises(AttributeError, match=says):
        use()
