"""The stores of code: what they keep, and what makes room for what."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flowpregel._core.commands import call_target_of
from flowpregel._core.records import Node
from flowpregel.executors.processes.coordinator.code_cache import (
    CalledNodes,
    PackedCodes,
)
from flowpregel.executors.processes.wire.node_code import (
    KEPT_BYTES,
    ReceivedCode,
    RecentlyUsed,
    pack_node,
)

LARGE = 1 << 20


def node_of(function: Any, name: str = "work") -> Node:
    return Node(name=name, steps=(call_target_of(function),))


def closure(size: int, number: int = 0) -> Any:
    """Return a function that holds that many bytes."""
    table = number.to_bytes(size, "little")
    return lambda: len(table)


# ------------------------------------------------ room


def test_the_least_recently_used_entry_goes_first() -> None:
    """To ask for an entry is to use it."""
    entries: RecentlyUsed[str, int] = RecentlyUsed(10)
    assert [] == entries.put("a", 1, 4)
    assert [] == entries.put("b", 2, 4)
    assert 1 == entries.get("a")

    assert ["b"] == entries.put("c", 3, 4)
    assert (None, 8, 2) == (entries.get("b"), entries.size, len(entries))


def test_an_entry_that_is_replaced_counts_once() -> None:
    """And is the newest."""
    entries: RecentlyUsed[str, int] = RecentlyUsed(10)
    entries.put("a", 1, 4)
    entries.put("b", 1, 4)
    entries.put("a", 2, 6)

    assert (10, 2) == (entries.size, len(entries))
    assert ["b", "a"] == entries.put("c", 3, 10)


def test_the_newest_entry_is_kept_however_large_it_is() -> None:
    """There would be nothing to work with."""
    entries: RecentlyUsed[str, int] = RecentlyUsed(10)
    entries.put("a", 1, 4)

    assert ["a"] == entries.put("b", 2, 1000)
    assert 2 == entries.get("b")
    assert ["b"] == entries.put("c", 3, 1)
    assert 1 == entries.size


def test_small_entries_are_bounded_by_number() -> None:
    """Each of them takes more than its bytes."""
    entries: RecentlyUsed[int, int] = RecentlyUsed()
    for number in range(5000):
        entries.put(number, number, 1)

    assert 1024 == len(entries) == entries.size


# ------------------------------------------------ packing


def test_code_is_packed_again_only_when_something_has_changed() -> None:
    """The very same bytes serve until then; equal bytes have one record."""
    codes, factor = PackedCodes(), 1
    node = node_of(lambda x: factor * x)

    first = codes.code_of(node)
    assert first is codes.code_of(node)
    first.seconds = 0.5
    factor = 2
    second = codes.code_of(node)
    factor = 1
    third = codes.code_of(node)

    assert first is not second
    assert (first.digest, 0.5, 0.5) == (third.digest, second.seconds, third.seconds)


def test_a_method_is_known_by_its_function_and_its_object() -> None:
    """Each access to it makes a new method; equal callables are not the same."""
    codes = PackedCodes()
    first, second = [1, 2], [1, 2]

    # a builtin method
    node, _ = codes.of_function(first.__class__.append.__get__(first))
    other, _ = codes.of_function(second.append)
    assert node is not other

    class Model:
        def predict(self) -> None: ...

    model = Model()
    assert codes.of_function(model.predict)[0] is codes.of_function(model.predict)[0]
    assert (
        codes.of_function(model.predict)[0] is not codes.of_function(Model().predict)[0]
    )


def test_packings_are_bounded_by_bytes() -> None:
    """Though there are few of them."""
    codes = PackedCodes()
    functions = [closure(LARGE, number) for number in range(100)]
    for function in functions:
        codes.of_function(function)

    assert KEPT_BYTES - 2 * LARGE <= codes.size <= KEPT_BYTES


def test_a_large_value_that_a_function_takes_along_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the way out."""
    codes, table, number = PackedCodes(), bytes(3 * LARGE), 1
    node = node_of(lambda: (table, number), "fit")

    with caplog.at_level(logging.WARNING, "flowpregel.worker"):
        codes.code_of(node)
        number = 2
        codes.code_of(node)

    (record,) = caplog.records
    assert (
        "the code of 'fit' is 3.1 MB, most of it 'table' (bytes)" in record.getMessage()
    )
    assert "with shared(table)" in record.getMessage()


class Fitted:
    """Holds what it has learned."""

    def __init__(self) -> None:
        self.weights = bytes(2 * LARGE)

    def predict(self) -> int:
        return len(self.weights)


def test_so_is_one_that_the_object_of_a_method_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The attribute is named."""
    PackedCodes().of_function(Fitted().predict)

    assert [
        "'weights' (bytes)" in record.getMessage() for record in caplog.records
    ] == [True]


# ------------------------------------------------ unpacking


def test_a_node_is_unpickled_again_when_its_last_call_has_changed_it() -> None:
    """Otherwise it is the same one."""
    count = 0

    def counter() -> int:
        nonlocal count
        count += 1
        return count

    counting = ReceivedCode(pack_node(node_of(counter)))
    pure = ReceivedCode(pack_node(node_of(lambda: count)))

    assert [1, 1, 1] == [counting.node().steps[0].func() for _ in range(3)]  # type: ignore[misc]
    assert pure.node() is pure.node()


def test_large_code_is_not_kept_twice() -> None:
    """Its bytes are, and it is unpickled for each call."""
    code = ReceivedCode(pack_node(node_of(closure(2 * LARGE))))

    assert code.node() is not code.node()


def test_calls_of_one_code_have_one_node() -> None:
    """Known by the bytes; those are bounded."""
    nodes = CalledNodes()
    data = pack_node(node_of(closure(1)), called=True)

    assert nodes.node_of(data) is nodes.node_of(bytes([*data]))
    for number in range(100):
        nodes.node_of(pack_node(node_of(closure(LARGE, number)), called=True))
    assert KEPT_BYTES >= nodes._received.size  # noqa: SLF001 - what the test is about
