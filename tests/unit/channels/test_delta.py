"""`DeltaChannel`: folding in batches, replay, and what it refuses."""

import collections.abc
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from flowpregel.channels import DeltaChannel, Overwrite
from flowpregel.channels.base import MISSING
from flowpregel.channels.folding import ReducerHooks, has_overwrite, with_hooks
from flowpregel.errors import ConfigurationError, EmptyChannelError, InvalidUpdateError


class Recorder:
    """A reducer that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Any], list[Any]]] = []

    def __call__(self, state: list[Any], writes: Sequence[Any]) -> list[Any]:
        self.calls.append((state, list(writes)))
        if "boom" in writes:
            raise KeyError("boom")
        return [*state, *writes]


@pytest.fixture
def reducer() -> Recorder:
    return Recorder()


@pytest.fixture
def log(reducer: Recorder) -> DeltaChannel[list[Any], Any]:
    channel = DeltaChannel(reducer, snapshot_frequency=3)
    channel.key = "log"
    return channel


def test_a_new_channel_is_empty_and_a_restored_one_is_not(
    log: DeltaChannel[Any, Any],
) -> None:
    assert not log.is_available()
    with pytest.raises(EmptyChannelError, match="'log'"):
        log.get()

    restored = log.from_checkpoint(MISSING)

    assert restored.get() == []
    assert restored.is_available()
    assert (restored.key, restored.snapshot_frequency) == ("log", 3)


def test_a_superstep_is_one_call(
    log: DeltaChannel[Any, Any], reducer: Recorder
) -> None:
    assert log.update([1, 2])
    assert log.update([3])
    assert not log.update([])

    assert reducer.calls == [([], [1, 2]), ([1, 2], [3])]
    assert log.get() == [1, 2, 3]


def test_a_checkpoint_does_not_hold_it(log: DeltaChannel[Any, Any]) -> None:
    log.update([1])

    assert MISSING is log.checkpoint()
    assert log.from_checkpoint([1]).get() == [1]


def test_an_overwrite_drops_the_other_writes(log: DeltaChannel[Any, Any]) -> None:
    mine = [9]
    log.update([1])

    assert log.update([2, Overwrite(mine), 3])
    log.get().append(4)

    assert log.get() == [9, 4]
    assert mine == [9]


def test_an_overwrite_with_none_starts_anew(log: DeltaChannel[Any, Any]) -> None:
    log.update([1])

    log.update([Overwrite(None)])

    assert log.get() == []


def test_two_overwrites_are_refused(log: DeltaChannel[Any, Any]) -> None:
    log.update([1])

    with pytest.raises(InvalidUpdateError, match=r"'log': .* one Overwrite"):
        log.update([Overwrite([2]), Overwrite([3])])

    assert log.get() == [1]


def test_a_reducer_that_raises_changes_nothing_and_is_told_where(
    log: DeltaChannel[Any, Any],
) -> None:
    log.update([1])

    with pytest.raises(KeyError) as caught:
        log.update([2, "boom"])

    assert "the reducer of channel 'log', given 2 writes" in caught.value.__notes__[0]
    assert log.get() == [1]


class TestReplay:
    def test_many_supersteps_are_one_call(
        self, log: DeltaChannel[Any, Any], reducer: Recorder
    ) -> None:
        restored = log.from_checkpoint([0])

        restored.replay([(1, 2), (), (3,)])

        assert reducer.calls == [([0], [1, 2, 3])]
        assert restored.get() == [0, 1, 2, 3]

    @pytest.mark.parametrize("batches", [(), ((),)])
    def test_nothing_to_replay_is_no_call(
        self, log: DeltaChannel[Any, Any], reducer: Recorder, batches: Any
    ) -> None:
        log.replay(batches)

        assert reducer.calls == []
        assert log.get() == []

    def test_the_last_overwrite_is_where_it_starts(
        self, log: DeltaChannel[Any, Any], reducer: Recorder
    ) -> None:
        log.replay([[1], [Overwrite([5])], [2, {"__overwrite__": [7]}, 3], [8], [9]])

        assert reducer.calls == [([7], [8, 9])]
        assert log.get() == [7, 8, 9]

    def test_an_overwrite_with_none_starts_anew(
        self, log: DeltaChannel[Any, Any]
    ) -> None:
        log.replay([[1], [Overwrite(None)]])

        assert log.get() == []

    def test_a_reducer_that_raises_changes_nothing(
        self, log: DeltaChannel[Any, Any]
    ) -> None:
        restored = log.from_checkpoint([0])

        with pytest.raises(KeyError):
            restored.replay([[1], ["boom"]])

        assert restored.get() == [0]


def test_a_copy_has_a_list_of_its_own(log: DeltaChannel[Any, Any]) -> None:
    log.update([1])

    log.copy().get().append(2)

    assert log.get() == [1]
    assert not DeltaChannel(list).copy().is_available()


@pytest.mark.parametrize(
    ("typ", "start"),
    [(None, []), (collections.abc.Mapping, {}), (set[int], set())],
)
def test_it_starts_with_what_its_type_makes(typ: Any, start: Any) -> None:
    assert (
        start
        == DeltaChannel(lambda state, _: state, typ).from_checkpoint(MISSING).get()
    )


@pytest.mark.parametrize("frequency", [0, -1, 1.5, 1.0, True, False, "3"])
def test_a_frequency_is_a_positive_int(frequency: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=f"snapshot_frequency is {frequency!r}; use"
    ):
        DeltaChannel(list, snapshot_frequency=frequency)


def test_a_reducer_has_to_be_callable() -> None:
    with pytest.raises(ConfigurationError, match="a delta reducer is a function"):
        DeltaChannel(None)  # type: ignore[arg-type]


def test_declarations_are_the_same_if_reducer_type_and_frequency_are() -> None:
    def channel(
        frequency: int | None = None, typ: Any = list
    ) -> DeltaChannel[Any, Any]:
        return DeltaChannel(
            lambda state, writes: state, typ, snapshot_frequency=frequency
        )

    assert channel() == channel()
    assert channel(1) != channel()
    assert channel(typ=dict) != channel()


def test_nobody_can_consume_or_finish_it(log: DeltaChannel[Any, Any]) -> None:
    assert not log.consume()
    assert not log.finish()


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([], False),
        ([1, {"value": 1}], False),
        ([1, Overwrite(None)], True),
        ([{"__overwrite__": None}], True),
        ([{"type": "__overwrite__", "value": None}], True),
    ],
)
def test_overwrites_are_found_among_writes(writes: list[Any], expected: bool) -> None:
    assert expected is has_overwrite(writes)


class Index:
    """An index of a list, which notes when it is built."""

    built: int = 0

    def __init__(self, value: list[Any]) -> None:
        type(self).built += 1
        self.value = value

    def continues(self, value: list[Any]) -> bool:
        """Return whether *value* is the indexed list."""
        return value is self.value

    def copy(self, value: list[Any]) -> "Index":
        """Return an index of a copy of the list, without building it."""
        copied = Index.__new__(Index)
        copied.value = value
        return copied

    def add(self, writes: Sequence[Any]) -> list[Any]:
        """Return a new list."""
        if "boom" in writes:
            raise KeyError("boom")
        self.value = [*self.value, *writes]
        return self.value


@with_hooks(ReducerHooks(fold=Index))
def indexed(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    """A reducer with an index."""
    raise AssertionError("the channel calls the index instead")


def test_the_index_of_a_reducer_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept from one superstep to the next, and copied with the channel."""
    monkeypatch.setattr(Index, "built", 0)
    channel = DeltaChannel(indexed).from_checkpoint(["a"])

    channel.update(["b"])
    copied = channel.copy()
    channel.update(["c"])
    copied.update(["d"])

    assert [["a", "b", "c"], ["a", "b", "d"]] == [channel.get(), copied.get()]
    assert 1 == Index.built


def test_an_index_that_does_not_fit_is_built_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a refused write, an `Overwrite`, a load and a journey to a worker."""
    monkeypatch.setattr(Index, "built", 0)
    channel = DeltaChannel(indexed).from_checkpoint(["a"])
    channel.update(["b"])

    with pytest.raises(KeyError, match="boom"):
        channel.update(["boom"])
    channel.update(["c"])
    assert 2 == Index.built

    channel.update([Overwrite(["d"])])
    channel.update(["e"])
    assert 3 == Index.built

    sent = pickle.loads(pickle.dumps(channel))
    sent.update(["f"])
    loaded = channel.from_checkpoint(channel.get())
    loaded.update(["g"])
    assert [["d", "e", "f"], ["d", "e", "g"]] == [sent.get(), loaded.get()]
    assert 5 == Index.built
