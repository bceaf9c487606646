"""Digests: equal content is equal, in every process; different content is not."""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import decimal
import enum
import functools
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._pickling.digest import (
    SharedSpace,
    arguments_digest,
    digest_of,
    have_equal_content,
    space_of,
)
from flowpregel.errors import ConfigurationError


def digest(value: Any) -> str:
    return digest_of(value, "the value", strict=True)


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


PART = [1, 2]

SAME = [
    ([PART, PART], [[1, 2], [1, 2]]),
    ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    ({1: "x", (2,): "y"}, {(2,): "y", 1: "x"}),
    ({"a", "b", "c", 1}, {1, "c", "b", "a"}),
    (Point([1], {"k": 2}), Point([1], {"k": 2})),
    (np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3)),
    (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T),
    (pathlib.PurePosixPath("a/b"), pathlib.PurePosixPath("a") / "b"),
    (datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 2)),
    (bytearray(b"ab"), bytearray(b"a") + b"b"),
    (functools.partial(max, 1), functools.partial(max, 1)),
]

DIFFERENT: list[Any] = [
    0,
    0.0,
    -0.0,
    False,
    None,
    "",
    b"",
    (),
    [],
    {},
    set(),
    frozenset(),
    bytearray(),
    0j,
    "0",
    "a",
    b"a",
    ["a"],
    ("a",),
    {"a"},
    {"a": None},
    [["a"]],
    [["a"], []],
    [[], ["a"]],
    [1, 2],
    [12],
    ["1", "2"],
    ["12"],
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {1: 2},
    {2: 1},
    Point(1),
    Point(2),
    Color.RED,
    Color.BLUE,
    Point,
    Color,
    decimal.Decimal("1"),
    decimal.Decimal("1.0"),
    np.zeros(2),
    np.zeros(2, int),
    np.zeros((2, 1)),
    np.zeros((1, 2)),
    datetime.date(2024, 1, 2),
    2**100,
    -(2**100),
    "\ud800",
    float("nan"),
    float("inf"),
    len,
    sum,
    os.path.join,
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_content_has_one_digest(one: Any, other: Any) -> None:
    """Identity, order of dicts and sets, and layout in memory do not count."""
    assert digest(one) == digest(other)


def test_different_content_has_different_digests() -> None:
    """No two of fifty values that are alike in some way."""
    digests = {digest(value): value for value in DIFFERENT}

    assert len(DIFFERENT) == len(digests)


def test_values_without_content_have_no_equal_content() -> None:
    """One lock is no other, although both are locks."""
    assert have_equal_content([1], [1])
    assert not have_equal_content([1], [2])
    assert not have_equal_content(threading.Lock(), threading.Lock())


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_digests_are_equal_if_and_only_if_the_written_values_are(
    one: Any, other: Any
) -> None:
    """For plain values ``repr`` tells content apart, but for the order of dicts."""

    def canonical(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                "dict": sorted(
                    (key, repr(canonical(item))) for key, item in value.items()
                )
            }
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(canonical, value)]
        return value

    assert (digest(one) == digest(other)) == (
        repr(canonical(one)) == repr(canonical(other))
    )


def test_a_value_that_contains_itself_has_a_digest() -> None:
    """Where it does counts."""
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [1]
    other.append([1, other])

    assert digest(loop) == digest(loop)
    assert digest(loop) != digest(other)


def test_a_value_that_is_nested_too_deeply_is_refused_by_what_it_is() -> None:
    """Not with a traceback of a thousand lines."""
    nested: list[Any] = []
    for _ in range(2000):
        nested = [nested]

    with pytest.raises(
        ConfigurationError, match="the arguments of task 'a' are nested too"
    ):
        digest_of(nested, "the arguments of task 'a'", strict=False)


