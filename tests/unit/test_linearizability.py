"""The checker of histories finds what cannot have happened, and nothing else."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.linearizability import (
    MODELS,
    Operation,
    is_linearizable,
    queue,
    register,
    thread,
)


def put(value: int, called: int, returned: int | None) -> Operation:
    """Return a put of an item."""
    return Operation(("put", value), called, returned)


def get(value: int | None, called: int, returned: int) -> Operation:
    """Return a get that returned *value*."""
    return Operation(("get",), called, returned, value)


def test_operations_one_after_the_other_are_explained() -> None:
    assert is_linearizable(
        [put(1, 0, 1), get(1, 2, 3), put(2, 4, 5), get(2, 6, 7)], register
    )


def test_a_value_that_is_lost_is_found() -> None:
    assert not is_linearizable([put(1, 0, 1), get(None, 2, 3)], register)


def test_an_old_value_that_comes_back_is_found() -> None:
    """As if a commit had been repeated over another."""
    history = [put(1, 0, 9), put(2, 2, 3), get(2, 4, 5), get(1, 6, 7), get(2, 10, 11)]

    assert not is_linearizable(history, register)
    assert is_linearizable(history[:-1], register)


def test_operations_at_the_same_time_may_come_in_any_order() -> None:
    assert is_linearizable([put(1, 0, 9), put(2, 1, 8), get(1, 10, 11)], register)
    assert is_linearizable([put(1, 0, 9), put(2, 1, 8), get(2, 10, 11)], register)


@pytest.mark.parametrize("value", [0, 1])
def test_what_is_unknown_may_have_happened_or_not(value: int) -> None:
    assert is_linearizable([put(0, 0, 1), put(1, 2, None), get(value, 3, 4)], register)


def test_what_is_unknown_may_happen_late_but_once() -> None:
    late = [put(0, 0, 1), put(1, 2, None), get(0, 3, 4), put(2, 5, 6), get(1, 7, 8)]

    assert is_linearizable(late, register)
    assert not is_linearizable([*late, put(3, 9, 10), get(1, 11, 12)], register)


def test_what_is_unknown_cannot_happen_before_it_is_called() -> None:
    assert not is_linearizable([get(1, 0, 1), put(1, 2, None)], register)


def test_a_thread_that_is_deleted_twice_is_found() -> None:
    history = [
        Operation(("commit", 1), 0, 1),
        Operation(("delete",), 2, 9),
        Operation(("load",), 3, 4, None),
        Operation(("commit", 2), 5, 6),
        Operation(("load",), 10, 11, None),
    ]

    assert not is_linearizable(history, thread)
    assert is_linearizable(history[:2] + history[3:], thread)


def test_a_signal_that_is_there_twice_is_found() -> None:
    sent, received = Operation(("send", 1), 0, 5), Operation(("receive",), 6, 7, 1)

    assert is_linearizable([sent, received, Operation(("receive",), 8, 9, None)], queue)
    assert not is_linearizable(
        [sent, received, Operation(("receive",), 8, 9, 1)], queue
    )


def test_very_many_unknown_operations_end() -> None:
    """What was tried is kept in mind: it is not 2 to the power of 60 orders."""
    many = [put(0, number, None) for number in range(60)]

    assert not is_linearizable([*many[:16], get(1, 70, 71)], register)
    assert is_linearizable([*many, get(0, 70, 71)], register)


VALUES = st.integers(0, 2)
ACTIONS = {
    "item": st.one_of(
        st.tuples(st.just("put"), VALUES), st.sampled_from([("delete",), ("get",)])
    ),
    "thread": st.one_of(
        st.tuples(st.just("commit"), VALUES), st.sampled_from([("delete",), ("load",)])
    ),
    "signals": st.one_of(st.tuples(st.just("send"), VALUES), st.just(("receive",))),
}


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[Operation]]:
    """Return the kind of an object, and a short history of it, true or not."""
    kind = draw(st.sampled_from(sorted(ACTIONS)))
    history = []
    for _ in range(draw(st.integers(1, 5))):
        action = draw(ACTIONS[kind])
        called = draw(st.integers(0, 8))
        returned = draw(st.one_of(st.none(), st.integers(called + 1, called + 5)))
        reads = action[0] in ("get", "load", "receive")
        result = draw(st.one_of(st.none(), st.integers(0, 2))) if reads else None
        history.append(Operation(action, called, returned, result))
    return kind, history


@given(histories())
def test_the_search_finds_what_trying_all_orders_finds(
    drawn: tuple[str, list[Operation]],
) -> None:
    kind, history = drawn

    assert is_linearizable(history, MODELS[kind]) == is_explained_by_an_order(
        history, kind
    )


def is_explained_by_an_order(history: list[Operation], kind: str) -> bool:
    """Return whether one of all orders of all sets with what is known explains the
    results.
    """
    unknown = [each for each in history if each.returned is None]
    known = [each for each in history if each.returned is not None]
    for chosen in range(1 << len(unknown)):
        some = [each for at, each in enumerate(unknown) if chosen >> at & 1]
        if any(is_explained(order, kind) for order in permutations([*known, *some])):
            return True
    return False


def is_explained(order: tuple[Operation, ...], kind: str) -> bool:
    """Return whether an order keeps to the times, and explains the results."""
    state: Any = None
    for at, operation in enumerate(order):
        later = order[at + 1 :]
        if any(
            each.returned is not None and each.returned < operation.called
            for each in later
        ):
            return False
        state, result = MODELS[kind](state, operation.action)
        if operation.returned is not None and result != operation.result:
            return False
    return True
