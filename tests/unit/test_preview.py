"""Previews: any value as JSON, small, and without what a terminal would obey."""

from __future__ import annotations

import json
import math
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flowpregel._inspection.preview import FULL, PreviewLimits, one_line, to_json
from flowpregel._text import printable


@dataclass
class Point:
    x: int
    y: object


class RudeText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


class RudeItems(UserDict[str, int]):
    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __repr__(self) -> str:
        return "RudeItems()"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, None, True, 2.5, "ä"]}, {"a": [1, None, True, 2.5, "ä"]}),
        ((1, (2,)), [1, [2]]),
        ({1: "one"}, {"1": "one"}),
        (Point(1, Point(2, 3)), {"x": 1, "y": {"x": 2, "y": 3}}),
        (ValueError("no"), {"type": "ValueError", "message": "no"}),
        (math.inf, "inf"),
        (b"ab", "b'ab' (2 bytes)"),
        (RudeText("a"), "a"),
        (Rude(), "<Rude, whose text raises RuntimeError>"),
        (RudeItems(), "RudeItems()"),
    ],
)
def test_a_small_value_is_shown_whole(value: Any, expected: Any) -> None:
    assert expected == to_json(value)


def test_items_are_limited_in_number() -> None:
    assert [0, 1, "… 8 more"] == to_json(list(range(10)), PreviewLimits(count=2))


def test_levels_are_limited() -> None:
    assert [["… list of 1"]] == to_json([[[[1]]]], PreviewLimits(depth=2))


def test_texts_are_limited_in_size() -> None:
    assert "aaa… (97 more)" == to_json("a" * 100, PreviewLimits(size=3))


def test_a_wide_and_deep_value_is_limited_in_all() -> None:
    wide = [[[0] * 12 for _ in range(12)] for _ in range(12)]

    assert len(json.dumps(to_json(wide))) < 5_000


def test_a_value_that_contains_itself_is_cut_off_even_in_full() -> None:
    loop: list[Any] = []
    loop.append(loop)

    assert "… list of 1" in json.dumps(to_json(loop, FULL), ensure_ascii=False)


def test_objects_that_know_each_other_are_shown_in_full_at_once() -> None:
    """Each way through them would be another, and there are more than can be
    counted.
    """
    root = Point(0, [])
    root.y = [Point(n, root) for n in range(3)]
    child = {"x": 0, "y": "… Point of 2"}

    assert to_json(root, FULL) == {"x": 0, "y": [{**child, "x": n} for n in range(3)]}


def test_what_is_there_twice_is_shown_twice() -> None:
    part = [1]

    assert [[1], [1]] == to_json([part, part], FULL)


def test_an_int_too_long_to_print_is_described() -> None:
    assert "an int of 20,001 bits" == to_json(1 << 20_000)


def test_a_line_holds_nothing_that_a_terminal_obeys() -> None:
    assert "\\x1b[2J\\x9b" == printable("\x1b[2J\x9b")
    assert one_line("\x1b]0;title\x07").isprintable()
