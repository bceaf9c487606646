"""Which tasks are due, and what the barrier does with what they wrote."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest

from flowpregel._core.barrier import TaskOutput, apply, check_writes, plan
from flowpregel._core.commands import Send
from flowpregel._core.effects import StepContext
from flowpregel._core.program import Program
from flowpregel._core.records import ERROR, NO_WRITES, RESUME, TASKS, Kind
from flowpregel._core.run_state import RunState, Update, new_state
from flowpregel.channels import (
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    Overwrite,
)
from flowpregel.channels.base import read
from flowpregel.errors import InvalidUpdateError
from tests.unit.core.programs import node, program

PLACE = StepContext("checkpoint", "", 0, 10)


def written(
    made: Program, version: int = 1, state: RunState | None = None, **writes: Any
) -> tuple[RunState, Update]:
    """Return the state after input that writes *writes*, and what the barrier did."""
    state = state or new_state(made)
    return state, apply(made, state, [TaskOutput(list(writes.items()))], version)


def due(made: Program, state: RunState, applied: Update | None) -> list[str]:
    """Return the names of the tasks that are due."""
    return [t.name for t in plan(made, state, applied and applied.updated, PLACE)]


def ran(
    made: Program, state: RunState, name: str, version: int, *writes: Any
) -> Update:
    """Apply what a task of node *name* wrote."""
    return apply(
        made, state, [TaskOutput(writes, name, made.nodes[name].triggers)], version
    )


# -------------------------------------------------------------------- plan


def test_a_node_is_due_when_a_trigger_of_it_was_updated() -> None:
    """In the order of their names, whatever the order of declaration."""
    made = program(
        node("z"), node("b", triggers=("b",), channels="b"), node("c"), b=LastValue(int)
    )
    state, applied = written(made, a=1)

    assert ["c", "z"] == due(made, state, applied)


def test_nothing_is_due_where_nothing_ever_happened() -> None:
    """Not even what a channel's first value would trigger."""
    made = program(
        node("n", triggers=("sum",)), sum=BinaryOperatorAggregate(int, operator.add)
    )

    assert [] == due(made, new_state(made), None)


def test_what_a_first_value_triggers_is_due_once_when_nothing_else_is() -> None:
    """Such a value has no version, yet it is seen."""
    made = program(
        node("m"),
        node("n", triggers=("sum",), channels="sum"),
        sum=BinaryOperatorAggregate(int, operator.add),
    )
    state, applied = written(made, a=1)
    assert ["m"] == due(made, state, applied)
    applied = ran(made, state, "m", 2)
    assert ["n"] == due(made, state, applied)
    applied = ran(made, state, "n", 3)

    assert [] == due(made, state, applied)


def test_a_value_that_was_seen_does_not_trigger_again() -> None:
    """Until it is written once more."""
    made = program(node("n"))
    state, applied = written(made, a=1)
    ran(made, state, "n", 2)
    assert [] == due(made, state, None)

    _, applied = written(made, 3, state, a=1)

    assert ["n"] == due(made, state, applied)


def test_a_node_whose_only_channel_is_empty_is_not_due() -> None:
    """There is nothing to give it."""
    made = program(node("n", channels="b"), b=LastValue(int))
    state, applied = written(made, a=1)

    assert [] == due(made, state, applied)


def test_a_send_is_a_task_for_itself_after_those_that_are_triggered() -> None:
    """With what was sent for its input, and the sender's timeout."""
    made = program(node("m"), node("n", triggers=()))
    state, applied = written(
        made, a=1, **{TASKS: [Send("n", "x", timeout=3), Send("n", "y")]}
    )

    tasks = plan(made, state, applied.updated, PLACE)

    assert ["m", "n", "n"] == [task.name for task in tasks]
    assert [Kind.PULL, Kind.PUSH, Kind.PUSH] == [task.kind for task in tasks]
    assert [1, "x", "y"] == [task.input for task in tasks]
    assert tasks[1].timeout is not None
    assert 3 == len({task.id for task in tasks})


def test_nodes_that_read_the_same_get_copies_of_it() -> None:
    """One does not see what another does to its dict."""
    made = program(node("m", channels=("a",)), node("n", channels=("a",)))
    state, applied = written(made, a=1)

    first, second = plan(made, state, applied.updated, PLACE)

    assert first.input == second.input == {"a": 1}
    assert first.input is not second.input


