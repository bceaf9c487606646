"""The laws of a channel hold for every kind, whatever happens to it."""

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    Context,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Overwrite,
    Topic,
    UntrackedValue,
)
from flowpregel.testing.channels import ChannelLaws

numbers = st.integers(-3, 3)
values = st.one_of(
    numbers, st.none(), st.lists(numbers, max_size=2), st.text(max_size=1)
)
overwrites = st.one_of(
    numbers.map(Overwrite), numbers.map(lambda value: {"__overwrite__": value})
)
list_overwrites = st.one_of(st.none(), st.lists(numbers, max_size=2)).map(Overwrite)


def add_up(value: int, write: int) -> int:
    """A reducer that some writes break."""
    if write == 3:
        raise ValueError(write)
    return value + write


def extend(value: list[int], writes: Sequence[int]) -> list[int]:
    """A delta reducer that some writes break."""
    if 3 in writes:
        raise ValueError(writes)
    return [*value, *writes]


def extend_in_place(value: list[int], write: list[int]) -> list[int]:
    """A reducer that does what it should not."""
    value.extend(write)
    return value


KINDS: dict[str, tuple[ChannelLaws, st.SearchStrategy[Any]]] = {
    "LastValue": (ChannelLaws(make=lambda: LastValue(int)), values),
    "LastValueAfterFinish": (
        ChannelLaws(make=lambda: LastValueAfterFinish(int)),
        values,
    ),
    "EphemeralValue": (ChannelLaws(make=lambda: EphemeralValue(int)), values),
    "EphemeralValue-unguarded": (
        ChannelLaws(make=lambda: EphemeralValue(int, False)),
        values,
    ),
    "AnyValue": (ChannelLaws(make=lambda: AnyValue(int)), values),
    "AnyValue-equal": (
        ChannelLaws(make=lambda: AnyValue(int), any_order=True),
        st.just(1),
    ),
    "UntrackedValue": (
        ChannelLaws(make=lambda: UntrackedValue(int), is_saved=False),
        values,
    ),
    "UntrackedValue-unguarded": (
        ChannelLaws(make=lambda: UntrackedValue(int, guard=False), is_saved=False),
        values,
    ),
    "Topic": (ChannelLaws(make=lambda: Topic(int)), values),
    "Topic-unique": (ChannelLaws(make=lambda: Topic(int, unique=True)), values),
    "Topic-accumulate": (ChannelLaws(make=lambda: Topic(int, accumulate=True)), values),
    "Topic-unique-accumulate": (
        ChannelLaws(make=lambda: Topic(int, True, True)),
        values,
    ),
    "Binary-sum": (
        ChannelLaws(
            make=lambda: BinaryOperatorAggregate(int, operator.add), any_order=True
        ),
        numbers,
    ),
    "Binary-overwrite": (
        ChannelLaws(make=lambda: BinaryOperatorAggregate(int, add_up)),
        numbers | overwrites,
    ),
    "Binary-no-start": (
        ChannelLaws(make=lambda: BinaryOperatorAggregate(int | None, add_up)),
        numbers | overwrites,
    ),
    "Binary-in-place": (
        ChannelLaws(make=lambda: BinaryOperatorAggregate(list, extend_in_place)),
        st.lists(numbers, max_size=2)
        | list_overwrites.filter(lambda o: o.value is not None),
    ),
    "NamedBarrierValue": (
        ChannelLaws(make=lambda: NamedBarrierValue(int, {0, 1, 2}), any_order=True),
        numbers | st.just([0]),
    ),
    "NamedBarrierValueAfterFinish": (
        ChannelLaws(
            make=lambda: NamedBarrierValueAfterFinish(int, {0, 1}), any_order=True
        ),
        numbers,
    ),
    "DeltaChannel": (
        ChannelLaws(make=lambda: DeltaChannel(extend), is_saved=False),
        numbers | list_overwrites,
    ),
    "Context": (ChannelLaws(make=lambda: Context(nullcontext), is_saved=False), values),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_kind_keeps_the_laws(kind: str, data: st.DataObject) -> None:
    """Whatever is written, consumed and finished, in whatever order."""
    laws, writes = KINDS[kind]
    actions = st.one_of(
        st.lists(writes, max_size=4), st.sampled_from(["consume", "finish"])
    )

    laws.check(data.draw(st.lists(actions, max_size=6)))


@given(
    batches=st.lists(
        st.lists(numbers.filter(lambda n: n < 3) | list_overwrites, max_size=4)
    )
)
def test_a_replay_gives_what_the_updates_gave(batches: list[list[Any]]) -> None:
    """A delta is applied as one batch of many supersteps, and ends in the same
    value.
    """
    batches = [
        batch for batch in batches if sum(isinstance(w, Overwrite) for w in batch) < 2
    ]
    live, rebuilt = (DeltaChannel(extend).from_checkpoint([0]) for _ in range(2))

    for batch in batches:
        live.update(batch)
    rebuilt.replay(batches)

    assert live.get() == rebuilt.get()


@given(supersteps=st.lists(st.lists(values, max_size=5)), accumulate=st.booleans())
def test_a_unique_topic_is_a_list_without_repeats(
    supersteps: list[list[Any]], accumulate: bool
) -> None:
    """Also of items that cannot be hashed."""
    topic = Topic(object, unique=True, accumulate=accumulate)
    model: list[Any] = []

    for writes in supersteps:
        topic.update([[write] for write in writes])
        model = model if accumulate else []
        for write in writes:
            if write not in model:
                model.append(write)

    assert model == (topic.get() if topic.is_available() else [])
