"""A call as a person reads it: short, whatever its arguments are."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._text import described


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("repr() was called")


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "f()"),
        ((1, 2.5, None, True), {}, "f(1, 2.5, None, True)"),
        (("a'b", b"c"), {}, """f("a'b", b'c')"""),
        (("x" * 50,), {}, f"f('{'x' * 40}...')"),
        (([],), {"deep": {}}, "f([], deep={})"),
        (
            ([1, 2], {1: 2}, {3}, (4,)),
            {},
            "f(<list of 2>, <dict of 1>, <set of 1>, <tuple of 1>)",
        ),
        ((1, 2, 3, 4, 5), {}, "f(1, 2, 3, 4, ...)"),
        ((2**200,), {}, "f(<int of 201 bits>)"),
        ((Loud(),), {}, "f(<Loud>)"),
    ],
)
def test_a_call_is_described(
    args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    """Plain values are shown, long ones cut, others named by their type."""
    assert text == described("f", args, kwargs)
