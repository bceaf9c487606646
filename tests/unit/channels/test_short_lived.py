"""`EphemeralValue`, `AnyValue` and `UntrackedValue`, cell by cell."""

import pytest

from flowpregel.channels import AnyValue, EphemeralValue, UntrackedValue
from flowpregel.channels.base import MISSING
from flowpregel.errors import EmptyChannelError, InvalidUpdateError


@pytest.mark.parametrize("kind", [EphemeralValue, AnyValue, UntrackedValue])
def test_a_new_channel_is_empty(kind: type) -> None:
    channel = kind(int)

    assert not channel.is_available()
    assert not channel.update([])
    assert MISSING is channel.checkpoint()
    with pytest.raises(EmptyChannelError):
        channel.get()


@pytest.mark.parametrize("kind", [EphemeralValue, AnyValue, UntrackedValue])
def test_it_keeps_its_write(kind: type) -> None:
    channel = kind(int)

    assert channel.update([1])

    assert channel.get() == 1
    assert channel.is_available()
    assert not channel.consume()
    assert not channel.finish()


@pytest.mark.parametrize("kind", [EphemeralValue, AnyValue])
def test_a_superstep_without_a_write_empties_it(kind: type) -> None:
    channel = kind(int).from_checkpoint(1)

    assert channel.update([])

    assert not channel.is_available()
    assert not channel.update([])


@pytest.mark.parametrize("kind", [EphemeralValue, AnyValue])
def test_it_outlives_a_crash_within_its_superstep(kind: type) -> None:
    channel = kind(int)
    channel.update([1])

    assert channel.checkpoint() == 1
    assert kind(int).from_checkpoint(1).get() == 1


@pytest.mark.parametrize("kind", [EphemeralValue, UntrackedValue])
def test_a_guarded_channel_refuses_two_writes_with_name_and_remedy(kind: type) -> None:
    channel = kind(int)
    channel.key = "note"
    channel.update([7])

    with pytest.raises(
        InvalidUpdateError, match=rf"'note': .* not 2; .*{kind.__name__}\(typ, gua"
    ):
        channel.update([1, 2])

    assert channel.get() == 7


@pytest.mark.parametrize("kind", [EphemeralValue, UntrackedValue])
def test_an_unguarded_channel_keeps_the_last_write(kind: type) -> None:
    channel = kind(int, guard=False)

    assert channel.update([1, 2])

    assert channel.get() == 2


@pytest.mark.parametrize("kind", [EphemeralValue, UntrackedValue])
def test_the_guard_is_kept_by_copies_and_is_part_of_the_declaration(kind: type) -> None:
    channel = kind(int, guard=False)
    channel.key = "note"

    assert not channel.from_checkpoint(MISSING).guard
    assert not channel.copy().guard
    assert channel.copy().key == "note"
    assert kind(int) != channel


def test_any_value_keeps_the_last_of_several() -> None:
    channel = AnyValue(int)

    assert channel.update([1, 2])

    assert channel.get() == 2


class TestUntracked:
    def test_no_checkpoint_keeps_it(self) -> None:
        channel = UntrackedValue(int)
        channel.update([1])

        assert MISSING is channel.checkpoint()
        assert not channel.from_checkpoint(1).is_available()

    def test_it_stays_over_supersteps(self) -> None:
        channel = UntrackedValue(int)
        channel.update([1])

        assert not channel.update([])

        assert channel.get() == 1

    def test_a_copy_holds_it_still(self) -> None:
        channel = UntrackedValue(int)
        channel.update([1])

        assert channel.copy().get() == 1
