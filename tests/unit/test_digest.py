"""Digests: equal content is equal, in every process; different content is not."""

from __future__ import annotations

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
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.digest import arguments_digest, code_digest, digest_of, home_of
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
    0, 0.0, -0.0, False, None, "", b"", (), [], {}, set(), frozenset(), bytearray(), 0j,
    "0", "a", b"a", ["a"], ("a",), {"a"}, {"a": None}, [["a"]], [["a"], []], [[], ["a"]],
    [1, 2], [12], ["1", "2"], ["12"], {"a": 1, "b": 2}, {"a": 2, "b": 1}, {1: 2}, {2: 1},
    Point(1), Point(2), Color.RED, Color.BLUE, Point, Color, decimal.Decimal("1"),
    decimal.Decimal("1.0"), np.zeros(2), np.zeros(2, int), np.zeros((2, 1)), np.zeros((1, 2)),
    datetime.date(2024, 1, 2), 2**100, -(2**100), "\ud800", float("nan"), float("inf"),
    len, sum, os.path.join,
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_content_has_one_digest(one: Any, other: Any) -> None:
    """Identity, order of dicts and sets, and layout in memory do not count."""
    assert digest(one) == digest(other)


def test_different_content_has_different_digests() -> None:
    """No two of fifty values that are alike in some way."""
    digests = {digest(value): value for value in DIFFERENT}

    assert len(DIFFERENT) == len(digests)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_digests_are_equal_if_and_only_if_the_written_values_are(one: Any, other: Any) -> None:
    """For plain values ``repr`` tells content apart, but for the order of dicts."""

    def canonical(value: Any) -> Any:
        if isinstance(value, dict):
            return {"dict": sorted((key, repr(canonical(item))) for key, item in value.items())}
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(canonical, value)]
        return value

    assert (digest(one) == digest(other)) == (repr(canonical(one)) == repr(canonical(other)))


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

    with pytest.raises(ConfigurationError, match="the arguments of task 'a' are nested too"):
        digest_of(nested, "the arguments of task 'a'", strict=False)


def test_digests_are_the_same_in_another_process() -> None:
    """Even where text hashes differently."""
    program = (
        "from flowpregel._core.digest import digest_of, code_digest\n"
        "def f(x): return [y for y in x if y not in {1, 2, 'a'}]\n"
        "print(digest_of({'a': {'x', 'y', 'z'}, 1: 2.5}, '', strict=True), code_digest(f))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip

    assert 1 == len(found)


def test_a_lock_has_no_content() -> None:
    """Strictly that is an error; otherwise its type stands for it."""
    with pytest.raises(ConfigurationError, match=r"the value cannot be told apart.*lock"):
        digest([threading.Lock()])

    loose = [digest_of([threading.Lock(), n], "", strict=False) for n in (1, 1, 2)]
    assert loose[0] == loose[1] != loose[2]


def test_plain_arguments_and_others_are_told_apart() -> None:
    """The short way for plain arguments makes no digest that the long way makes."""
    calls = [((1, "a"), {}), (((1, "a"),), {}), ((), {"a": 1}), (("a", 1), {}), ((1,), {"a": 1})]

    assert len(calls) == len({arguments_digest(args, kwargs, "") for args, kwargs in calls})


# ---------------------------------------------------------------- code


def adder(k: Any) -> Any:
    return lambda n: n + k


def documented(n: int) -> int:
    """Add one."""
    return n + 1


def undocumented(n: int) -> int:
    return n + 1


def test_docstrings_and_lines_are_not_code() -> None:
    """Moving a function or describing it changes nothing."""
    assert code_digest(documented) == code_digest(undocumented)


def test_another_constant_is_other_code() -> None:
    """And so is another operation, and code in an inner function."""
    codes: list[Any] = [
        lambda n: n + 1,
        lambda n: n + 2,
        lambda n: n - 1,
        lambda n: n + 1.0,
        lambda n: [m + 1 for m in n],
        lambda n: [m + 2 for m in n],
        lambda n: n.a,
        lambda n: n.b,
    ]

    assert len(codes) == len({code_digest(code) for code in codes})


def test_what_a_function_closes_over_is_its_state() -> None:
    """It counts only where state is asked for: it may change while a program runs."""
    assert code_digest(adder(1)) == code_digest(adder([]))
    assert code_digest(adder(1), with_state=True) != code_digest(adder(2), with_state=True)
    assert code_digest(adder([1]), with_state=True) == code_digest(adder([1]), with_state=True)


def test_functions_that_a_function_closes_over_are_its_code() -> None:
    """A decorated function is told from another one that is decorated the same."""

    def decorated(func: Any) -> Any:
        return lambda n: func(n)

    one, other = decorated(lambda n: n + 1), decorated(lambda n: n + 2)

    assert code_digest(one) != code_digest(other)


def test_functions_that_close_over_themselves_have_a_digest() -> None:
    """Recursion among local functions ends."""

    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert code_digest(even) != code_digest(odd)


class Multiplier:
    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, n: int) -> int:
        return self.k * n

    def method(self, n: int) -> int:
        return self.k * n


@pytest.mark.parametrize(
    "make", [Multiplier, lambda k: Multiplier(k).method, lambda k: functools.partial(max, k)]
)
def test_callables_of_other_kinds_have_code_and_state(make: Any) -> None:
    """Objects, bound methods, partials."""
    assert code_digest(make(1)) == code_digest(make(2))
    assert code_digest(make(1), with_state=True) == code_digest(make(1), with_state=True)
    assert code_digest(make(1), with_state=True) != code_digest(make(2), with_state=True)


def test_a_function_of_the_main_program_is_at_home_in_its_file() -> None:
    """Every main program is called ``__main__``: the calls of two are not each other's."""

    def called() -> None: ...

    called.__module__ = "__main__"
    module, name = home_of(functools.partial(called))

    assert f"__main__:{getattr(sys.modules['__main__'], '__file__', '')}" == module
    assert name.endswith("called")
