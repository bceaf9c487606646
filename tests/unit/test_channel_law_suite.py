"""The channel laws find what is wrong with a channel: one broken channel for each
law.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from flowpregel.channels import BinaryOperatorAggregate, LastValue
from flowpregel.testing.channels import Action, ChannelLaws


class ReadsOnce(LastValue[int]):
    def get(self) -> int:
        value = super().get()
        self.value = value + 1
        return value


class AlwaysThere(LastValue[int]):
    def is_available(self) -> bool:
        return True


class Forgets(LastValue[int]):
    def checkpoint(self) -> Any:
        return 0


class Shrinks(LastValue[int]):
    def update(self, values: Sequence[int]) -> bool:
        self.value = values[-1] if values else 0
        return bool(values)


class Boasts(LastValue[int]):
    def update(self, values: Sequence[int]) -> bool:
        super().update(values)
        return True


class OtherCopy(LastValue[int]):
    def copy(self) -> "OtherCopy":
        return self.from_checkpoint(5)


class SharedCopy(LastValue[int]):
    def copy(self) -> "SharedCopy":
        return self


class Silent(LastValue[int]):
    def update(self, values: Sequence[int]) -> bool:
        super().update(values)
        return False


class SilentFinish(LastValue[int]):
    def finish(self) -> bool:
        self.value = 7
        return False


class SilentConsume(LastValue[int]):
    def consume(self) -> bool:
        self.value = 7
        return False


class FailsLate(LastValue[int]):
    def update(self, values: Sequence[int]) -> bool:
        if values:
            self.value = values[0]
        return super().update(values)


def last_one(value: int, write: int) -> int:
    return write


BROKEN: list[tuple[Any, Sequence[Action], str]] = [
    (ReadsOnce, [[1]], "reading changed it"),
    (AlwaysThere, [], "do not agree when new"),
    (Forgets, [[1]], "its checkpoint restores something else"),
    (Shrinks, [[1]], "an empty update changed it"),
    (Boasts, [], "an empty update reports that it changed it when new"),
    (OtherCopy, [[1]], "its copy is something else"),
    (SharedCopy, [[1]], "it changed with its copy"),
    (Silent, [[1]], r"does not report it at action 1, \[1\]"),
    (SilentFinish, ["finish"], "does not report it at action 1, 'finish'"),
    (SilentConsume, ["consume"], "does not report it at action 1, 'consume'"),
    (FailsLate, [[1, 2]], "it changed although it failed"),
]


@pytest.mark.parametrize(
    ("kind", "history", "law"), BROKEN, ids=[b[0].__name__ for b in BROKEN]
)
def test_a_broken_channel_is_found(
    kind: Any, history: Sequence[Action], law: str
) -> None:
    """The message names the law and the moment."""
    with pytest.raises(AssertionError, match=law):
        ChannelLaws(make=lambda: kind(int)).check(history)


def test_an_order_that_matters_is_found() -> None:
    """Only where the kind is said not to care about it."""
    history: list[Action] = [[1, 2]]
    ChannelLaws(make=lambda: BinaryOperatorAggregate(int, last_one)).check(history)

    laws = ChannelLaws(
        make=lambda: BinaryOperatorAggregate(int, last_one), any_order=True
    )
    with pytest.raises(AssertionError, match="the order of its writes matters"):
        laws.check(history)
