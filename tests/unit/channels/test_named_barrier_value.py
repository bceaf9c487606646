"""`NamedBarrierValue` and `NamedBarrierValueAfterFinish`, cell by cell."""

from typing import Any

import pytest

from flowpregel.channels import NamedBarrierValue, NamedBarrierValueAfterFinish
from flowpregel.channels.base import MISSING
from flowpregel.errors import ConfigurationError, EmptyChannelError, InvalidUpdateError

NAMES = {"left", "right"}


def barrier(*seen: str) -> NamedBarrierValue[str]:
    channel = NamedBarrierValue(str, NAMES)
    channel.key = "join"
    return channel.from_checkpoint(set(seen))


def late(finished: bool, *seen: str) -> NamedBarrierValueAfterFinish[str]:
    return NamedBarrierValueAfterFinish(str, NAMES).from_checkpoint(
        (set(seen), finished)
    )


def test_it_waits_for_all_of_its_names() -> None:
    channel = barrier()

    assert channel.update(["left"])
    with pytest.raises(EmptyChannelError, match="'join'"):
        channel.get()
    assert channel.update(["left", "right"])

    assert channel.is_available()
    assert channel.get() is None


def test_only_new_names_are_a_change() -> None:
    channel = barrier("left")

    assert not channel.update([])
    assert not channel.update(["left", "left"])


@pytest.mark.parametrize("write", ["middle", None, ["left"]])
def test_an_unknown_name_is_refused_with_name_and_remedy(write: Any) -> None:
    channel = barrier("left")

    with pytest.raises(
        InvalidUpdateError, match="'join' waits for 'left', 'right', but"
    ):
        channel.update(["right", write])

    assert {"left"} == channel.checkpoint()


def test_a_complete_barrier_is_used_up() -> None:
    channel = barrier("left", "right")

    assert channel.consume()
    assert not channel.consume()

    assert set() == channel.checkpoint()
    assert not channel.is_available()


def test_an_incomplete_barrier_is_not_used_up() -> None:
    channel = barrier("left")

    assert not channel.consume()
    assert not channel.finish()
    assert {"left"} == channel.checkpoint()


def test_its_checkpoint_is_a_set_of_its_own() -> None:
    channel = barrier("left")

    channel.checkpoint().add("right")

    assert not channel.is_available()


def test_names_that_are_no_longer_waited_for_are_forgotten() -> None:
    """Otherwise a barrier whose program was changed could never be complete."""
    restored = NamedBarrierValue(str, {"right"}).from_checkpoint({"left", "right"})

    assert restored.is_available()


def test_it_restores_from_nothing() -> None:
    restored = barrier("left").from_checkpoint(MISSING)

    assert ("join", set()) == (restored.key, restored.checkpoint())


@pytest.mark.parametrize("names", [[], "left"])
def test_a_barrier_needs_a_set_of_names(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="at least one name"):
        NamedBarrierValue(str, names)


def test_declarations_are_the_same_if_their_names_are() -> None:
    assert barrier() == barrier("left")
    assert NamedBarrierValue(str, {"left"}) != barrier()
    assert late(False) != barrier()


class TestAfterFinish:
    def test_it_shows_when_complete_and_finished(self) -> None:
        channel = late(False, "left")

        assert not channel.finish()
        assert channel.update(["right"])
        assert not channel.is_available()
        with pytest.raises(EmptyChannelError):
            channel.get()
        assert channel.finish()
        assert not channel.finish()

        assert channel.is_available()
        assert channel.get() is None

    def test_it_is_used_up_when_complete_and_finished(self) -> None:
        waiting, shown = late(False, "left", "right"), late(True, "left", "right")

        assert not waiting.consume()
        assert shown.consume()

        assert waiting.checkpoint() == (NAMES, False)
        assert (set(), False) == shown.checkpoint()

    def test_a_name_that_was_added_since_has_to_be_waited_for(self) -> None:
        restored = NamedBarrierValueAfterFinish(str, {"a", "b"}).from_checkpoint(
            ({"a"}, True)
        )

        assert ({"a"}, False) == restored.checkpoint()

    def test_an_unknown_name_is_refused(self) -> None:
        with pytest.raises(InvalidUpdateError):
            late(False).update(["middle"])

    def test_it_restores_from_nothing(self) -> None:
        assert (set(), False) == late(True, "left", "right").from_checkpoint(
            MISSING
        ).checkpoint()