def test_a_mapper_makes_the_input_and_an_error_of_it_names_the_node() -> None:
    """The error itself comes through."""

    def invert(value: dict[str, int]) -> float:
        return 1 / value["a"]

    made = program(node("n", channels=("a",), mapper=invert))
    state, applied = written(made, a=4)
    assert 0.25 == plan(made, state, applied.updated, PLACE)[0].input
    state, applied = written(made, a=0)

    with pytest.raises(ZeroDivisionError) as caught:
        plan(made, state, applied.updated, PLACE)

    assert "'n'" in caught.value.__notes__[0]


# -------------------------------------------------------------------- update


def test_every_channel_that_changes_gets_the_version_of_the_barrier() -> None:
    """And none of the others."""
    made = program(node("n"), b=LastValue(int))
    state, applied = written(made, 7, a=1)

    assert {"a": 7} == state.versions
    assert (["a"], {"a"}, {"a"}) == (applied.changed, applied.updated, applied.written)


def test_channels_that_hold_one_write_are_updated_together_with_the_others() -> None:
    """Each kind as it would be alone."""
    made = program(
        a=LastValue(int),
        b=LastValue(int),
        total=BinaryOperatorAggregate(int, operator.add),
    )
    state = new_state(made)
    writes = [
        TaskOutput([("a", 1), ("total", 2)]),
        TaskOutput([("total", 3), ("b", 4)]),
    ]

    applied = apply(made, state, writes, 7)

    assert {"a": 1, "b": 4, "total": 5} == read(state.channels, ("a", "b", "total"))
    assert (
        {"a", "b", "total"}
        == set(applied.changed)
        == applied.updated
        == applied.written
    )
    assert {"a": 7, "b": 7, "total": 7} == state.versions


def test_two_writes_to_a_channel_that_takes_one_are_refused_with_their_authors() -> (
    None
):
    made = program(node("n", triggers=("b",)), a=LastValue(int), b=LastValue(int))
    writes = [TaskOutput([("a", 1), ("b", 1)], "n"), TaskOutput([("a", 2)], "m")]

    with pytest.raises(InvalidUpdateError, match="'a': Can receive only one") as raised:
        apply(made, new_state(made), writes, 1)

    assert ["channel 'a' was written by 'n', 'm'"] == raised.value.__notes__


class Doubling(LastValue[int]):
    """A kind of a user's own."""

    __slots__ = ()

    def update(self, values: Sequence[int]) -> bool:
        """Hold twice what was written."""
        return super().update([2 * value for value in values])


def test_a_subclass_decides_what_it_does_with_a_write() -> None:
    made = program(a=Doubling(int), b=LastValue(int))

    state, _ = written(made, a=1, b=1)

    assert (2, 1) == (state.channels["a"].get(), state.channels["b"].get())


def test_a_superstep_clears_what_it_did_not_write() -> None:
    """Input alone is none: it clears nothing."""
    made = program(node("n"), brief=EphemeralValue(int))
    state, _ = written(made, 1, a=1, brief=1)
    written(made, 2, state, a=2)
    assert state.channels["brief"].is_available()

    applied = ran(made, state, "n", 3)

    assert not state.channels["brief"].is_available()
    assert ["brief"] == applied.changed
    assert set() == applied.updated


class Sum(BinaryOperatorAggregate[int]):
    """A channel with an initial value that counts the supersteps without a write."""

    __slots__ = ()
    reacts_to_silence = True

    def update(self, values: Sequence[int]) -> bool:
        """Add the writes, or 1 if there are none."""
        return super().update(values or [1])


def test_a_channel_with_an_initial_value_reacts_to_the_first_superstep() -> None:
    """As it does in a thread that is loaded."""
    made = program(node("n"), silent=Sum(int, operator.add))
    state, _ = written(made, 1, a=1)

    ran(made, state, "n", 2)

    assert 1 == state.channels["silent"].get()


def test_the_state_tracks_which_channels_hold_a_value() -> None:
    """The barrier asks a channel only after it has changed it."""
    made = program(
        node("n"), brief=EphemeralValue(int), total=BinaryOperatorAggregate(int, max)
    )
    state, _ = written(made, 1, a=1, brief=1)
    assert {"a", "brief", "total"} == state.available
    copied = state.copy({"brief"})

    ran(made, state, "n", 2)

    assert {"a", "total"} == state.available
    assert {"a", "brief", "total"} == copied.available


