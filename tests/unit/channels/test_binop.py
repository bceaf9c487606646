"""`BinaryOperatorAggregate`: folding, overwriting, and what goes wrong."""

import collections.abc
import operator
import threading
from typing import Annotated, Any, Required

import pytest

from flowpregel.channels import BinaryOperatorAggregate, Overwrite
from flowpregel.channels.base import MISSING
from flowpregel.errors import ConfigurationError, EmptyChannelError, InvalidUpdateError


def total(value: int = 0) -> BinaryOperatorAggregate[int]:
    channel = BinaryOperatorAggregate(int, operator.add).from_checkpoint(value)
    channel.key = "total"
    return channel


def test_writes_are_folded_in_order() -> None:
    channel = BinaryOperatorAggregate(str, operator.add)

    assert channel.update(["a", "b"])
    assert channel.update(["c"])
    assert not channel.update([])

    assert "abc" == channel.get() == channel.checkpoint()


@pytest.mark.parametrize(
    ("typ", "start"),
    [
        (int, 0),
        (list[int], []),
        (collections.abc.Sequence, []),
        (collections.abc.MutableSequence[int], []),
        (collections.abc.Set[int], set()),
        (collections.abc.MutableSet, set()),
        (collections.abc.Mapping[str, int], {}),
        (collections.abc.MutableMapping, {}),
        (Annotated[list[int], "meta"], []),
        (Required[Annotated[collections.abc.Sequence[int], "meta"]], []),
    ],
)
def test_it_starts_with_what_its_type_makes(typ: Any, start: Any) -> None:
    channel = BinaryOperatorAggregate(typ, operator.add)

    assert channel.is_available()
    assert start == channel.get()


@pytest.mark.parametrize("typ", [int | None, Any, collections.abc.Callable])
def test_a_type_that_makes_nothing_starts_empty(typ: Any) -> None:
    """Then the first write is the value."""
    channel = BinaryOperatorAggregate(typ, operator.add)

    assert not channel.is_available()
    assert MISSING is channel.checkpoint()
    with pytest.raises(EmptyChannelError):
        channel.get()
    assert channel.update([2, 3])
    assert channel.get() == 5


def test_a_type_may_refuse_in_any_way_it_likes() -> None:
    class Fussy:
        def __init__(self) -> None:
            raise LookupError

    assert not BinaryOperatorAggregate(Fussy, operator.add).is_available()


OVERWRITES = [
    Overwrite(10),
    {"__overwrite__": 10},
    {"type": "__overwrite__", "value": 10},
    {"value": 10, "type": "__overwrite__"},
]


@pytest.mark.parametrize("overwrite", OVERWRITES, ids=str)
def test_an_overwrite_is_the_value_whatever_else_is_written(overwrite: Any) -> None:
    channel = total(7)

    assert channel.update([1, overwrite, 2])

    assert channel.get() == 10


@pytest.mark.parametrize("overwrite", OVERWRITES, ids=str)
def test_an_overwrite_that_comes_first_is_unwrapped(overwrite: Any) -> None:
    channel = BinaryOperatorAggregate(int | None, operator.add)

    channel.update([overwrite, 1])

    assert channel.get() == 10


@pytest.mark.parametrize(
    "write",
    [
        {"__overwrite__": 1, "more": 2},
        {"type": "__overwrite__"},
        {"type": "__overwrite__", "values": 1},
        {"type": "other", "value": 1},
        {"type": 1, "value": 1},
        {"a": 1},
        {},
    ],
    ids=str,
)
def test_other_dicts_are_plain_writes(write: dict[str, Any]) -> None:
    channel = BinaryOperatorAggregate(dict, operator.or_)
    channel.update([{"was": 0}])

    channel.update([write])

    assert {"was": 0, **write} == channel.get()


def test_none_can_be_the_new_value() -> None:
    channel = total(7)

    channel.update([Overwrite(None)])

    assert channel.get() is None


def test_two_overwrites_are_refused_with_name_and_remedy() -> None:
    channel = total(7)

    with pytest.raises(
        InvalidUpdateError, match=r"'total': .* one Overwrite .* several; let one"
    ):
        channel.update([Overwrite(1), 2, {"__overwrite__": 3}])

    assert channel.get() == 7


def test_a_reducer_that_raises_changes_nothing_and_is_told_where() -> None:
    """The error stays the user's own."""
    channel = total(7)

    with pytest.raises(TypeError) as caught:
        channel.update([1, "two", 3])

    assert (caught.value.__notes__) == [
        "raised by the reducer of channel 'total', at write 2 of 3 of this superstep"
    ]
    assert channel.get() == 7


def test_the_write_is_counted_from_the_first_also_when_that_is_the_start() -> None:
    channel = BinaryOperatorAggregate(int | None, operator.add)

    with pytest.raises(TypeError) as caught:
        channel.update([1, "two"])

    assert "at write 2 of 2" in caught.value.__notes__[0]
    assert not channel.is_available()


def test_a_reducer_has_to_be_callable() -> None:
    with pytest.raises(
        ConfigurationError, match=r"a reducer is a function .* not 'add'"
    ):
        BinaryOperatorAggregate(int, "add")  # type: ignore[arg-type]


def test_a_copy_is_safe_from_a_reducer_that_works_in_place() -> None:
    saved = [1]
    channel = BinaryOperatorAggregate(list, operator.iadd).from_checkpoint(saved)

    channel.copy().update([[2]])

    assert [1] == channel.get() == saved


def test_an_overwrite_is_safe_from_a_reducer_that_works_in_place() -> None:
    mine = [1]
    channel = BinaryOperatorAggregate(list, operator.iadd)
    channel.update([Overwrite(mine)])

    channel.update([[2]])

    assert mine == [1]
    assert channel.get() == [1, 2]


def test_what_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()

    assert (
        lock
        is BinaryOperatorAggregate(object, operator.add).from_checkpoint(lock).get()
    )


def test_it_keeps_its_name_and_start_when_restored_from_nothing() -> None:
    restored = total().from_checkpoint(MISSING)

    assert (restored.key, restored.get()) == ("total", 0)


def test_nobody_can_consume_or_finish_it() -> None:
    assert not total().consume()
    assert not total().finish()


class TestSameDeclaration:
    def test_the_same_reducer_twice_is_the_same_channel(self) -> None:
        assert total() == total()
        assert BinaryOperatorAggregate(list[int], operator.add) != total()
        assert BinaryOperatorAggregate(int, operator.mul) != total()

    def test_lambdas_are_the_same_if_their_code_is(self) -> None:
        def channel(reducer: Any) -> BinaryOperatorAggregate[int]:
            return BinaryOperatorAggregate(int, reducer)

        assert channel(lambda a, b: a + b) == channel(lambda a, b: a + b)
        assert channel(lambda a, b: a + b) != channel(lambda a, b: a * b)
        assert channel(lambda a, b: a + b) != channel(operator.add)
        assert channel(lambda a, b: a + b + 1) != channel(lambda a, b: a + b + 2)
        assert channel(lambda a, b, c=1: a) != channel(lambda a, b, c=2: a)

    def test_lambdas_that_hold_variables_are_themselves_alone(self) -> None:
        def scaled(factor: int) -> BinaryOperatorAggregate[int]:
            return BinaryOperatorAggregate(int, lambda a, b: a + factor * b)

        one = scaled(1)

        assert scaled(2) != one
        assert one.copy() == one
