"""Futures of calls that are used as if they were results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowpregel.func import entrypoint
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

    with pytest.raises(TypeError, match=r"write future\.result\(\) \(in async code: await"):
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
    """They are kept in sets, dicts and lists: a future equals itself and no other future."""

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