def test_digests_are_the_same_in_another_process() -> None:
    """Even where text hashes differently."""
    program = (
        "from flowpregel._code.digest import code_digest\n"
        "from flowpregel._pickling.digest import digest_of\n"
        "def f(x): return [y for y in x if y not in {1, 2, 'a'}]\n"
        "print(digest_of({'a': {'x', 'y', 'z'}, 1: 2.5}, '', strict=True), "
        "code_digest(f).digest)\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }

    assert 1 == len(found)


def test_a_lock_has_no_content() -> None:
    """Strictly that is an error; otherwise its type stands for it."""
    with pytest.raises(
        ConfigurationError, match=r"the value cannot be compared by content.*lock"
    ):
        digest([threading.Lock()])

    loose = [digest_of([threading.Lock(), n], "", strict=False) for n in (1, 1, 2)]
    assert loose[0] == loose[1] != loose[2]


def test_where_an_error_was_raised_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`tblib`, if something imports it, has errors pickle their tracebacks."""
    before = digest(ValueError("bad", 3))

    def with_place(error: ValueError) -> tuple[Any, ...]:
        return ValueError, error.args, {"place": "line 3"}

    monkeypatch.setitem(copyreg.dispatch_table, ValueError, with_place)

    assert before == digest(ValueError("bad", 3))
    assert before != digest(ValueError("bad", 4))


def test_plain_arguments_and_others_are_told_apart() -> None:
    """The short way for plain arguments makes no digest that the long way makes."""
    calls = [
        ((1, "a"), {}),
        (((1, "a"),), {}),
        ((), {"a": 1}),
        (("a", 1), {}),
        ((1,), {"a": 1}),
    ]

    assert len(calls) == len(
        {arguments_digest(args, kwargs, "") for args, kwargs in calls}
    )


# what a cache is shared under ----------------------------------------------


def adder(k: Any) -> Any:
    return lambda n: n + k


def test_what_a_function_closes_over_is_told_by_its_content() -> None:
    """Two that close over equal values share results, others do not."""
    assert space_of("task", [adder([1])]) == space_of("task", [adder([1])])
    assert space_of("task", [adder(1)]) != space_of("task", [adder(2)])
    assert space_of("task", [adder(1)], "v1") == space_of("task", [adder(2)], "v1")


def test_functions_that_close_over_themselves_have_a_space() -> None:
    """Recursion among local functions ends."""

    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert space_of("task", [even]) != space_of("task", [odd])


class Multiplier:
    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, n: int) -> int:
        return self.k * n

    def method(self, n: int) -> int:
        return self.k * n


@pytest.mark.parametrize(
    "make",
    [Multiplier, lambda k: Multiplier(k).method, lambda k: functools.partial(max, k)],
)
def test_callables_of_other_kinds_are_told_by_what_they_carry(make: Any) -> None:
    """Objects, bound methods, partials."""
    assert space_of("task", [make(1)]) == space_of("task", [make(1)])
    assert space_of("task", [make(1)]) != space_of("task", [make(2)])


def test_within_a_run_a_constant_has_the_content_of_its_first_call() -> None:
    """A list that the calls fill makes no other namespace of each; the next run reads
    it again.
    """
    rows: list[int] = []
    space = SharedSpace("task", [lambda n: [*rows, n]])
    first = space.now("run")

    rows.append(1)

    assert first == space.now("run")
    assert first != space.now("another run")
    assert first != space.now()


def test_constants_that_cannot_change_are_not_read_again() -> None:
    """Neither for the next call nor for the next run."""
    space = SharedSpace("task", [lambda n: n + 1])

    assert space.now() is space.now() is space.now("run")


class Model(pydantic.BaseModel):
    x: int
    y: int = 0


def test_a_model_counts_by_its_values_whichever_of_them_were_given() -> None:
    """As models of pydantic are equal."""
    assert digest(Model(x=1)) == digest(Model(x=1, y=0))
    assert 3 == len({digest(Model(x=x, y=y)) for x, y in ((1, 0), (2, 0), (1, 2))})
