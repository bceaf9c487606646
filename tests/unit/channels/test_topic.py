"""`Topic`, cell by cell, and its de-duplication."""

from typing import Any

import numpy as np
import pytest

from flowpregel.channels import Topic
from flowpregel.channels.base import MISSING
from flowpregel.errors import EmptyChannelError


def test_a_new_topic_is_empty() -> None:
    topic = Topic(int)

    assert not topic.is_available()
    assert not topic.update([])
    assert MISSING is topic.checkpoint()
    with pytest.raises(EmptyChannelError):
        topic.get()


@pytest.mark.parametrize(
    ("writes", "items"),
    [
        ([1, 2], [1, 2]),
        ([[1, 2], 3], [1, 2, 3]),
        ([[[1], [2]]], [[1], [2]]),
        ([(1, 2)], [(1, 2)]),
        ([None], [None]),
        ([1, 1], [1, 1]),
    ],
)
def test_lists_are_flattened_by_one_level_and_nothing_else_is(
    writes: list[Any], items: list[Any]
) -> None:
    topic = Topic(object)

    assert topic.update(writes)

    assert items == topic.get()
    assert topic.is_available()


def test_a_superstep_replaces_what_the_one_before_wrote() -> None:
    topic = Topic(int)
    topic.update([1])

    assert topic.update([2])
    assert topic.get() == [2]
    assert topic.update([])
    assert not topic.is_available()
    assert not topic.update([[]])


def test_an_empty_list_empties_it_too() -> None:
    topic = Topic(int).from_checkpoint([1])

    assert topic.update([[]])

    assert not topic.is_available()


def test_an_accumulating_topic_grows() -> None:
    topic = Topic(int, accumulate=True)
    topic.update([1])

    assert not topic.update([])
    assert not topic.update([[]])
    assert topic.update([1, 2])

    assert topic.get() == [1, 1, 2]


@pytest.mark.parametrize("accumulate", [False, True])
def test_what_it_hands_out_is_not_its_own_list(accumulate: bool) -> None:
    saved = [1]
    topic = Topic(int, accumulate=accumulate).from_checkpoint(saved)

    topic.get().append(2)
    topic.checkpoint().append(2)
    topic.update([9])

    assert saved == [1]
    assert topic.get()[-1] == 9
    assert 2 not in topic.get()


def test_nobody_can_consume_or_finish_it() -> None:
    topic = Topic(int).from_checkpoint([1])

    assert not topic.consume()
    assert not topic.finish()


class TestUnique:
    def test_a_superstep_has_each_item_once(self) -> None:
        topic = Topic(str, unique=True)

        topic.update(["b", ["a", "b"], "a"])

        assert topic.get() == ["b", "a"]

    def test_the_next_superstep_may_repeat_the_last(self) -> None:
        topic = Topic(str, unique=True)
        topic.update(["a"])

        assert topic.update(["a"])

        assert topic.get() == ["a"]

    def test_an_accumulating_topic_remembers_all(self) -> None:
        topic = Topic(str, unique=True, accumulate=True)
        topic.update(["a"])

        assert topic.update(["b", "a"])
        assert not topic.update(["a", "b"])

        assert topic.get() == ["a", "b"]

    def test_a_restored_topic_remembers_too(self) -> None:
        topic = Topic(str, unique=True, accumulate=True).from_checkpoint(["a"])

        assert not topic.update(["a"])
        assert not topic.copy().update(["a"])

    def test_items_that_cannot_be_hashed_are_compared(self) -> None:
        topic = Topic(dict, unique=True)

        topic.update([{"a": 1}, {"b": 1}, {"a": 1}, 1, 1])

        assert topic.get() == [{"a": 1}, {"b": 1}, 1]

    def test_arrays_are_compared_by_content(self) -> None:
        topic = Topic(object, unique=True)
        array = np.arange(3)

        topic.update([array, array, np.arange(3), np.arange(3) + 1, [[1]]])

        assert [list(item) for item in topic.get()] == [[0, 1, 2], [1, 2, 3], [1]]


def test_an_old_langgraph_pair_is_read() -> None:
    assert Topic(str).from_checkpoint(({"a", "b"}, ["b"])).get() == ["b"]


def test_restored_topics_keep_their_settings_and_name() -> None:
    topic = Topic(str, unique=True, accumulate=True)
    topic.key = "log"

    restored = topic.from_checkpoint(MISSING)

    assert (restored.key, restored.unique, restored.accumulate) == ("log", True, True)


def test_its_types_are_of_lists_and_items() -> None:
    assert list[int] == Topic(int).ValueType
    assert int | list[int] == Topic(int).UpdateType


def test_declarations_differ_by_their_settings() -> None:
    assert Topic(int) == Topic(int)
    assert Topic(int) != Topic(int, unique=True)
    assert Topic(int) != Topic(int, accumulate=True)
