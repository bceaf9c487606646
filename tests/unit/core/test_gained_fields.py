"""The fields that a class may have gained since a call with an object of it was
recorded.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pydantic
import pytest

from flowpregel._pickling.digest import earlier_digests
from flowpregel._pickling.gained_fields import MOST_DIGESTS, choices, defaults_of


@dataclasses.dataclass
class Record:
    needed: int
    plain: int = 1
    made: list[int] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    needed: int
    plain: int = 1


class Model(pydantic.BaseModel):
    needed: int
    plain: int = 1
    made: list[int] = pydantic.Field(default_factory=list)


class Plain:
    plain = 1


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (Record, {"plain": 1, "made": []}),
        (Pair, {"plain": 1}),
        (Model, {"plain": 1, "made": []}),
        (Plain, {}),
        (tuple, {}),
    ],
)
def test_only_fields_with_a_default_may_have_been_gained(
    kind: type, defaults: dict[str, Any]
) -> None:
    """Of data classes, named tuples, and models of pydantic."""
    assert defaults == {name: make() for name, make in defaults_of(kind).items()}


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (Record(2), 3),
        (Record(2, made=[1]), 1),
        (Record(2, plain=3, made=[1]), 0),
        ([Record(2), Record(2, plain=3)], 1),
        (Pair(2), 1),
        (Pair(2, 3), 0),
        (Model(needed=2), 3),
        (Model(needed=2, made=[1]), 1),
        (1, 0),
    ],
)
def test_a_field_that_has_its_default_may_be_left_out(value: Any, count: int) -> None:
    """In each object of its class, and with others of them or without."""
    digests = [*earlier_digests(value, "the value")]

    assert count == len(digests) == len({*digests})


def test_the_latest_field_is_left_out_first() -> None:
    """Then others alone, then the last ones together."""
    assert [{"b"}, {"a"}, {"a", "b"}] == [
        choice[Record] for choice in choices({Record: ["a", "b"]})
    ]


def test_the_fields_of_two_classes_are_left_out_together_or_not() -> None:
    """Never none of both: that is the digest of now."""
    found = [
        {kind.__name__: {*names} for kind, names in choice.items() if names}
        for choice in choices({Record: ["a"], Pair: ["b"]})
    ]

    assert 3 == len(found)
    for choice in (
        {"Record": {"a"}},
        {"Pair": {"b"}},
        {"Record": {"a"}, "Pair": {"b"}},
    ):
        assert choice in found


def test_no_more_than_so_many_are_tried() -> None:
    """Twenty fields have a million subsets."""
    fields = [str(number) for number in range(20)]

    assert MOST_DIGESTS == len([*choices({Record: fields})])
