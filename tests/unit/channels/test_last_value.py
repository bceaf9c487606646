"""`LastValue` and `LastValueAfterFinish`, cell by cell."""

import pytest

from flowpregel.channels import LastValue, LastValueAfterFinish
from flowpregel.channels.base import MISSING
from flowpregel.errors import EmptyChannelError, InvalidUpdateError


def test_a_new_channel_is_empty_and_says_its_name() -> None:
    channel = LastValue(int, "count")

    assert not channel.is_available()
    assert MISSING is channel.checkpoint()
    with pytest.raises(EmptyChannelError, match="'count' holds no value"):
        channel.get()


def test_it_keeps_its_one_write() -> None:
    channel = LastValue(int)

    assert channel.update([1])
    assert not channel.update([])

    assert 1 == channel.get() == channel.checkpoint()


def test_an_equal_value_counts_as_a_write() -> None:
    """Those who subscribe to it run again."""
    channel = LastValue(int).from_checkpoint(1)

    assert channel.update([1])


def test_none_is_a_value() -> None:
    channel = LastValue(int)

    channel.update([None])

    assert channel.is_available()
    assert channel.get() is None


def test_two_writes_are_refused_with_name_and_remedy() -> None:
    channel = LastValue(int, "count").from_checkpoint(7)

    with pytest.raises(
        InvalidUpdateError, match=r"'count': .* one value .* not 2; .* reducer"
    ):
        channel.update([1, 2])

    assert channel.get() == 7


def test_nobody_can_consume_or_finish_it() -> None:
    channel = LastValue(int).from_checkpoint(1)

    assert not channel.consume()
    assert not channel.finish()
    assert channel.get() == 1


def test_a_restored_channel_keeps_type_and_name() -> None:
    channel = LastValue(int, "count").from_checkpoint(1)

    assert ("count", int, int) == (channel.key, channel.ValueType, channel.UpdateType)


def test_declarations_are_the_same_if_their_types_are() -> None:
    assert LastValue(int, "a") == LastValue(int, "b")
    assert hash(LastValue(int)) == hash(LastValue(int))
    assert LastValue(int) != LastValue(str)
    assert LastValue(int) != LastValueAfterFinish(int)


def test_its_repr_names_kind_and_type() -> None:
    assert repr(LastValue(int)) == "LastValue(int)"
    assert repr(LastValue(int | None)) == "LastValue(int | None)"


class TestAfterFinish:
    def test_it_keeps_the_last_write_out_of_sight(self) -> None:
        channel = LastValueAfterFinish(int)

        assert channel.update([1, 2])

        assert not channel.is_available()
        assert channel.checkpoint() == (2, False)
        with pytest.raises(EmptyChannelError):
            channel.get()

    def test_finish_shows_it_once(self) -> None:
        channel = LastValueAfterFinish(int).from_checkpoint((2, False))

        assert channel.finish()
        assert not channel.finish()

        assert channel.is_available()
        assert channel.get() == 2
        assert channel.checkpoint() == (2, True)

    def test_there_is_nothing_to_finish_or_consume_when_empty(self) -> None:
        channel = LastValueAfterFinish(int)

        assert not channel.finish()
        assert not channel.consume()
        assert MISSING is channel.checkpoint()

    def test_it_is_not_consumed_before_it_is_finished(self) -> None:
        channel = LastValueAfterFinish(int).from_checkpoint((2, False))

        assert not channel.consume()
        assert channel.checkpoint() == (2, False)

    def test_consume_empties_it(self) -> None:
        channel = LastValueAfterFinish(int).from_checkpoint((2, True))

        assert channel.consume()

        assert MISSING is channel.checkpoint()
        assert not channel.is_available()

    def test_a_write_hides_it_until_the_next_finish(self) -> None:
        channel = LastValueAfterFinish(int).from_checkpoint((2, True))

        assert not channel.update([])
        assert channel.is_available()
        assert channel.update([3])

        assert not channel.is_available()
        assert channel.checkpoint() == (3, False)

    def test_a_checkpoint_of_nothing_is_an_empty_channel(self) -> None:
        channel = LastValueAfterFinish(int, "end").from_checkpoint(MISSING)

        assert not channel.finish()
        assert channel.key == "end"