def test_a_channel_is_consumed_before_it_is_written() -> None:
    """So a barrier can be completed anew in the superstep that it triggers."""
    barrier = NamedBarrierValue(str, names={"x"})
    made = program(node("n", triggers=("join",), channels=()), join=barrier)
    state, applied = written(made, 1, join="x")
    assert ["n"] == due(made, state, applied)

    applied = ran(made, state, "n", 2, ("join", "x"))

    assert ["n"] == due(made, state, applied)


def test_deferred_channels_finish_when_nothing_else_can_run() -> None:
    """And not while a task that was sent is to run."""
    made = program(
        node("m"),
        node("last", triggers=("end",), channels="end"),
        end=LastValueAfterFinish(int),
    )
    state, _ = written(made, 1, a=1)
    applied = ran(made, state, "m", 2, ("end", 5), (TASKS, Send("m", 1)))
    assert ["m"] == due(made, state, applied)

    applied = ran(made, state, "m", 3)

    assert ["last"] == due(made, state, applied)


def test_control_writes_are_for_no_channel() -> None:
    """They only say how a task ended."""
    made = program(node("n"))
    state, _ = written(made, 1, a=1)

    assert (
        [] == ran(made, state, "n", 2, (NO_WRITES, None), (ERROR, ValueError())).changed
    )


def test_what_two_barriers_did_adds_up() -> None:
    """Deltas of one channel join; one that was kept in full meanwhile is kept in
    full.
    """
    log = DeltaChannel(
        lambda state, items: [*state, *items], list, snapshot_frequency=3
    )
    made = program(node("n"), log=log)
    state, first = written(made, 1, log=1)
    _, second = written(made, 2, state, log=2)
    both = first.then(second)
    _, third = written(made, 3, state, log=3)

    assert (None, (1, 2)) == (
        both.deltas["log"].previous,
        tuple(both.deltas["log"].writes),
    )
    assert {} == third.deltas
    assert {} == both.then(third).deltas
    assert ["log"] == both.then(third).changed

    _, fourth = written(made, 4, state, log=4)

    assert {"log"} == fourth.deltas.keys()
    assert {} == both.then(third).then(fourth).deltas


def test_a_channel_of_deltas_is_stored_in_full_every_so_many_updates() -> None:
    """Each time as many after the last one; an overwrite is one of them."""
    log = DeltaChannel(
        lambda state, items: [*state, *items], list, snapshot_frequency=3
    )
    made = program(node("n"), log=log)
    state = new_state(made)
    writes = [1, 2, 3, 4, 5, 6, 7, Overwrite([8]), 9, 10, 11]

    kinds = []
    for version, value in enumerate(writes, 1):
        _, applied = written(made, version, state, log=value)
        kinds.append("delta" if "log" in applied.deltas else "full")

    three = ["delta", "delta", "full"]
    assert [*three, *three, "delta", "full", *three] == kinds


def test_a_write_that_changes_nothing_makes_no_version() -> None:
    """Whoever waits for the channel is not due again."""
    made = program(node("n", triggers=("all",)), all=NamedBarrierValue(str, {"x", "y"}))
    state, first = written(made, 1, all="x")
    _, again = written(made, 2, state, all="x")

    assert (["all"], []) == (first.changed, again.changed)
    assert 1 == state.versions["all"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (("b", 1), "node 'n' wrote to channel 'b'.*a, out"),
        ((TASKS, 3), "sent 3, which is not a Send"),
        ((TASKS, [Send("x", 1)]), "sent to node 'x'.*n"),
    ],
)
def test_what_no_barrier_could_apply_is_refused(write: Any, message: str) -> None:
    """When the task ends, not when the barrier comes."""
    with pytest.raises(InvalidUpdateError, match=message):
        check_writes(program(node("n")), "node 'n'", [write])


def test_what_a_task_tells_of_itself_is_no_write_to_a_channel() -> None:
    """Its answers, say, are kept beside its writes."""
    check_writes(program(node("n")), "node 'n'", [(RESUME, ("yes",)), ("out", 1)])
