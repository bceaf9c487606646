"""What `BaseChannel` gives a kind that brings only the four methods it must."""

from collections.abc import Sequence
from typing import Any, Self

from flowpregel.channels import BaseChannel
from flowpregel.channels.base import MISSING
from flowpregel.errors import EmptyChannelError
from flowpregel.testing.channels import ChannelLaws


class Largest(BaseChannel[int, int]):
    """Keeps the largest number ever written."""

    __slots__ = ("value",)
    reacts_to_silence = False

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
        self.value: int | None = None

    def update(self, values: Sequence[int]) -> bool:
        before = self.value
        if values:
            self.value = max(values if before is None else (*values, before))
        return self.value != before

    def get(self) -> int:
        if self.value is None:
            raise EmptyChannelError(self.key)
        return self.value

    def from_checkpoint(self, saved: Any) -> Self:
        new = type(self)(self.typ, self.key)
        new.value = None if saved is MISSING else saved
        return new


def test_it_is_a_whole_channel() -> None:
    ChannelLaws(make=lambda: Largest(int), any_order=True).check(
        [[], [2], [1], [5, 3], "consume", "finish", [None, 1]]
    )


def test_an_empty_one_is_not_available_and_saves_nothing() -> None:
    assert not Largest(int).is_available()
    assert Largest(int).checkpoint() is MISSING
    assert repr(MISSING) == "MISSING"


def test_equal_declarations_are_one() -> None:
    assert {Largest(int), Largest(bool)} == {Largest(bool), Largest(int), Largest(int)}
    assert Largest(int) != Largest(bool)


def test_a_kind_reacts_to_silence_unless_it_says_otherwise() -> None:
    """So that a kind that forgets to say so is visited too often, never too seldom."""
    assert BaseChannel.reacts_to_silence
