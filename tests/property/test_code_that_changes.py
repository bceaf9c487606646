"""Programs that change what they call between two calls: the same values, wherever it
runs.
"""

from __future__ import annotations

import functools
import multiprocessing
import operator
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task

pytestmark = pytest.mark.slow

few = settings(max_examples=max(10, settings.default.max_examples // 4), deadline=None)
values = st.sampled_from([1, 1.0, True, 0, -0.0, 2, (1, 1.0), "a"])
"""Among them equal ones that are not the same."""

Code = Callable[[int], Any]
Change = Callable[[Any], object]
Pair = tuple[Code, Change]
"""A callable, and what changes it to return another value."""


class Model:
    """Is found by name in a worker; its state is not."""

    def __init__(self) -> None:
        self.w: Any = 1

    def predict(self, x: int) -> Any:
        return self.w, x

    def __call__(self, x: int) -> Any:
        return self.predict(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.w == other.w

    def __hash__(self) -> int:
        return hash(self.w)


def a_name() -> Pair:
    w: Any = 1

    def code(x: int) -> Any:
        return w, x

    def change(value: Any) -> None:
        nonlocal w
        w = value

    return code, change


def a_name_of_a_helper() -> Pair:
    helper, change = a_name()

    def between(x: int) -> Any:
        return helper(x)

    return lambda x: between(x), change  # the closures call each other


def a_helper() -> Pair:
    def helper(x: int) -> Any:
        return 1, x

    def code(x: int) -> Any:
        return helper(x)

    def change(value: Any) -> None:
        nonlocal helper

        def helper(x: int) -> Any:
            return value, x

    return code, change


NAMES = [a_name, a_name_of_a_helper, a_helper]
"""What is bound anew: a call that has not begun is not reached by that."""


def an_item() -> Pair:
    table = {"w": [1]}
    return lambda x: (table["w"][0], x), functools.partial(
        operator.setitem, table["w"], 0
    )


def a_buffer() -> Pair:
    """It can change and remain the same object."""
    table = bytearray(2)
    return lambda x: (bytes(table), x), lambda value: table.__setitem__(
        0, len(str(value))
    )


def a_method() -> Pair:
    model = Model()
    return model.predict, functools.partial(setattr, model, "w")


def an_instance() -> Pair:
    model = Model()
    return model, functools.partial(setattr, model, "w")


def a_partial() -> Pair:
    code = functools.partial(lambda x, w: (w, x), w=1)
    return code, functools.partial(operator.setitem, code.keywords, "w")


def a_default() -> Pair:
    def code(x: int, w: Any = 1) -> Any:
        return w, x

    return code, lambda value: setattr(code, "__defaults__", (value,))


def an_attribute() -> Pair:
    def code(x: int) -> Any:
        return code.w, x  # type: ignore[attr-defined]

    code.w = 1  # type: ignore[attr-defined]
    return code, functools.partial(setattr, code, "w")


def a_local_class() -> Pair:
    class Local:
        w: Any = 1

        def __init__(self, x: int) -> None:
            self.x = x

        @property
        def both(self) -> Any:
            return self.w, self.x

    return lambda x: Local(x).both, functools.partial(setattr, Local, "w")


OBJECTS = [
    an_item,
    a_buffer,
    a_method,
    an_instance,
    a_partial,
    a_default,
    an_attribute,
    a_local_class,
]
"""What is changed itself: in this process it is the caller's own."""


def a_counting_name() -> Pair:
    count, seen = 0, []

    def code(x: int) -> Any:
        nonlocal count
        count += 1
        seen.append(x)
        return count, seen

    def change(value: Any) -> None:
        nonlocal count
        count = len(str(value))

    return code, change


def a_counting_instance() -> Pair:
    class Counter:
        made = 0

        def __init__(self) -> None:
            self.calls: Any = 0

        def __call__(self, x: int) -> Any:
            Counter.made += 1
            self.calls = (self.calls, x)
            return Counter.made, self.calls

    counter = Counter()
    return counter, functools.partial(setattr, counter, "calls")


COUNTERS = [a_counting_name, a_counting_instance]
"""What changes itself: a process has a copy of its own for each call."""


@st.composite
def programs(draw: st.DrawFn, kinds: Sequence[Callable[[], Pair]]) -> list[Any]:
    """Return a program that calls and changes two callables at the most.

    Each step names a kind, and an argument or a value.
    """
    chosen = draw(st.lists(st.sampled_from(range(len(kinds))), min_size=1, max_size=2))
    kind = st.sampled_from(chosen)
    call = st.tuples(st.just("call"), kind, st.integers(0, 2))
    change = st.tuples(st.just("change"), kind, values)
    return draw(st.lists(call | change, min_size=3, max_size=12))


def shown(results: Sequence[Any]) -> list[str]:
    """Return results as text, which tells equal ones apart."""
    return [repr(each) for each in results]


class AtOnce:
    """Is pickled by value when it is made, and becomes that again in another process.

    Args:
        code: A callable that plain pickle may refuse, or that changes before it is
            pickled.
    """

    def __init__(self, code: Code) -> None:
        self._data = cloudpickle.dumps(code)

    def __reduce__(self) -> Any:
        return pickle.loads, (self._data,)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, so that each call meets what the one before has left."""
    with ProcessExecutor(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def stdlib() -> Iterator[Executor]:
    """The standard library's, with one worker too."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


@few
@given(program=programs([*NAMES, *OBJECTS, *COUNTERS]))
def test_functions_of_a_pool_return_what_those_of_the_standard_library_do(
    program: list[Any], pool: ProcessExecutor, stdlib: Executor
) -> None:
    """None is waited for before the next change."""
    pairs = [make() for make in (*NAMES, *OBJECTS, *COUNTERS)]
    ours, theirs = [], []
    for step, kind, value in program:
        code, change = pairs[kind]
        if step == "change":
            change(value)
        else:
            ours.append(pool.submit(code, value))
            theirs.append(stdlib.submit(operator.call, AtOnce(code), value))

    expected = shown([each.result() for each in theirs])
    assert expected == shown([each.result() for each in ours])


@few
@given(program=programs([*NAMES, *OBJECTS]), in_chunks=st.booleans())
def test_tasks_return_what_the_plain_functions_would_have(
    program: list[Any], in_chunks: bool, pool: ProcessExecutor
) -> None:
    """Inline, on OS threads and in processes. A call is waited for where objects are
    shared.
    """
    kinds = [*NAMES, *OBJECTS]

    def run(executor: Any) -> list[Any]:
        @entrypoint(executor=executor)
        def flow(_: int) -> list[Any]:
            pairs = [make() for make in kinds]
            tasks = [task(code, name="work") for code, _ in pairs]
            calls: list[Any] = []
            for step, kind, value in program:
                if step == "change":
                    pairs[kind][1](value)
                    continue
                made = (
                    tasks[kind].map([value] * 2, chunksize=2)
                    if in_chunks
                    else [tasks[kind](value)]
                )
                calls.append(made[-1])
                if executor is not pool and kind >= len(NAMES):
                    calls[-1].result()
            return [each.result() for each in calls]

        return shown(flow.invoke(0))

    pairs = [make() for make in kinds]
    expected: list[Any] = []
    for step, kind, value in program:
        if step == "change":
            pairs[kind][1](value)
        else:
            expected.append(repr(pairs[kind][0](value)))

    assert expected == run("inline")
    assert expected == run("threads")
    assert expected == run(pool)
