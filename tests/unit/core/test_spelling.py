"""Equal spellings are equal calls, and what is not equal is spelled differently."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.spelling import spelling_of


def plain(x: Any, y: Any = 1, *, deep: Any = False) -> None:
    """Take the usual parameters."""


def by_position(x: Any, y: Any = 1, /, z: Any = 2) -> None:
    """Take two by position alone."""


def many(x: Any, *more: Any, deep: Any = False, **others: Any) -> None:
    """Take any number."""


def injected(x: Any, runtime: Any, y: Any = 1) -> None:
    """Take what the run fills in."""


def spelled(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the spelling of a call."""
    found, named = spelling_of(function).of(args, kwargs)
    return found, dict(named)


@pytest.mark.parametrize(
    ("call", "spelling"),
    [
        (spelled(plain, 0), ((0,), {})),
        (spelled(plain, x=0), ((0,), {})),
        (spelled(plain, 0, 1), ((0,), {})),
        (spelled(plain, y=1, x=0), ((0,), {})),
        (spelled(plain, 0, deep=False), ((0,), {})),
        (spelled(plain, 0, y=2), ((0, 2), {})),
        (spelled(plain, 0, 2), ((0, 2), {})),
        (spelled(plain, 0, deep=True), ((0,), {"deep": True})),
        # A default is compared by content, and with its type.
        (spelled(plain, 0, True), ((0, True), {})),
        (spelled(plain, 0, 1.0), ((0, 1.0), {})),
        (spelled(by_position, 0, z=2), ((0,), {})),
        (spelled(by_position, 0, 1, 3), ((0,), {"z": 3})),
        (spelled(by_position, 0, z=3), ((0,), {"z": 3})),
        (spelled(many, 0), ((0,), {})),
        (spelled(many, 0, 1, 2, deep=False), ((0, 1, 2), {})),
        (spelled(many, 0, deep=True, other=1), ((0,), {"deep": True, "other": 1})),
        (spelled(many, x=0, other=1), ((0,), {"other": 1})),
        (spelled(injected, 0), ((0,), {})),
        (spelled(injected, 0, y=2), ((0,), {"y": 2})),
        (spelled(functools.partial(plain, deep=True), 0), ((0,), {})),
        # These calls fail: they are known as they were written.
        (spelled(plain, 1, 2, 3), ((1, 2, 3), {})),
        (spelled(plain, wrong=1), ((), {"wrong": 1})),
        # There is no signature to be read.
        (spelled(dict.fromkeys, "a", 1), (("a", 1), {})),
    ],
)
def test_a_call_has_one_spelling(call: Any, spelling: Any) -> None:
    """By position as far as that goes, by name after that, and without defaults."""
    assert spelling == call
    assert repr(spelling) == repr(call)


def test_a_parameter_with_a_default_that_is_added_changes_no_call() -> None:
    """So what was recorded before still answers."""

    def before(x: int, deep: bool = False) -> None: ...

    def after(
        x: int, deep: bool = False, mode: str = "a", *, level: int = 0
    ) -> None: ...

    for args, kwargs in (((0,), {}), ((0, True), {}), ((), {"x": 0, "deep": True})):
        assert spelled(before, *args, **kwargs) == spelled(after, *args, **kwargs)


def test_defaults_count_by_content_where_they_have_any() -> None:
    """A list that equals the default is the default; an object without content is
    not.
    """
    nothing = threading.Lock()

    def call(items: Any = [1, 2], lock: Any = nothing, zero: Any = 0.0) -> None: ...  # noqa: B006

    assert ((), {}) == spelled(call, [1, 2])
    assert (([2, 1],), {}) == spelled(call, [2, 1])
    assert ((), {}) == spelled(call, lock=nothing)
    assert ["lock"] == [*spelled(call, lock=threading.Lock())[1]]
    assert "-0.0" == repr(spelled(call, zero=-0.0)[1]["zero"])


SMALL = st.sampled_from([0, 1, True, 1.0, "a", None])


@given(
    values=st.tuples(SMALL, SMALL, SMALL, SMALL),
    more=st.tuples(SMALL, SMALL, SMALL, SMALL),
)
def test_two_calls_have_one_spelling_if_and_only_if_they_pass_the_same(
    values: tuple[Any, ...], more: tuple[Any, ...]
) -> None:
    """However the first of them is spelled: the first few by position, the others by
    name.
    """

    def call(a: Any, b: Any = 0, c: Any = "a", *, d: Any = None) -> None: ...

    def shown(args: tuple[Any, ...]) -> str:
        first, second, third, last = args
        return repr(spelled(call, first, second, third, d=last))

    names = ("a", "b", "c", "d")
    for count in range(4):
        by_name = dict(zip(names[count:], values[count:], strict=True))
        assert shown(values) == repr(spelled(call, *values[:count], **by_name))
    assert (repr(values) == repr(more)) == (shown(values) == shown(more))
